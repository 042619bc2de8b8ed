"""Checkpoints that are atomic: complete, or ignored; and the lock of a run folder.

A checkpoint counts once it holds `complete.json`, written last, with size and checksum of every file, all
flushed to the disk. A process killed at any moment leaves either such a folder or one that is cleared away.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from ..data.token_cache import file_sha256
from .strict_config import ConfigError

MARK = "complete.json"
LOCK = ".lock"
LOCK_SECONDS = 7
"""Processes that load data for a killed run hold its lock for up to five seconds longer."""
_NAME = re.compile(r"checkpoint-(\d+)")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(RuntimeError):
    """There is no room for a checkpoint; the last complete one is untouched."""

    exit_code = 32


def lock_run(folder: Path) -> FileLock:
    """Locks a run folder until the lock is released or the process ends, however it ends.

    Raises:
        ConfigError: another process is training there.
    """
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout as error:
        raise ConfigError(
            f"another process is training in {folder}: wait for it, or give another training.output"
        ) from error
    except OSError as error:
        raise ConfigError(f"training.output={folder} cannot be written: {error.strerror}") from error
    return lock


def write_atomically(path: Path, text: str) -> None:
    """Writes a small file so that it is there with all of its content, or as it was before."""
    temporary = path.with_name(f".{path.name}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def mark_complete(folder: Path) -> None:
    """Flushes all files of a checkpoint to the disk and marks it as complete."""
    sizes, checksums = {}, {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MARK:
            name = path.relative_to(folder).as_posix()
            with path.open("rb") as file:
                os.fsync(file.fileno())
            checksums[name] = file_sha256(path)
            sizes[name] = path.stat().st_size
    write_atomically(folder / MARK, json.dumps({"files": sizes, "sha256": checksums}, indent=1))


def is_complete(folder: Path) -> bool:
    """Tells whether a checkpoint was finished and still has all its files in full size."""
    try:
        sizes = json.loads((folder / MARK).read_text(encoding="utf-8"))["files"]
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def damaged_files(folder: Path) -> list[str]:
    """Returns the files of a complete checkpoint that are not as they were written."""
    checksums = json.loads((folder / MARK).read_text(encoding="utf-8")).get("sha256", {})
    damaged = [name for name, checksum in checksums.items() if file_sha256(folder / name) != checksum]
    try:  # checkpoints of earlier versions have no checksums
        json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        damaged.append("trainer_state.json")
    return sorted(set(damaged))


def step_of(folder: Path) -> int:
    """Returns the step of a checkpoint folder, -1 for other folders."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else -1


def list_checkpoints(run: Path, complete: bool = False) -> list[Path]:
    """Returns the checkpoint folders of a run in the order of their steps: all, or the complete ones."""
    if not run.is_dir():
        return []
    found = sorted((path for path in run.iterdir() if path.is_dir() and step_of(path) >= 0), key=step_of)
    return [path for path in found if is_complete(path)] if complete else found


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
    for path in list_checkpoints(run, complete=True)[:-keep]:
        if path.name not in safe:
            (path / MARK).unlink()
            shutil.rmtree(path, ignore_errors=True)


def is_disk_full(error: BaseException) -> bool:
    """Recognises a full disk in the errors of Python, torch and safetensors."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    text = f"{error} {error.__cause__ or ''} {error.__context__ or ''}".lower()
    return any(words in text for words in ("no space left", "os error 28", "file write failed", "disk quota"))


def free_bytes(folder: Path) -> int:
    """Returns what is free on the disk of a folder that may not exist yet."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def check_room(folder: Path, needed: int) -> None:
    """Refuses to begin a checkpoint that cannot fit.

    Raises:
        DiskFullError: less than `needed` bytes are free.
    """
    free = free_bytes(folder)
    if free < needed:
        raise DiskFullError(
            f"a checkpoint needs {needed / 2**20:,.0f} MiB and {free / 2**20:,.0f} MiB are free on the disk "
            f"of {folder}; make room, or give another training.output, and start again with --resume"
        )
