"""Which measurements the paper's numbers may stand beside: same data, whole, same unit."""

from pathlib import Path

import pytest
import torch

from seqpe_zoo.evaluation import measure
from seqpe_zoo.evaluation.measure import measure_questions, measure_text
from seqpe_zoo.evaluation.model_loading import load_language_model


@pytest.fixture
def wikitext(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the download: every text is one short stream of tokens."""
    stream = torch.arange(100) % 256
    monkeypatch.setattr(measure, "open_token_stream", lambda *args: stream)


def table_of(folder: Path, source: str, split: str, vocabulary: int, limit: int | None = None) -> str | None:
    model = load_language_model(str(folder))
    model.tokenizer = range(vocabulary)
    return measure_text(model, "seqpe", source, split, [16], limit)[0].paper_table


@pytest.mark.usefixtures("wikitext")
def test_only_whole_test_split_of_wikitext_in_gpt2_tokens_is_the_papers(our_language_model: Path) -> None:
    assert table_of(our_language_model, "wikitext-103", "test", 50257) == "language_modelling"
    assert table_of(our_language_model, "stdlib", "test", 50257) is None
    assert table_of(our_language_model, "wikitext-103", "validation", 50257) is None
    assert table_of(our_language_model, "wikitext-103", "test", 256) is None
    assert table_of(our_language_model, "wikitext-103", "test", 50257, 50) is None


def test_own_questions_are_not_the_papers(our_language_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "squad_qa"
    folder.mkdir()
    row = '{"index": 0, "input": "Question: who? Answer:", "outputs": ["he"]}\n'
    model = load_language_model(str(our_language_model))
    (folder / "validation.64.jsonl").write_text(row)
    assert {m.paper_table for m in measure_questions(model, "seqpe", str(folder), [64])} == {None}
