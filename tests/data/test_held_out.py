import json
from pathlib import Path

import pytest

from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.held_out import split_questions, split_texts
from seqpe_zoo.data.text_blocks import find_text_files
from seqpe_zoo.data.trained_tokenizer import train_tokenizer


def test_the_two_shortest_texts_are_held_out(tmp_path: Path) -> None:
    source = tmp_path / "books"
    source.mkdir()
    for name, words in (("long", 50), ("short", 2), ("middle", 10), ("longest", 90)):
        (source / f"{name}.txt").write_text("word " * words)
    folder = split_texts(source, tmp_path / "split")
    assert (folder / "validation.txt").read_text() == "word " * 2
    assert (folder / "test.txt").read_text() == "word " * 10
    assert [path.name for path in find_text_files(folder, "train")] == ["long.txt", "longest.txt"]


def test_folder_with_splits_stays_as_it_is(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(name)
    assert split_texts(tmp_path, tmp_path / "split") == tmp_path
    assert not (tmp_path / "split").exists()


def test_too_few_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one")
    with pytest.raises(DataError, match=r"has 1 \.txt files; give a folder with at least 3"):
        split_texts(tmp_path, tmp_path / "split")


def test_articles_are_in_one_split_each(tmp_path: Path) -> None:
    source = tmp_path / "squad.json"
    source.write_text(json.dumps({"version": "1.1", "data": [{"title": str(n)} for n in range(20)]}))
    files = split_questions(source, tmp_path / "split")
    titles = {
        split: [article["title"] for article in json.loads(path.read_text())["data"]]
        for split, path in files.items()
    }
    assert [len(part) for part in titles.values()] == [14, 2, 4]
    together = [title for part in titles.values() for title in part]
    assert together == [str(number) for number in range(20)]


@pytest.mark.parametrize("content", ["[]", "{", '{"data": []}'])
def test_file_that_cannot_be_split_is_refused(tmp_path: Path, content: str) -> None:
    source = tmp_path / "squad.json"
    source.write_text(content)
    with pytest.raises(DataError, match=r"SQuAD-format|articles|JSON"):
        split_questions(source, tmp_path / "split")


def test_trained_tokenizer_gives_text_back(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = train_tokenizer(["the cat sat on the mat\n"] * 50, 300)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    ids = again("the cat sat – naïve?").input_ids
    assert again.decode(ids) == "the cat sat – naïve?"
    assert len(again("the cat").input_ids) < len("the cat")
    assert again.eos_token == "<|endoftext|>"
