import math
from pathlib import Path

import pytest
import torch

from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.squad_documents import DocumentQuestion, encode_row
from seqpe_zoo.evaluation.answers import evaluate_answers, is_containment_match, is_exact_match
from seqpe_zoo.evaluation.model_loading import LanguageModel, load_language_model

ROWS = [
    DocumentQuestion(0, "Question: which colour? Answer:", ("blue", "dark blue"), 31),
    DocumentQuestion(1, "Question: how many? Answer:", ("3",), 27),
]


@pytest.mark.parametrize(
    ("generated", "exact", "contained"),
    [(" Blue\n", True, True), ("dark blue sky", False, True), ("bl ue", False, False), ("", False, False)],
)
def test_two_matches_differ(generated: str, exact: bool, contained: bool) -> None:
    assert is_exact_match(generated, ("blue", "Dark Blue")) is exact
    assert is_containment_match(generated, ("blue", "Dark Blue")) is contained


def test_perplexity_is_of_the_answer_alone(our_language_model: Path) -> None:
    model = load_language_model(str(our_language_model))
    total, count = 0.0, 0
    for row in ROWS:
        prompt, answer = encode_row(row, model.tokenizer)
        ids = torch.cat([prompt, answer])
        with torch.no_grad():
            logs = model.model(ids[None]).logits[0].log_softmax(-1)
        total -= sum(float(logs[len(prompt) - 1 + n, answer[n]]) for n in range(len(answer)))
        count += len(answer)
    assert evaluate_answers(model, ROWS, 64).perplexity == pytest.approx(math.exp(total / count), rel=1e-4)


def test_matches_are_counted_over_generations(
    our_language_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter([" blue", "33"])
    monkeypatch.setattr("seqpe_zoo.evaluation.answers.greedy_answer", lambda *_: next(said))
    result = evaluate_answers(load_language_model(str(our_language_model)), ROWS, 64)
    assert (result.exact_match, result.containment_match, result.questions) == (50.0, 100.0, 2)


def test_without_generation_matches_are_not_numbers(our_language_model: Path) -> None:
    result = evaluate_answers(load_language_model(str(our_language_model)), ROWS, 64, generate=False)
    assert math.isnan(result.exact_match)


def test_model_without_tokenizer_is_refused(our_language_model: Path) -> None:
    model = load_language_model(str(our_language_model)).model
    with pytest.raises(DataError, match="no tokenizer"):
        evaluate_answers(LanguageModel("bare", model, None), ROWS, 64)
