import errno
from pathlib import Path

import pytest

from seqpe_zoo.training.checkpoints import (
    MARK,
    DiskFullError,
    check_room,
    is_complete,
    is_disk_full,
    list_checkpoints,
    mark_complete,
    remove_incomplete,
    rotate,
)


def checkpoint(run: Path, step: int, complete: bool = True) -> Path:
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * step)
    (folder / "optimizer.pt").write_bytes(b"y")
    if complete:
        mark_complete(folder)
    return folder


def test_marked_checkpoint_is_complete(tmp_path: Path) -> None:
    assert is_complete(checkpoint(tmp_path, 5))


@pytest.mark.parametrize("harm", ["no mark", "short file", "missing file", "wrong mark"])
def test_harmed_checkpoint_is_not_complete(tmp_path: Path, harm: str) -> None:
    folder = checkpoint(tmp_path, 5, complete=harm != "no mark")
    if harm == "short file":
        (folder / "model.safetensors").write_bytes(b"x")
    elif harm == "missing file":
        (folder / "optimizer.pt").unlink()
    elif harm == "wrong mark":
        (folder / MARK).write_text("{")
    assert not is_complete(folder)


def test_complete_ones_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step, complete in ((9, True), (10, True), (100, False)):
        checkpoint(tmp_path, step, complete)
    (tmp_path / "checkpoint-best").mkdir()
    assert [path.name for path in list_checkpoints(tmp_path, complete=True)] == [
        "checkpoint-9",
        "checkpoint-10",
    ]
    assert list_checkpoints(tmp_path / "absent") == []


def test_half_written_ones_are_cleared_away(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    checkpoint(tmp_path, 2, complete=False)
    assert remove_incomplete(tmp_path) == ["checkpoint-2"]
    assert (tmp_path / "checkpoint-1").is_dir()


def test_rotation_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoint(tmp_path, step)
    rotate(tmp_path, keep=2, protected=[str(tmp_path / "checkpoint-1"), None])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-1",
        "checkpoint-3",
        "checkpoint-4",
    ]


def test_full_disk_is_recognised() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk_full(
        RuntimeError("[enforce fail at inline_container.cc] . PytorchStreamWriter failed: file write failed")
    )
    assert not is_disk_full(RuntimeError("shape mismatch"))


def test_checkpoint_that_cannot_fit_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="--resume"):
        check_room(tmp_path / "run", 2**70)
    check_room(tmp_path / "run", 1)
