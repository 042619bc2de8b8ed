"""Which files may travel to the Hub, and what must never be in them. No torch, no network: a few file reads.

The rules are an allow-list, not a block-list: a name that nobody thought of stays at home. `find_problems` is
asked by `stage` (for what it made), by `check` and once more by `push`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .config_rules import reference_problems
from .manifest import list_files

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
_PICKLE_SUFFIXES = (
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".pkl",
    ".pickle",
    ".joblib",
    ".npy",
    ".npz",
    ".h5",
    ".msgpack",
)
_WINDOWS_DEVICES = frozenset("con prn aux nul com1 com2 com3 lpt1 lpt2 lpt3".split())

MAX_WEIGHT_BYTES = 5 * 10**9  # a shard; larger ones are slow to resume
MAX_TEXT_BYTES = 10 * 2**20  # tokenizer.json of large vocabularies stays below
MAX_FILES = 100

_SECRETS = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}\b"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "an AWS key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{40,})\b"),
    "an API key": re.compile(r"\bsk-[A-Za-z0-9_-]{32,}\b"),
    "a Slack token": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    "a password in an address": re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@\"'<>]+:[^/\s:@\"'<>]+@"),
    "a key or password": re.compile(
        r"(?i)\b(?:api_?key|secret_?key|access_?key|auth_?token|password)\b[\"']?\s*[:=]\s*[\"'][^\"'\s]{12,}[\"']"
    ),
}
_LOCAL_PATH = re.compile(
    r"(?<![\w./-])(?:/(?:home|root|Users|tmp|mnt|scratch|work(?:space)?)/|[A-Z]:\\Users\\)[\w.-]+"
)


def name_problem(name: str) -> str | None:
    """Say why a file of this name may not travel, or None."""
    if name.endswith(_PICKLE_SUFFIXES):
        return (
            f"{name}: may hold a pickle, which runs code when it is opened; save the weights as safetensors"
        )
    if "/" in name or "\\" in name or name.startswith(".") or ".." in name:
        return f"{name!r}: only plain file names may travel: no folders, no hidden files, no '..'"
    if (
        not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)
        or name.split(".")[0].lower() in _WINDOWS_DEVICES
    ):
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
    problems += [
        f"{name}: two names differ only in case" for name in names if lowered.count(name.lower()) > 1
    ]
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
    size, name = path.stat().st_size, path.name
    if size == 0:
        return [f"{name}: empty"]
    if path.stat().st_nlink > 1:
        return [f"{name}: a hard link; stage copies files"]
    if name.endswith(".safetensors"):
        return _safetensors_problems(path, size)
    if size > MAX_TEXT_BYTES:
        return [
            f"{name}: {size / 2**20:.0f} MiB; files other than weights stay below {MAX_TEXT_BYTES >> 20} MiB"
        ]
    content = path.read_bytes()
    if name.endswith(".png"):
        return [] if content.startswith(b"\x89PNG\r\n") else [f"{name}: not a PNG image"]
    if _looks_like_pickle(content):
        return [f"{name}: its content is a pickle or an archive, whatever its name says"]
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return [f"{name}: not UTF-8 text"]
    problems = _text_problems(name, text)
    if name.endswith(".json"):
        try:
            json.loads(text)
        except ValueError as error:
            problems.append(f"{name}: not JSON ({error})")
    return problems


def _looks_like_pickle(content: bytes) -> bool:
    return content[:1] == b"\x80" or content[:4] in (b"PK\x03\x04", b"\x93NUM", b"\x89HDF")


def _safetensors_problems(path: Path, size: int) -> list[str]:
    if size > MAX_WEIGHT_BYTES:
        return [
            f"{path.name}: {size / 1e9:.1f} GB; split the weights, {MAX_WEIGHT_BYTES / 1e9:.0f} GB a shard"
        ]
    try:
        header, data_start = read_safetensors_header(path)
    except ValueError as error:
        return [f"{path.name}: not a safetensors file ({error})"]
    ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    if not ends or data_start + max(ends) != size:
        return [f"{path.name}: cut off or damaged ({size} bytes do not fit its header)"]
    return _text_problems(path.name, json.dumps(header.get("__metadata__", {})))


def read_safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file and where its data begins, or raise ValueError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(100_000_000, path.stat().st_size):
            raise ValueError("impossible header length")
        header = json.loads(file.read(length).decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("header is not an object")
    return header, 8 + length


def _text_problems(name: str, text: str) -> list[str]:
    problems = [f"{name}: contains {what}" for what, pattern in _SECRETS.items() if pattern.search(text)]
    if local := _LOCAL_PATH.search(text):
        problems.append(f"{name}: names a folder of somebody's machine ({local[0]}...)")
    return problems
