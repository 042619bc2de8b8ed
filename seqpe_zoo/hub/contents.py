"""Which files may travel to the Hub, and what must never be in them. No torch, no network: a few file reads.

The rules are an allow-list, not a block-list: a name that nobody thought of stays at home. `find_problems` is
asked by `stage` (for what it made), by `check` and once more by `push`.
"""

from __future__ import annotations

import io
import pickletools
import re
from pathlib import Path

from .config_rules import reference_problems
from .errors import UsageError
from .files import MAX_TEXT_BYTES, list_files, parse_json, read_safetensors_header, read_text
from .scan import png_text, scan, strings_in

# Names of files that may travel. Everything is flat: transformers finds code beside the weights only.
ALLOWED_NAMES = frozenset(
    """README.md LICENSE LICENSE.md NOTICE MANIFEST.json config.json generation_config.json
    model.safetensors model.safetensors.index.json tokenizer.json tokenizer_config.json
    special_tokens_map.json added_tokens.json vocab.json merges.txt chat_template.jinja
    preprocessor_config.json processor_config.json results.json""".split()
)
ALLOWED_PATTERNS = (
    re.compile(r"model-\d{5}-of-\d{5}\.safetensors"),
    re.compile(r"[a-z][a-z0-9_]*\.py"),
    re.compile(r"[a-z0-9][a-z0-9_-]*\.(png|svg)"),  # plots of the card
)
REQUIRED_NAMES = ("README.md", "MANIFEST.json", "config.json")
_PICKLE_SUFFIXES = tuple(".bin .pt .pth .ckpt .pkl .pickle .joblib .npy .npz .h5 .msgpack".split())
_WINDOWS_DEVICES = frozenset("con prn aux nul com1 com2 com3 lpt1 lpt2 lpt3".split())

MAX_WEIGHT_BYTES = 5 * 10**9  # a shard; larger ones are slow to resume
MAX_FILES = 100
VOCABULARIES = ("tokenizer.json", "vocab.json", "merges.txt")  # some of their words look like paths


def name_problem(name: str) -> str | None:
    """Say why a file of this name may not travel, or None."""
    if name.endswith(_PICKLE_SUFFIXES):
        return f"{name}: may hold a pickle, which runs code when opened; save the weights as safetensors"
    if "/" in name or "\\" in name or name.startswith(".") or ".." in name:
        return f"{name!r}: only plain file names may travel: no folders, no hidden files, no '..'"
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)
    if not plain or name.split(".")[0].lower() in _WINDOWS_DEVICES:
        return f"{name!r}: odd file name; letters, digits, '.', '_' and '-' only"
    if name not in ALLOWED_NAMES and not any(pattern.fullmatch(name) for pattern in ALLOWED_PATTERNS):
        return f"{name}: not on the list of files a model repository needs (seqpe_zoo/hub/contents.py)"
    return None


def find_problems(folder: Path) -> list[str]:
    """Return every reason, one sentence each, why the folder may not be published as it is."""
    if folder.is_symlink() or not folder.is_dir():
        return [f"{folder.name}: not a folder (or a link to one)"]
    names = list_files(folder)
    problems = [f"{name} is missing" for name in REQUIRED_NAMES if name not in names]
    if not any(name.endswith(".safetensors") for name in names):
        problems.append("no .safetensors file: there are no weights to publish")
    if len(names) > MAX_FILES:
        problems.append(f"{len(names)} files; a commit should have fewer than {MAX_FILES}")
    lowered = [name.lower() for name in names]
    twice = [name for name in names if lowered.count(name.lower()) > 1]
    problems += [f"{name}: two names differ only in case" for name in twice]
    for name in names:
        path = folder / name
        if path.is_symlink():
            problems.append(f"{name}: a symbolic link; the Hub client would upload what it points to")
        elif not path.is_file():
            problems.append(f"{name}: not a regular file")
        elif problem := name_problem(name):
            problems.append(problem)
        else:
            problems += _content_problems(path)
    return problems + reference_problems(folder, set(names))


def _content_problems(path: Path) -> list[str]:
    """Return what is wrong with one regular file of an allowed name."""
    size, name = path.stat().st_size, path.name
    if size == 0:
        return [f"{name}: empty"]
    if path.stat().st_nlink > 1:
        return [f"{name}: a hard link; stage copies files"]
    try:
        if name.endswith(".safetensors"):
            if size > MAX_WEIGHT_BYTES:
                limit = f"{MAX_WEIGHT_BYTES / 1e9:.0f} GB a shard"
                return [f"{name}: {size / 1e9:.1f} GB; split the weights, {limit}"]
            return scan(name, strings_in(read_safetensors_header(path)[0]))
        if size > MAX_TEXT_BYTES:
            limit = f"{MAX_TEXT_BYTES >> 20} MiB"
            return [f"{name}: {size / 2**20:.0f} MiB; files other than weights stay below {limit}"]
        if name.endswith(".png"):
            return scan(name, png_text(path.read_bytes()))
        if is_pickle(path.read_bytes()):
            return [f"{name}: its content is a pickle or an archive, whatever its name says"]
        text = read_text(path)
        problems = scan(name, text, paths=name not in VOCABULARIES)
        if name.endswith(".json"):
            value = parse_json(text, name)
            if name == "tokenizer.json":
                value = {**value, "model": None}
            problems += scan(name, strings_in(value), paths=name != "vocab.json")
    except UsageError as error:
        return [str(error.args[0])]
    except ValueError as error:
        return [f"{name}: {error}"]
    return list(dict.fromkeys(problems))


def is_pickle(content: bytes) -> bool:
    """Say whether a content is a pickle of any protocol, or an archive that may hold one."""
    if content.startswith((b"\x80", b"PK\x03\x04", b"\x93NUM", b"\x89HDF", b"\x1f\x8b")):
        return True
    try:  # protocol 0 is text: follow its instructions to the one that ends it, without carrying them out
        pickletools.dis(content, out=io.StringIO())
        return True
    except (ValueError, EOFError, LookupError, OverflowError):
        return False
