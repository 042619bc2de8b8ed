"""Opens PyTorch checkpoints of strangers: tensors and plain containers alone, nothing that could run code.

A pickle names functions to call. This loader knows a handful of names, those that rebuild tensors and
containers, and refuses a file that names anything else. `torch.load(weights_only=True)` would do, but for the
release's image checkpoint: it holds a configuration of the yacs library, a dict subclass, which
`weights_only` refuses even when its class is declared safe. Here it becomes a plain dict.
"""

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v2

from .errors import ConversionError


class PlainNode(dict[str, Any]):
    """Stands in for yacs.config.CfgNode: its entries, without its attributes and methods."""

    def __setstate__(self, state: object) -> None:
        """Ignores the attributes that the pickle wants to set."""


ADMITTED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,  # its name in pickles of protocol 2, which torch.save writes
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
    ("yacs.config", "CfgNode"): PlainNode,
}
"""Every name that a file may use. Storage classes are resolved by torch.load itself, from a closed list."""


class UnsafePickleError(ConversionError):
    """The file asks for something other than tensors and plain containers."""


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise UnsafePickleError(
                f"the pickle asks for {module}.{name}; only tensors and plain containers are admitted, "
                "as anything else could run code"
            )
        return ADMITTED[module, name]


def _refuse(*args: object, **kwargs: object) -> Any:
    raise UnsafePickleError("only the zip format that torch.save has written since PyTorch 1.6 is opened")


_PICKLE_MODULE = SimpleNamespace(
    __name__="seqpe_zoo.convert.safe_pickle", Unpickler=_RestrictedUnpickler, load=_refuse, loads=_refuse
)


def load_safely(path: Path) -> Any:
    """Loads what `torch.save` wrote, onto the CPU.

    Raises:
        UnsafePickleError: the file names a class or function that is not admitted, or has another format.
        ConversionError: the file is damaged.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise UnsafePickleError(
                f"{path.name} is not in the zip format that torch.save has written since PyTorch 1.6; "
                "such files are not opened"
            )
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise ConversionError(f"{path.name} is damaged: {error}") from error
    if "constants.pkl" in names:  # torch.load would run torch.jit.load
        raise UnsafePickleError(f"{path.name} is a TorchScript program, not a file of weights")
    try:
        return torch.load(path, map_location="cpu", pickle_module=_PICKLE_MODULE, weights_only=False)
    except UnsafePickleError as error:
        raise UnsafePickleError(f"{path.name} is refused: {error}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise ConversionError(f"{path.name} is damaged or no checkpoint: {error}") from error
