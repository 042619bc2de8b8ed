"""Text by one word, as a stream of tokens: `stdlib`, `wikitext-103`, `ORG/NAME:CONFIG`, a file, a folder.

Training and evaluation ask here, so that both mean the same by a name and a split.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from .errors import DataError
from .stdlib_text import load_stdlib_text
from .text_blocks import SPLITS, find_text_files, load_wikitext, read_text_files, tokenize_stream

EMBEDDED = "stdlib"
WIKITEXT = "wikitext-103"


def open_token_stream(
    source: str, split: str, tokenizer: Any | None, max_tokens: int | None = None
) -> Tensor:
    """Reads a split as token numbers (N,).

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
    is_bytes = tokenizer is None or len(tokenizer) == 256
    if source == EMBEDDED:
        stream = _stdlib_bytes(split, max_tokens)
        if is_bytes:
            return stream
        text = bytes(stream.tolist()).decode("utf-8", errors="ignore")
        return tokenize_stream(text.splitlines(keepends=True), tokenizer)[:max_tokens]
    if tokenizer is None:
        raise DataError(
            f"the text {source!r} needs the model's tokenizer, and the model has none; "
            "put tokenizer.json beside its weights, or measure on stdlib, which is read as bytes"
        )
    return tokenize_stream(_lines(source, split, max_tokens), tokenizer)[:max_tokens]


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


def _lines(source: str, split: str, max_tokens: int | None) -> Iterator[str]:
    if source == WIKITEXT:
        lines = load_wikitext(split)
    elif ":" in source and not Path(source).exists():
        name, config = source.split(":", 1)
        lines = load_wikitext(split, name, config)
    else:
        lines = read_text_files(find_text_files(Path(source), split))
    # Tokens are seldom longer than 16 characters: reading so many characters is enough.
    characters = 0
    for line in lines:
        yield line
        characters += len(line)
        if max_tokens is not None and characters > 16 * max_tokens:
            return
