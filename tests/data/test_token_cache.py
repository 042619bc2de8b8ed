import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from seqpe_zoo.data import text_sources
from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
from seqpe_zoo.data.text_sources import open_token_stream
from seqpe_zoo.data.token_cache import cached_stream, file_sha256, tokenizer_fingerprint

FACTS = {"text": "a hash", "split": "train"}
STREAM = torch.arange(50) % 7


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQPE_ZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def never() -> torch.Tensor:
    raise AssertionError("the stream should have come from the cache")


def kept_file(folder: Path) -> Path:
    (path,) = folder.glob("tokens-*.safetensors")
    return path


def test_stream_is_made_once(folder: Path) -> None:
    assert cached_stream(FACTS, 7, lambda: STREAM).tolist() == STREAM.tolist()
    assert cached_stream(FACTS, 7, never).tolist() == STREAM.tolist()


@pytest.mark.parametrize("change", [{"text": "another"}, {"split": "test"}, {"max_tokens": 3}])
def test_other_facts_are_another_stream(folder: Path, change: dict) -> None:
    cached_stream(FACTS, 7, lambda: STREAM)
    assert cached_stream({**FACTS, **change}, 7, lambda: STREAM[:9]).numel() == 9


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)


def replace(path: Path) -> None:
    save_file({"tokens": torch.zeros(50, dtype=torch.int32)}, path, {"key": "of something else"})


def scribble(path: Path) -> None:
    path.write_bytes(b"not safetensors at all")


@pytest.mark.parametrize("harm", [cut, flip, replace, scribble])
def test_damaged_and_foreign_files_are_made_anew(
    folder: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    cached_stream(FACTS, 7, lambda: STREAM)
    harm(kept_file(folder))
    assert cached_stream(FACTS, 7, lambda: STREAM).tolist() == STREAM.tolist()
    assert "made anew" in caplog.text
    assert cached_stream(FACTS, 7, never).tolist() == STREAM.tolist()


def test_tokens_beyond_the_vocabulary_are_not_believed(folder: Path) -> None:
    cached_stream(FACTS, 7, lambda: STREAM)
    assert cached_stream(FACTS, 5, lambda: STREAM % 5).max() == 4


def test_nothing_is_lost_where_nothing_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SEQPE_ZOO_CACHE", str(tmp_path / "file"))
    assert cached_stream(FACTS, 7, lambda: STREAM) is STREAM
    assert "cannot be kept" in caplog.text


def make_and_count(folder: str) -> None:
    os.environ["SEQPE_ZOO_CACHE"] = folder

    def make() -> torch.Tensor:
        with (Path(folder) / "made").open("a") as file:
            file.write("x")
        return STREAM

    assert cached_stream(FACTS, 7, make).tolist() == STREAM.tolist()


def test_processes_that_ask_together_make_it_once(folder: Path) -> None:
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=make_and_count, args=(str(folder),)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert (folder / "made").read_text() == "x"


def test_long_text_is_cut_into_tokens_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.txt").write_text("some words\n" * 25_000)
    tokenizer = build_byte_tokenizer()
    first = open_token_stream(str(tmp_path), "train", tokenizer)
    monkeypatch.setattr(text_sources, "tokenize_stream", lambda *_: never())
    again = open_token_stream(str(tmp_path), "train", tokenizer)
    assert first.equal(again)
    assert bytes(again[:11].tolist()) == b"some words\n"
    (tmp_path / "train.txt").write_text("same words\n" * 25_000)
    with pytest.raises(AssertionError, match="from the cache"):
        open_token_stream(str(tmp_path), "train", tokenizer)


def test_short_text_leaves_no_trace(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("some words\n")
    open_token_stream(str(tmp_path), "train", build_byte_tokenizer())
    assert not folder.exists()


def test_set_of_the_hub_library_is_known_by_its_fingerprint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import Dataset

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(text_sources, "SMALLEST", 10)
    (tmp_path / "set").mkdir()
    Dataset.from_dict({"text": ["a line\n", "another\n"]}).to_parquet(tmp_path / "set" / "train.parquet")
    source = f"{tmp_path / 'set'}:default"
    first = open_token_stream(source, "train", build_byte_tokenizer())
    assert bytes(first.tolist()) == b"a line\nanother\n"
    assert load_file(kept_file(folder))["tokens"].equal(first)
    monkeypatch.setattr(text_sources, "tokenize_stream", lambda *_: never())
    assert open_token_stream(source, "train", build_byte_tokenizer()).equal(first)


def test_fingerprints_tell_tokenizers_and_files_apart(tmp_path: Path) -> None:
    one, two = build_byte_tokenizer(), build_byte_tokenizer()
    assert tokenizer_fingerprint(one) == tokenizer_fingerprint(two)
    two.add_tokens(["import"])
    assert tokenizer_fingerprint(one) != tokenizer_fingerprint(two)
    assert tokenizer_fingerprint(object()) is None
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("y")
    prints = [file_sha256(tmp_path / name) for name in ("a", "b", "a")]
    assert prints[0] == prints[2] != prints[1]
