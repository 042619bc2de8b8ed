"""Files of others: their hashes, and JSON, YAML and safetensors headers, read with bounds.

Whatever is wrong with a file ends in `UsageError` with a sentence, however deep, large or recursive it is.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from .errors import DiskFull, UsageError

MAX_TEXT_BYTES = 10 * 2**20  # tokenizer.json of large vocabularies stays below
MAX_YAML, MAX_YAML_DEPTH = 2**18, 20


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    return _digest(path, hashlib.sha256())


def git_sha1_of(path: Path) -> str:
    """Return the name git gives to this file's content, which the Hub reports for small files."""
    return _digest(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size))


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return str(digest.hexdigest())


def list_files(folder: Path) -> list[str]:
    """Return every file below a folder, sorted, with forward slashes. Links are not followed."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def require_space(place: Path, needed: int, doing: str) -> None:
    """Refuse to begin what the disk has no room for."""
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise DiskFull(f"{doing} needs {needed / 2**20:.0f} MiB, {free / 2**20:.0f} MiB are free")


def read_text(path: Path) -> str:
    """Return the text of a file of moderate size."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise UsageError(f"{path.name} is larger than {MAX_TEXT_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path.name} is not UTF-8 text") from None


def parse_json(text: str | bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in a text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {_brief(error)}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{name} must be a JSON object, not a {type(value).__name__}")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    return parse_json(read_text(path), path.name)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with sorted keys."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Return the mapping in a YAML text; references (`*name`) are refused: a few make a huge value."""
    import yaml

    if len(text) > MAX_YAML:
        raise UsageError(f"{name} is larger than {MAX_YAML >> 10} KiB")
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_YAML_DEPTH or isinstance(event, yaml.AliasEvent):
                what = "is nested too deeply" if depth > MAX_YAML_DEPTH else "has a reference (*name)"
                raise UsageError(f"{name} {what}; write it plainly")
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{name} is not YAML: {_brief(error)}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{name} must be a YAML mapping, not a {type(value).__name__}")
    return value


def read_safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file and where its data begins; the library checks that both fit."""
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_TEXT_BYTES, path.stat().st_size):
            raise UsageError(f"{path.name} is not a safetensors file: impossible header length {length}")
        header = parse_json(file.read(length), f"the header of {path.name}")
    try:
        with safe_open(path, framework="np"):
            return header, 8 + length
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path.name} is cut off or damaged: {_brief(error)}") from None


def _brief(error: BaseException) -> str:
    words = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
    return f"{words[:200]}"
