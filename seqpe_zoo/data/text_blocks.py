"""Text as one stream of tokens, cut into blocks: WikiText-103, local text files, or the embedded byte corpus.

The release cuts inside map batches, loses the last full block and restarts at six shard borders; here the
stream is whole, every token is in exactly one block and the shorter tail is kept. Targets are the next tokens
of the stream, so that the last token of a block has a target as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .errors import DataError

WIKITEXT = ("Salesforce/wikitext", "wikitext-103-raw-v1")
SPLITS = ("train", "validation", "test")
_FILE_NAMES = {
    "train": ("train", "training", "wiki.train"),
    "validation": ("validation", "valid", "val", "wiki.valid"),
    "test": ("test", "wiki.test"),
}
_SUFFIXES = (".txt", ".tokens", ".raw")
LINES_AT_ONCE = 2000
_IGNORED = -100


def find_text_files(source: Path, split: str) -> list[Path]:
    """Finds the text of a split: a file itself, or in a folder `train.txt`, `valid.txt`, or `train/*.txt`.

    Raises:
        DataError: nothing is there, or the folder has no such split; lists what it has.
    """
    if split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; choose one of {', '.join(SPLITS)}")
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError(
            f"{source} does not exist; give a text file, or a folder with train.txt, valid.txt, test.txt"
        )
    for name in _FILE_NAMES[split]:
        folder = source / name
        if folder.is_dir():
            files = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES)
            if files:
                return files
        for path in sorted(source.iterdir()):
            if path.is_file() and path.suffix in _SUFFIXES and f"{path.name}.".startswith(f"{name}."):
                return [path]
    there = ", ".join(sorted(path.name for path in source.iterdir())[:12]) or "nothing"
    raise DataError(
        f"{source} has no text of the split {split!r}; expected {_FILE_NAMES[split][0]}.txt or a folder "
        f"{_FILE_NAMES[split][0]}/ of .txt files, found {there}"
    )


def read_text_files(paths: Sequence[Path]) -> Iterator[str]:
    """Yields the lines of files, line ends included.

    Raises:
        DataError: a file is not UTF-8 text.
    """
    for path in paths:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                yield from file
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8 text (byte {error.start}); convert it or leave it out"
            ) from error


def load_text_set(split: str, name: str = WIKITEXT[0], config: str = WIKITEXT[1]) -> Any:
    """Opens WikiText-103 (or another text set of the Hub) through `datasets`; rows have a column `text`.

    Raises:
        DataError: `datasets` is not installed, it cannot find or fetch the set, or there is no such column.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DataError("WikiText-103 is read through `datasets`: pip install 'seqpe-zoo[train]'") from error
    try:
        rows = load_dataset(name, config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"cannot load {name} ({config}), split {split!r}: {str(error).splitlines()[0]}. "
            "Without access to the Hub, give a folder with train.txt, valid.txt and test.txt as data.source"
        ) from error
    if "text" not in rows.column_names:
        raise DataError(f"{name} ({config}) has no column 'text'; it has {', '.join(rows.column_names)}")
    return rows


def tokenize_stream(lines: Iterable[str], tokenizer: Any) -> Tensor:
    """Tokenizes line by line, without special tokens, into one stream (N,) of int64, as the release.

    Raises:
        DataError: the text is empty.
    """
    parts = []
    filled = filter(None, lines)
    while batch := list(islice(filled, LINES_AT_ONCE)):
        encoded = tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]
        parts.append(torch.tensor([token for line in encoded for token in line], dtype=torch.int64))
    if not any(part.numel() for part in parts):
        raise DataError("the text is empty: no tokens to cut into blocks")
    return torch.cat(parts)


class TextBlocks(Dataset[dict[str, Tensor]]):
    """A stream cut into non-overlapping blocks.

    Items have `input_ids`, `labels` (the same tokens, from which transformers would take its targets) and
    `shift_labels` (the next tokens of the stream), which models that pass their keyword arguments on to
    `loss_function` use instead: so every token but the first is a target. The last, shorter block is padded,
    with targets of -100.

    Args:
        stream: (N,) token numbers.
        length: tokens of a block.
    """

    def __init__(self, stream: Tensor, length: int) -> None:
        if length < 1:
            raise DataError(f"a block of {length} tokens is impossible; give at least 1")
        self.stream, self.length = stream, length
        self.count = -(-(stream.numel() - 1) // length)  # the last token is a target only
        if self.count < 1:
            raise DataError(f"a stream of {stream.numel()} tokens has nothing to predict; use more text")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        first = index * self.length
        piece = self.stream[first : first + self.length + 1].to(torch.int64)  # kept streams are int32
        inputs, targets = piece[:-1], piece[1:]
        missing = self.length - inputs.numel()
        if missing:
            inputs = torch.nn.functional.pad(inputs, (0, missing))
            targets = torch.nn.functional.pad(targets, (0, missing), value=_IGNORED)
        return {"input_ids": inputs, "labels": inputs, "shift_labels": targets}
