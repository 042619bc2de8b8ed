"""Text by one word, as a stream of tokens: `stdlib`, `wikitext-103`, `ORG/NAME:CONFIG`, a file, a folder.

Training and evaluation ask here, so that both mean the same by a name and a split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .byte_tokenizer import is_byte_tokenizer
from .errors import DataError
from .stdlib_text import load_stdlib_text
from .text_blocks import SPLITS, find_text_files, load_text_set, read_text_files, tokenize_stream
from .token_cache import SMALLEST, cached_stream, file_sha256, tokenizer_fingerprint

EMBEDDED = "stdlib"
WIKITEXT = "wikitext-103"


def open_token_stream(
    source: str, split: str, tokenizer: Any | None, max_tokens: int | None = None
) -> Tensor:
    """Reads a split as token numbers (N,); those of long texts are kept for the next time (`token_cache.py`).

    Args:
        source: `stdlib`, `wikitext-103`, `ORG/NAME:CONFIG`, a text file or a folder.
        split: "train", "validation" or "test".
        tokenizer: of the model; None reads the embedded text as bytes.
        max_tokens: read no more than so many tokens.

    Raises:
        DataError: there is no such text, or it needs a tokenizer.
    """
    if split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; choose one of {', '.join(SPLITS)}")
    if source == EMBEDDED and (tokenizer is None or is_byte_tokenizer(tokenizer)):
        return _stdlib_bytes(split, max_tokens)
    if tokenizer is None:
        raise DataError(
            f"the text {source!r} needs the model's tokenizer, and the model has none; "
            "put tokenizer.json beside its weights, or measure on stdlib, which is read as bytes"
        )
    return _tokens(_open_text(source, split), split, tokenizer, max_tokens)


@dataclass(frozen=True)
class _Text:
    """Lines of text, about how many bytes they have, and a function that gives a hash of them."""

    lines: Iterable[str]
    size: int
    fingerprint: Callable[[], Any]


def _open_text(source: str, split: str) -> _Text:
    if source == EMBEDDED:
        content = bytes(_stdlib_bytes(split, None).tolist())
        lines = content.decode("utf-8", errors="ignore").splitlines(keepends=True)
        return _Text(lines, len(content), lambda: hashlib.sha256(content).hexdigest())
    if source == WIKITEXT:
        rows = load_text_set(split)
    elif ":" in source and not Path(source).exists():
        rows = load_text_set(split, *source.split(":", 1))
    else:
        files = find_text_files(Path(source), split)
        size = sum(path.stat().st_size for path in files)
        return _Text(read_text_files(files), size, lambda: [file_sha256(path) for path in files])
    # `datasets` names a set by the version of its files and everything that was done to them.
    return _Text((row["text"] for row in rows), rows.data.nbytes, lambda: rows._fingerprint)


def _tokens(text: _Text, split: str, tokenizer: Any, limit: int | None) -> Tensor:
    """Cuts a text into tokens, or takes them from the cache."""

    def make() -> Tensor:
        return tokenize_stream(_enough(text.lines, limit), tokenizer)[:limit]

    tool = tokenizer_fingerprint(tokenizer)
    if tool is None or (text.size if limit is None else min(text.size, limit)) < SMALLEST:
        return make()
    facts = {"text": text.fingerprint(), "split": split, "tokenizer": tool, "max_tokens": limit}
    return cached_stream(facts, len(tokenizer), make)


def _enough(lines: Iterable[str], max_tokens: int | None) -> Iterator[str]:
    """Yields lines until they are sure to hold so many tokens: few tokens are longer than 16 characters."""
    characters = 0
    for line in lines:
        yield line
        characters += len(line)
        if max_tokens is not None and characters > 16 * max_tokens:
            return


def describe_text(source: str, split: str) -> dict[str, str]:
    """Returns what results call the text: name, id, split."""
    if source == EMBEDDED:
        return {"name": "source of the Python standard library", "id": "python-stdlib", "split": split}
    if source == WIKITEXT:
        return {
            "name": "WikiText-103",
            "id": "Salesforce/wikitext",
            "config": "wikitext-103-raw-v1",
            "split": split,
        }
    name = Path(source).name or source
    return {"name": name, "id": name if Path(source).exists() else source, "split": split}


def _stdlib_bytes(split: str, limit: int | None) -> Tensor:
    if split == "train":
        return load_stdlib_text(max_train_bytes=limit).train
    held_out = load_stdlib_text(max_train_bytes=1).held_out
    half = held_out.numel() // 2
    return (held_out[:half] if split == "validation" else held_out[half:])[:limit]
