"""A checkpoint of a stranger cannot run code."""

import io
import os
import pickle
import resource
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from seqpe_zoo.convert.safe_pickle import UnsafePickleError, load_safely
from tests.mutants import mutants

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
        with pytest.raises(UnsafePickleError, match=name):
            load_safely(tmp_path / name)


# Files that claim more than they have, or damage an instruction -----------------------------------


def archive_of(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """Writes a checkpoint with this pickle and a storage of four float32 numbers."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/data/0", torch.arange(4.0).numpy().tobytes())
    return path


def tensor_pickle(numbers: int = 4, size: tuple = (4,), stride: tuple = (1,), offset: int = 0) -> bytes:
    """A tensor as torch.save writes it, with figures of one's own."""

    class Storage:
        pass

    class View:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Storage(), offset, size, stride, False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: object):
            return ("storage", torch.FloatStorage, "0", "cpu", numbers) if isinstance(item, Storage) else None

    file = io.BytesIO()
    Pickler(file, protocol=2).dump({"weight": View()})
    return file.getvalue()


def test_figures_that_fit_the_storage_are_loaded(tmp_path: Path) -> None:
    content = tensor_pickle(size=(2, 2), stride=(1, 2))
    loaded = load_safely(archive_of(tmp_path / "run.pth", content))
    assert loaded["weight"].tolist() == [[0.0, 2.0], [1.0, 3.0]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tensor_pickle(numbers=2**32), "has 16 bytes, not 4294967296"),
        (tensor_pickle(size=(2**33,)), "more than the 4 numbers"),
        (tensor_pickle(size=(2**33,), stride=(0,)), "more than the 4 numbers"),
        (tensor_pickle(size=(2, 2), stride=(8, 1)), "more than the 4 numbers"),
        (tensor_pickle(offset=1), "more than the 4 numbers"),
        (tensor_pickle(stride=(-1,)), "not a whole number"),
        (tensor_pickle(size=(2.5,)), "not a whole number"),
        (b"\x80\x02}\x96" + (2**40).to_bytes(8, "little") + b".", "damaged"),  # BYTEARRAY8 of a terabyte
        (b"\x80\x02X\xff\xff\xff\x7fab.", "damaged"),  # a text of two gigabytes
        (b"\x80\x02X\x02\x00\x00\x00\xff\xfe.", "UnicodeDecodeError"),
        (b"\x80\x02\x8b\xff\xff\xff\x7fab.", "damaged"),  # a number of two gigabytes
        (b"\x80\x02}h\x07.", "damaged"),  # a memo that was never made
        (b"\x80\x02}(K\x01\x85\x85K\x01u.", "neither a name nor a number"),
        (b"\x80\x02" + b"(" * 100_000 + b".", "damaged"),
        (b"", "damaged"),
    ],
)
def test_impossible_claims_are_refused_in_words(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(UnsafePickleError, match=rf"run\.pth is .*{words}"):
        load_safely(archive_of(tmp_path / "run.pth", content))


def test_small_files_never_take_gigabytes(tmp_path: Path) -> None:
    """The reader in C would reserve 16 GB for the memo of the first; a zip bomb is the second."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memo = archive_of(tmp_path / "memo.pth", b"\x80\x02}r\xff\xff\xff\x7f.")
    assert load_safely(memo) == {}
    bomb = archive_of(tmp_path / "bomb.pth", b"\x80\x02}" + b"0" * 10**7, zipfile.ZIP_DEFLATED)
    with pytest.raises(UnsafePickleError, match="compressed"):
        load_safely(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 2**10  # KiB


def plain_bytes(value: object) -> int:
    """Returns the bytes of all tensors in a tree; it has nothing but tensors and plain values."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, dict):
        return sum(plain_bytes(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set):
        return sum(map(plain_bytes, value))
    assert type(value) in (str, bytes, int, float, bool, type(None)), type(value)
    return 0


def test_mutants_load_as_plain_values_or_are_refused(tmp_path: Path) -> None:
    with yacs() as node:
        saved = {
            "model": OrderedDict(a=torch.randn(3), b=torch.ones(2, 2)),
            "config": node({"A": [1, (2.5,)]}),
        }
        torch.save(saved, tmp_path / "run.pth")
    whole = (tmp_path / "run.pth").read_bytes()
    start = whole.index(b"\x80\x02")
    end = whole.index(b"PK", start)
    path, loaded = tmp_path / "mutant.pth", 0
    pickles = [*mutants(whole[start : whole.rindex(b".", start, end) + 1], 400)]
    for number, mutant in enumerate([*mutants(whole, 200), *pickles]):
        path.write_bytes(mutant) if number < 200 else archive_of(path, mutant)
        try:
            assert plain_bytes(load_safely(path)) <= len(mutant) + 16
            loaded += 1
        except UnsafePickleError as error:
            assert "mutant.pth is " in str(error)  # noqa: PT017
    assert loaded  # some changes do no harm: of a name, or of what the zip does not use
