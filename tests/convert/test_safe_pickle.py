"""A checkpoint of a stranger cannot run code."""

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from seqpe_zoo.convert.errors import ConversionError
from seqpe_zoo.convert.safe_pickle import UnsafePickleError, load_safely

from .release import yacs


class RunsCommand:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


class Evaluates:
    def __reduce__(self):
        return eval, ("__import__('pathlib').Path('harm').touch()",)


def test_tensors_containers_and_yacs_nodes_are_loaded(tmp_path: Path) -> None:
    state = OrderedDict(weight=torch.randn(3, 2), half=torch.ones(2, dtype=torch.float16))
    with yacs() as node:
        config = node({"MODEL": {"DEPTH": 12}, "names": ["a"], "pair": (1, 2)})
        torch.save({"model": state, "config": config, "seen": {1, 2}, "best": 81.2}, tmp_path / "run.pth")
    loaded = load_safely(tmp_path / "run.pth")
    assert torch.equal(loaded["model"]["weight"], state["weight"])
    assert loaded["model"]["half"].dtype == torch.float16
    assert loaded["config"] == {"MODEL": {"DEPTH": 12}, "names": ["a"], "pair": (1, 2)}
    assert not hasattr(loaded["config"], "__immutable__")
    assert (loaded["seen"], loaded["best"]) == ({1, 2}, 81.2)


def test_weights_only_would_not_have_opened_it(tmp_path: Path) -> None:
    with yacs() as node:
        torch.save({"config": node({"DEPTH": 12})}, tmp_path / "run.pth")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "run.pth", weights_only=True)


@pytest.mark.parametrize("hostile", [RunsCommand("touch harm"), Evaluates()], ids=["os.system", "eval"])
def test_hostile_pickle_is_refused_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: object
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {"weight": torch.ones(1)}, "extra": hostile}, "run.pth")
    with pytest.raises(UnsafePickleError, match=r"run\.pth is refused.*(system|eval)"):
        load_safely(Path("run.pth"))
    assert not Path("harm").exists()


@pytest.mark.parametrize(
    "named",
    [torch.nn.Linear, torch.load, pickle.loads, getattr, torch.jit.load, zipfile.ZipFile],
)
def test_any_name_that_is_not_admitted_is_refused(tmp_path: Path, named: object) -> None:
    torch.save({"model": named}, tmp_path / "run.pth")
    with pytest.raises(UnsafePickleError, match="only tensors and plain containers"):
        load_safely(tmp_path / "run.pth")


def test_plain_and_old_pickles_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(RunsCommand("touch harm")))
    torch.save({"a": torch.ones(1)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for name in ("plain.pth", "old.pth"):
        with pytest.raises(UnsafePickleError, match="zip format"):
            load_safely(tmp_path / name)


def test_torchscript_is_not_run(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), tmp_path / "script.pth")
    with pytest.raises(UnsafePickleError, match="TorchScript"):
        load_safely(tmp_path / "script.pth")


def test_damaged_file_is_reported(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(100)}, tmp_path / "run.pth")
    content = (tmp_path / "run.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(content[: len(content) // 2])
    with zipfile.ZipFile(tmp_path / "other.pth", "w") as archive:
        archive.writestr("readme.txt", "no checkpoint")
    for name in ("cut.pth", "other.pth"):
        with pytest.raises(ConversionError, match=name):
            load_safely(tmp_path / name)
