"""Checkpoints that are whole or do not count.

A checkpoint counts once it holds `complete.json`, written last, with the size of every file, all flushed to
the disk. A process killed at any moment leaves either such a folder or one that is ignored and cleared away.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

MARK = "complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(RuntimeError):
    """There is no room for a checkpoint; the last complete one is untouched."""


def mark_complete(folder: Path) -> None:
    """Flushes all files of a checkpoint to the disk and marks it as complete."""
    sizes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MARK:
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    temporary = folder / f".{MARK}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"files": sizes}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / MARK)


def is_complete(folder: Path) -> bool:
    """Tells whether a checkpoint was finished and still has all its files in full size."""
    try:
        sizes = json.loads((folder / MARK).read_text(encoding="utf-8"))["files"]
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def step_of(folder: Path) -> int:
    """Returns the step of a checkpoint folder, -1 for other folders."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else -1


def list_checkpoints(run: Path) -> list[Path]:
    """Returns all checkpoint folders of a run, complete or not, in the order of their steps."""
    if not run.is_dir():
        return []
    return sorted((path for path in run.iterdir() if path.is_dir() and step_of(path) >= 0), key=step_of)


def last_complete_checkpoint(run: Path) -> Path | None:
    """Returns the complete checkpoint of the largest step, None when there is none."""
    return next((path for path in reversed(list_checkpoints(run)) if is_complete(path)), None)


def remove_incomplete(run: Path) -> list[str]:
    """Clears half-written checkpoints away; returns their names."""
    broken = [path for path in list_checkpoints(run) if not is_complete(path)]
    for path in broken:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in broken]


def rotate(run: Path, keep: int, protected: Iterable[str | Path | None] = ()) -> None:
    """Deletes old complete checkpoints beyond the last `keep`, except protected ones.

    A folder loses its mark first, so that a kill in between leaves nothing that looks complete.
    """
    safe = {Path(path).name for path in protected if path is not None}
    complete = [path for path in list_checkpoints(run) if is_complete(path)]
    for path in complete[:-keep]:
        if path.name not in safe:
            (path / MARK).unlink()
            shutil.rmtree(path, ignore_errors=True)


def is_disk_full(error: BaseException) -> bool:
    """Recognises a full disk in the errors of Python, torch and safetensors."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    text = f"{error} {error.__cause__ or ''} {error.__context__ or ''}".lower()
    return any(words in text for words in ("no space left", "os error 28", "file write failed", "disk quota"))


def check_room(folder: Path, needed: int) -> None:
    """Refuses to begin a checkpoint that cannot fit.

    Raises:
        DiskFullError: less than `needed` bytes are free.
    """
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise DiskFullError(
            f"a checkpoint needs {needed / 2**20:,.0f} MiB and {free / 2**20:,.0f} MiB are free on the disk "
            f"of {folder}; make room, or give another training.output, and start again with --resume"
        )
