"""Opens PyTorch checkpoints of strangers: tensors and plain containers alone, nothing that could run code.

A pickle is a program. This loader knows a handful of its instructions and names, those that make tensors and
containers, and refuses a file that uses anything else. `torch.load(weights_only=True)` would do, but for two
things: the release's image checkpoint holds a configuration of the yacs library, a dict subclass, which
`weights_only` refuses even when its class is declared safe (here it becomes a plain dict), and neither it nor
the zip reader below it compares the sizes that a file claims with those that it has. Here memory and time
grow with the size of the file and with nothing that it says.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import torch

from .zoo_checkpoint import ConversionError

MAX_PICKLE_BYTES = 8 * 2**20
"""The pickle holds names and shapes only, the numbers are beside it; large models have one or two MiB."""

_KEY_TYPES = (str, int, float, bool, type(None))


class UnsafePickleError(ConversionError):
    """The file asks for something other than tensors and plain containers, or is damaged."""


class PlainNode(dict[str, Any]):
    """Stands in for yacs.config.CfgNode: its entries, without its attributes and methods."""

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        """Ignores the attributes that the pickle wants to set."""


def ordered_dict() -> OrderedDict[Any, Any]:
    """Returns an empty one, the only kind that pickles ask for."""
    return OrderedDict()


def plain_set(items: Any = ()) -> set[Any]:
    """Returns a set of names and numbers."""
    _require_keys(items)
    return set(items)


def _require_keys(keys: Any) -> None:
    """Refuses nested keys: to hash a tuple of tuples of tuples can take for ever."""
    if not all(type(key) in _KEY_TYPES for key in keys):
        raise UnsafePickleError("a key of a dict or member of a set is neither a name nor a number")


def rebuild_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
) -> torch.Tensor:
    """Returns a view of a storage, if the storage has as many numbers as the view."""
    numbers = (offset, *size, *stride)
    if not isinstance(storage, torch.Tensor) or len(size) != len(stride):
        raise UnsafePickleError("a tensor has no storage, or not a stride for each dimension")
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise UnsafePickleError("the size, stride or offset of a tensor is not a whole number")
    count, last = 1, offset
    for length, step in zip(size, stride, strict=True):
        count, last = count * length, last + (length - 1) * step
    if count and (count > storage.numel() or last >= storage.numel()):
        raise UnsafePickleError(f"a tensor needs more than the {storage.numel()} numbers stored for it")
    return storage.as_strided(size, stride, offset) if count else storage.new_empty(size)


ADMITTED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): ordered_dict,
    ("builtins", "set"): plain_set,
    ("__builtin__", "set"): plain_set,  # its name in pickles of protocol 2, which torch.save writes
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("yacs.config", "CfgNode"): PlainNode,
}
"""Every name that a file may call; storages are named by their type, below."""

STORAGES = {
    f"{name}Storage": getattr(torch, dtype)
    for name, dtype in (
        pair.split(":")
        for pair in """Double:float64 Float:float32 Half:float16 BFloat16:bfloat16 Long:int64 Int:int32
        Short:int16 Char:int8 Byte:uint8 Bool:bool ComplexFloat:complex64 ComplexDouble:complex128""".split()
    )
}

INSTRUCTIONS = """PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4
BINFLOAT BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE
TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT SETITEM SETITEMS BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE GLOBAL
STACK_GLOBAL REDUCE NEWOBJ BUILD BINPERSID""".split()
"""What `torch.save` writes, by the names of the module `pickle`."""


class _RestrictedUnpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]
    """Python's own reader, with fewer instructions; the one in C would reserve any memory a file names."""

    dispatch: ClassVar[dict[int, Any]] = {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]  # type: ignore[attr-defined]
        for name in INSTRUCTIONS
    }

    def __init__(self, content: bytes, read_storage: Any) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self.read_storage = read_storage
        self.storages: dict[str, torch.Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) not in ADMITTED:
            raise UnsafePickleError(
                f"the pickle asks for {module}.{name}; only tensors and plain containers are admitted, "
                "as anything else could run code"
            )
        return ADMITTED[module, name]

    def persistent_load(self, reference: Any) -> torch.Tensor:
        kind, dtype, key, _, count = reference
        if kind != "storage" or not isinstance(dtype, torch.dtype) or type(key) is not str:
            raise UnsafePickleError("it refers to something other than stored numbers")
        if key not in self.storages:
            content = self.read_storage(key)
            if len(content) != count * dtype.itemsize:
                raise UnsafePickleError(f"storage {key} has {len(content)} bytes, not {count} of {dtype}")
            self.storages[key] = (
                torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
            )
        elif (self.storages[key].dtype, self.storages[key].numel()) != (dtype, count):
            raise UnsafePickleError(f"storage {key} is named twice, with different types or sizes")
        return self.storages[key]

    def load_build(self) -> None:
        if not isinstance(self.stack[-2], OrderedDict | PlainNode):
            raise UnsafePickleError(f"the pickle changes a {type(self.stack[-2]).__name__} from within")
        super().load_build()

    def load_setitem(self) -> None:
        self._check_items(self.stack[-3], self.stack[-2:])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_items(self.metastack[-1][-1], self.stack)
        super().load_setitems()

    def _check_items(self, target: Any, items: list[Any]) -> None:
        if not isinstance(target, dict):
            raise UnsafePickleError(f"the pickle sets items of a {type(target).__name__}")
        _require_keys(items[::2])

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


def load_safely(path: Path) -> Any:
    """Loads what `torch.save` wrote, onto the CPU.

    Raises:
        UnsafePickleError: the file names a class or function that is not admitted, has another format, claims
            sizes that it does not have, or is damaged.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        try:
            return _load(file)
        except UnsafePickleError as error:
            raise UnsafePickleError(f"{path.name} is refused: {str(error)[:300]}") from None
        except Exception as error:  # reading a damaged pickle or zip can raise nearly anything
            detail = f"{type(error).__name__}: {error}"[:200]
            raise UnsafePickleError(f"{path.name} is damaged or no checkpoint ({detail})") from error


def _load(file: Any) -> Any:
    if not zipfile.is_zipfile(file):
        raise UnsafePickleError(
            "it is not in the zip format that torch.save has written since PyTorch 1.6; others are not opened"
        )
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if any(name.endswith("constants.pkl") for name in entries):
            raise UnsafePickleError("it is a TorchScript program, not a file of weights")
        sizes = [(entry.file_size, entry.compress_size) for entry in entries.values()]
        if any(file_size != size for file_size, size in sizes) or len(entries) != len(archive.infolist()):
            raise UnsafePickleError(
                "its zip entries are compressed or have the same name, which torch.save avoids"
            )
        if sum(size for size, _ in sizes) > file.seek(0, io.SEEK_END):
            raise UnsafePickleError("its zip entries claim to be larger than the file")
        root, *others = [name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")] or [
            ""
        ]
        if not root or others:
            raise UnsafePickleError("it has no data.pkl, or several")
        if entries[f"{root}data.pkl"].file_size > MAX_PICKLE_BYTES:
            raise UnsafePickleError(f"its pickle is larger than {MAX_PICKLE_BYTES >> 20} MiB")
        if f"{root}byteorder" in entries and archive.read(f"{root}byteorder") != b"little":
            raise UnsafePickleError("its numbers are not little-endian")
        content = archive.read(f"{root}data.pkl")
        return _RestrictedUnpickler(content, lambda key: archive.read(f"{root}data/{key}")).load()
