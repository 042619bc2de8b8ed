"""Token streams that are kept on the disk, so that a long text is cut into tokens once on a machine.

A stream is found by a hash of everything that it depends on: the text, the split, the tokenizer. Files are
safetensors, mapped into memory and not copied, so that all processes of a machine share one copy. A file that
is damaged or was made for something else is ignored and written anew. The folder is `SEQPE_ZOO_CACHE`, by
default `~/.cache/seqpe_zoo`; it may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)
FORMAT = 1
"""Raised when the way from text to tokens changes."""
SMALLEST = 2**18
"""Bytes of text. Shorter texts are read in a second; keeping their tokens would only fill the folder."""
_TENSOR = "tokens"


def cache_folder() -> Path:
    """Returns where things are kept that can be made again."""
    named = os.environ.get("SEQPE_ZOO_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "seqpe_zoo"


def tokenizer_fingerprint(tokenizer: Any) -> str | None:
    """Returns a hash of what a tokenizer does to text, None for one that is not of the tokenizers library."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        return None
    import tokenizers

    content = json.loads(backend.to_str())
    for passing in ("truncation", "padding"):  # of the last call, not of the tokenizer
        content.pop(passing, None)
    return _digest([tokenizers.__version__, content])


def file_sha256(path: Path) -> str:
    """Returns the sha256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def cached_stream(facts: Mapping[str, Any], vocabulary: int, make: Callable[[], Tensor]) -> Tensor:
    """Returns a stream from the cache, or makes and keeps it.

    Processes that ask at the same time wait for the first of them.

    Args:
        facts: everything that the stream depends on, as JSON can write it.
        vocabulary: tokens are numbers below it.
        make: makes the stream (N,).

    Returns:
        Token numbers (N,), int32 from the cache; where nothing can be kept, as `make` gave them.
    """
    from filelock import FileLock

    key = json.dumps({"format": FORMAT, **facts}, sort_keys=True)
    path = cache_folder() / f"tokens-{_digest(key)[:32]}.safetensors"
    stream = _read(path, key, vocabulary)
    if stream is not None:
        return stream
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        logger.warning("tokens cannot be kept in %s: %s", path.parent, error)
        return make()
    try:
        stream = _read(path, key, vocabulary)  # another process may have made it while this one waited
        if stream is not None:
            return stream
        stream = make()
        _write(path, key, stream)
        kept = _read(path, key, vocabulary)
        return stream if kept is None else kept
    finally:
        lock.release()


def _read(path: Path, key: str, vocabulary: int) -> Tensor | None:
    """Opens a file of the cache; None if it is not there, not whole, or not what the key describes."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            stream = file.get_tensor(_TENSOR)
    except (OSError, SafetensorError) as error:
        logger.warning("%s cannot be read and is made anew: %s", path, error)
        return None
    is_ours = facts.get("key") == key and stream.dtype == torch.int32 and stream.ndim == 1 and stream.numel()
    if not is_ours or facts.get("checksum") != _checksum(stream):
        logger.warning("%s is damaged or of another origin and is made anew", path)
        return None
    if int(stream.min()) < 0 or int(stream.max()) >= vocabulary:
        logger.warning("%s has tokens that the tokenizer does not have and is made anew", path)
        return None
    return stream


def _write(path: Path, key: str, stream: Tensor) -> None:
    """Writes a stream; the file appears whole or not at all. A full disk is no reason to stop."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    small = stream.to(torch.int32).contiguous()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file({_TENSOR: small}, temporary, {"key": key, "checksum": _checksum(small)})
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        logger.warning("tokens cannot be kept in %s: %s", path.parent, error)
        temporary.unlink(missing_ok=True)


def _checksum(stream: Tensor) -> str:
    return f"{zlib.crc32(memoryview(stream.numpy())):08x}"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
