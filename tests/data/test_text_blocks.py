from pathlib import Path

import pytest
import torch

from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.text_blocks import (
    TextBlocks,
    find_text_files,
    load_text_set,
    read_text_files,
    tokenize_stream,
)


def test_every_token_but_the_first_is_a_target_once() -> None:
    blocks = TextBlocks(torch.arange(100, 125), length=8)
    targets = torch.cat([item["shift_labels"] for item in blocks])
    assert targets[targets >= 0].tolist() == list(range(101, 125))


def test_exact_multiple_keeps_its_last_block() -> None:
    assert len(TextBlocks(torch.arange(25), length=8)) == 3


def test_tail_is_kept_and_padded_without_targets() -> None:
    blocks = TextBlocks(torch.arange(100, 121), length=8)
    assert len(blocks) == 3
    assert blocks[2]["input_ids"].tolist() == [116, 117, 118, 119, 0, 0, 0, 0]
    assert blocks[2]["shift_labels"].tolist() == [117, 118, 119, 120, -100, -100, -100, -100]


def test_stream_of_one_token_is_refused() -> None:
    with pytest.raises(DataError, match="1 tokens has nothing to predict"):
        TextBlocks(torch.arange(1), length=8)


@pytest.mark.parametrize("name", ["valid.txt", "validation.txt", "wiki.valid.tokens", "wiki.valid.raw"])
def test_validation_text_is_found_by_its_usual_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("some text\n")
    (tmp_path / "validated_by.md").write_text("not this")
    assert find_text_files(tmp_path, "validation") == [tmp_path / name]


def test_folder_of_a_split_is_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for name in ("b.txt", "a.txt"):
        (tmp_path / "train" / name).write_text(f"{name}\n")
    assert list(read_text_files(find_text_files(tmp_path, "train"))) == ["a.txt\n", "b.txt\n"]


def test_missing_split_is_named_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("x")
    with pytest.raises(DataError, match=r"no text of the split 'test'.*found train.txt"):
        find_text_files(tmp_path, "test")


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        find_text_files(tmp_path / "absent", "train")


def test_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split 'dev' is unknown"):
        find_text_files(tmp_path, "dev")


def test_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"abc\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        list(read_text_files([tmp_path / "train.txt"]))


def test_lines_are_joined_to_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpe_zoo.data.text_blocks.LINES_AT_ONCE", 1)
    lines = ["ab\n", "", "c\n"]
    assert tokenize_stream(lines, build_byte_tokenizer()).tolist() == list(b"ab\nc\n")


def test_empty_text_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        tokenize_stream(["", ""], build_byte_tokenizer())


def test_set_that_cannot_be_fetched_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.source"):
        load_text_set("train", name=str(tmp_path / "absent"), config="none")
