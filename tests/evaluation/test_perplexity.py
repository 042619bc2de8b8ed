from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from seqpe_zoo.data.errors import DataError
from seqpe_zoo.evaluation.model_loading import load_language_model
from seqpe_zoo.evaluation.perplexity import evaluate_perplexity

STREAM = torch.randint(256, (151,), generator=torch.Generator().manual_seed(3))


def by_hand(model: torch.nn.Module, length: int) -> float:
    """Each chunk by itself, log-softmax in NumPy."""
    total, count = 0.0, 0
    for first in range(0, len(STREAM) - 1, length):
        inputs = STREAM[first : min(first + length, len(STREAM) - 1)]
        with torch.no_grad():
            logits = model(inputs[None]).logits[0].double().numpy()
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for place in range(len(inputs)):
            total -= logs[place, int(STREAM[first + place + 1])]
            count += 1
    return float(np.exp(total / count))


@pytest.mark.parametrize("length", [1, 16, 50, 64])
def test_perplexity_is_that_of_chunks_by_hand(stock_language_model: Path, length: int) -> None:
    model = load_language_model(str(stock_language_model)).model
    result = evaluate_perplexity(model, STREAM, [length], tokens_at_once=64)[0]
    assert result.targets == 150
    assert result.perplexity == pytest.approx(by_hand(model, length), rel=1e-5)


def test_every_length_has_the_same_targets(our_language_model: Path) -> None:
    model = load_language_model(str(our_language_model)).model
    results = evaluate_perplexity(model, STREAM, [16, 32, 150, 400])
    assert [result.targets for result in results] == [150] * 4


def test_stream_of_small_integers_is_measured_the_same(our_language_model: Path) -> None:
    model = load_language_model(str(our_language_model)).model
    results = [evaluate_perplexity(model, stream, [32]) for stream in (STREAM, STREAM.int())]
    assert results[0] == results[1]


def test_our_model_is_measured_as_others_are(our_language_model: Path) -> None:
    model = load_language_model(str(our_language_model)).model
    assert evaluate_perplexity(model, STREAM, [32])[0].perplexity == pytest.approx(
        by_hand(model, 32), rel=1e-5
    )


def test_family_with_another_head_is_accepted() -> None:
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).eval()
    assert evaluate_perplexity(model, STREAM, [25])[0].perplexity == pytest.approx(
        by_hand(model, 25), rel=1e-5
    )


def test_mode_is_restored(our_language_model: Path) -> None:
    model = load_language_model(str(our_language_model)).model.train()
    evaluate_perplexity(model, STREAM, [16])
    assert model.training


def test_length_beyond_learned_positions_is_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=32, n_layer=1, n_head=4))
    with pytest.raises(DataError, match="beyond the 64 positions"):
        evaluate_perplexity(model, STREAM, [32, 128])


def test_length_beyond_the_digits_is_refused(our_language_model: Path) -> None:
    model = load_language_model(str(our_language_model)).model
    with pytest.raises(DataError, match="num_digits=4"):
        evaluate_perplexity(model, STREAM, [10_001])


@pytest.mark.parametrize(
    ("stream", "lengths", "message"),
    [
        (STREAM[:1], [16], "nothing to predict"),
        (STREAM, [0], "positive"),
        (STREAM + 200, [16], "vocabulary of 256"),
    ],
)
def test_impossible_input_is_refused(
    our_language_model: Path, stream: torch.Tensor, lengths: list[int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        evaluate_perplexity(load_language_model(str(our_language_model)).model, stream, lengths)
