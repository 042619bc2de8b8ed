"""The source of Python's standard library as a byte-level corpus: text that every installation has.

Files are found through `sysconfig` and divided into training and held-out ones by a hash of their names, so
that no file is in both and the same file falls on the same side on every machine. Contents differ between
Python versions: results name the version.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .errors import DataError

LEFT_OUT = frozenset(
    "test tests site-packages dist-packages __pycache__ encodings pydoc_data lib2to3 idlelib".split()
)
"""Folders without ordinary source: tables, test data, packages of others."""
LARGEST_FILE = 400_000
HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class ByteCorpus:
    """Bytes as token numbers 0..255, files joined by a blank line; both tensors are 1-D and int64."""

    train: Tensor
    held_out: Tensor
    train_files: tuple[str, ...]
    held_out_files: tuple[str, ...]


def stdlib_folder() -> Path:
    """Returns the folder of the standard library of the running interpreter."""
    return Path(sysconfig.get_paths()["stdlib"])


@lru_cache(maxsize=4)
def list_source_files(folder: Path) -> tuple[Path, ...]:
    """Returns the Python files below a folder, sorted by name, without `LEFT_OUT` and very large ones."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        paths = (Path(place) / name for name in names if name.endswith(".py"))
        found += [path for path in paths if 0 < path.stat().st_size <= LARGEST_FILE]
    return tuple(sorted(found))


def is_held_out(name: str) -> bool:
    """Tells the side of a file by its name alone."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def load_stdlib_text(
    max_train_bytes: int | None = None,
    max_held_out_bytes: int | None = None,
    folder: Path | None = None,
) -> ByteCorpus:
    """Reads the corpus.

    Args:
        max_train_bytes: read so many bytes at most, whole files in an order that hashes of their names
            decide.
        max_held_out_bytes: the same for the held-out side.
        folder: another folder of Python source than the standard library.

    Raises:
        DataError: there are no source files (a zipped or stripped library), or one side is empty.
    """
    folder = folder or stdlib_folder()
    files = list_source_files(folder) if folder.is_dir() else ()
    if not files:
        raise DataError(
            f"no Python source in {folder}: this interpreter has its standard library zipped or stripped; "
            "run with another Python or give your own text files"
        )
    sides: dict[bool, list[Path]] = {False: [], True: []}
    for path in files:
        sides[is_held_out(path.relative_to(folder).as_posix())].append(path)
    train, train_files = _read(sides[False], folder, max_train_bytes)
    held_out, held_out_files = _read(sides[True], folder, max_held_out_bytes)
    for side, stream in (("training", train), ("held-out", held_out)):
        if not stream.numel():
            raise DataError(f"the {side} side of the {len(files)} files in {folder} is empty")
    return ByteCorpus(train, held_out, train_files, held_out_files)


def _read(paths: list[Path], folder: Path, limit: int | None) -> tuple[Tensor, tuple[str, ...]]:
    names = {path: path.relative_to(folder).as_posix() for path in paths}
    mixed = sorted(paths, key=lambda path: hashlib.sha256(b"order" + names[path].encode()).digest())
    parts: list[bytes] = []
    used: list[str] = []
    size = 0
    for path in mixed:
        if limit is not None and size >= limit:
            break
        text = path.read_bytes().replace(b"\r\n", b"\n") + b"\n\n"
        parts.append(text if limit is None else text[: limit - size])
        size += len(parts[-1])
        used.append(names[path])
    joined = bytearray(b"".join(parts))
    stream = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0)
    return stream.to(torch.int64), tuple(used)
