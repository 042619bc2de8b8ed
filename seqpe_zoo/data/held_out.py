"""Splits data that comes without splits: a folder of books."""

from __future__ import annotations

import shutil
from pathlib import Path

from .errors import DataError
from .text_blocks import SPLITS, find_text_files

FEWEST_TEXTS = 3


def split_texts(source: Path, target: Path) -> Path:
    """Makes a folder `train/*.txt`, `validation.txt`, `test.txt` of whole texts, and returns it.

    The two shortest texts are held out, the shorter of them for validation, so that most text is trained
    on. A folder that has splits already is returned as it is.

    Raises:
        DataError: there are fewer than three texts.
    """
    try:
        for split in SPLITS:
            find_text_files(source, split)
    except DataError:
        pass
    else:
        if source.is_dir():
            return source
    texts = sorted(source.glob("*.txt"), key=lambda path: (path.stat().st_size, path.name))
    if len(texts) < FEWEST_TEXTS:
        raise DataError(
            f"{source} has {len(texts)} .txt files; give a folder with at least {FEWEST_TEXTS}, two of which "
            "are held out, or with train, validation and test texts"
        )
    (target / "train").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(texts[0], target / "validation.txt")
    shutil.copyfile(texts[1], target / "test.txt")
    for path in texts[2:]:
        shutil.copyfile(path, target / "train" / path.name)
    return target
