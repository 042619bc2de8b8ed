"""Splits data that comes without splits: a folder of books, a file of questions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from .errors import DataError
from .names import read_json
from .text_blocks import SPLITS, find_text_files

FEWEST_TEXTS = 3
QUESTION_SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}


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


def split_questions(source: Path, target: Path) -> dict[str, Path]:
    """Splits a SQuAD-format file by article, so that no paragraph is in two splits; returns the files.

    Raises:
        DataError: the file is missing, not of SQuAD's structure, or has too few articles.
    """
    if not source.is_file():
        raise DataError(f"{source} does not exist; give a SQuAD-format JSON file")
    content = read_json(source)
    articles = content.get("data")
    if not isinstance(articles, list):
        raise DataError(f"{source} is not SQuAD-format JSON with a list `data`")
    if len(articles) < 10:
        raise DataError(f"{source} has {len(articles)} articles; at least 10 are needed to split by article")
    target.mkdir(parents=True, exist_ok=True)
    files, first, share = {}, 0, 0.0
    for split, own in QUESTION_SHARES.items():
        share += own
        last = round(len(articles) * share)
        files[split] = target / f"{source.stem}.{split}.json"
        part = {**content, "data": articles[first:last]}
        files[split].write_text(json.dumps(part), encoding="utf-8")
        first = last
    return files
