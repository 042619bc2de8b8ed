"""Logits are those of the weights that a model has, whatever changed them since it last ran in inference."""

import copy

import peft
import pytest
import torch

from tests.gpt2.cases import random_tokens, tiny_model

CASES = ["seqpe_mul_shared", "seqpe_bias_shared", "seqpe_input_shared"]


@torch.no_grad()
def logits(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens).logits


def logits_of_a_copy(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of a model that never ran: copies have no tables."""
    return logits(copy.deepcopy(model), tokens)


@pytest.mark.parametrize("case", CASES)
def test_training_in_eval_with_a_fused_optimizer(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 20)
    before = logits(model, tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
    for _ in range(3):
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = logits(model, tokens)
    assert not torch.allclose(after, before, atol=0.1)
    torch.testing.assert_close(after, logits_of_a_copy(model, tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_writes_through_data(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 20)
    before = logits(model, tokens)
    for parameter in model.base_model.position_encoding.parameters():
        parameter.data.mul_(1.5)
    after = logits(model, tokens)
    assert not torch.allclose(after, before, atol=1e-2)
    torch.testing.assert_close(after, logits_of_a_copy(model, tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_adapters_on_the_encoder_switched_off(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 20)
    before = logits(model, tokens)
    config = peft.LoraConfig(target_modules=r".*position_encoding\..*(fc1|fc2|out)", init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    with_adapters = logits(adapted, tokens)
    assert not torch.allclose(with_adapters, before, atol=1e-2)
    with adapted.disable_adapter():
        torch.testing.assert_close(logits(adapted, tokens), before, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(adapted, tokens), with_adapters, atol=1e-5, rtol=1e-5)
