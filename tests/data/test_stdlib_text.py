from pathlib import Path

import pytest

from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.stdlib_text import list_source_files, load_stdlib_text, stdlib_folder


def test_no_file_is_on_both_sides() -> None:
    corpus = load_stdlib_text(max_train_bytes=300_000, max_held_out_bytes=100_000)
    assert not set(corpus.train_files) & set(corpus.held_out_files)


def test_limits_are_kept_and_tokens_are_bytes() -> None:
    corpus = load_stdlib_text(max_train_bytes=50_000, max_held_out_bytes=10_000)
    assert (corpus.train.numel(), corpus.held_out.numel()) == (50_000, 10_000)
    assert corpus.train.min() >= 0
    assert corpus.train.max() < 256


def test_stream_is_the_text_of_its_first_file() -> None:
    corpus = load_stdlib_text(max_train_bytes=200_000, max_held_out_bytes=1000)
    first = (stdlib_folder() / corpus.train_files[0]).read_bytes().replace(b"\r\n", b"\n")
    assert bytes(corpus.train[: len(first)].tolist()) == first


def test_two_reads_agree() -> None:
    one, two = (load_stdlib_text(max_train_bytes=20_000, max_held_out_bytes=5_000) for _ in range(2))
    assert one.train.equal(two.train)
    assert one.held_out_files == two.held_out_files


def test_tests_and_installed_packages_are_left_out() -> None:
    parts = {part for path in list_source_files(stdlib_folder()) for part in path.parts[-3:-1]}
    assert not parts & {"test", "tests", "site-packages"}


def test_folder_without_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="zipped or stripped"):
        load_stdlib_text(folder=tmp_path)


def test_side_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "only.py").write_text("x = 1\n")
    with pytest.raises(DataError, match="held-out side"):
        load_stdlib_text(folder=tmp_path)


def test_byte_tokenizer_is_the_identity_and_loads_again(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    build_byte_tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "def é(x):\n\treturn  x  # \x00 ü"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
