"""The quick way of a training step gives the gradients of the plain one."""

from typing import Any

import pytest
import torch
from timm.models.vision_transformer import ParallelScalingBlock, ParallelThingsBlock, ResPostBlock

from seqpe_zoo.portable import stages, training_product
from tests.vit.small_models import images, small_vit

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ResPostBlock": {"block_fn": ResPostBlock},
    "ParallelThingsBlock": {"block_fn": ParallelThingsBlock},
    "ParallelScalingBlock": {"block_fn": ParallelScalingBlock},
    "registers": {"reg_tokens": 2},
    "unfused": {},
    "checkpointing": {},
    "patches dropped": {"patch_drop_rate": 0.25},
    "norm": {"qk_norm": True},
}


def gradients_of_a_step(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model.zero_grad()
    loss = model(x).square().sum() + model.position_losses().weighted
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("integration", ["mul", "sum", "bias", "input"])
@pytest.mark.parametrize("kind", KINDS)
def test_quick_way_changes_no_gradient(kind: str, integration: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"dropout": 0.0, "shift_probability": 0.5, "integration": integration}
    model = small_vit("seqpe", options, **KINDS[kind]).train()
    model.set_grad_checkpointing(kind == "checkpointing")
    if kind == "unfused":
        for block in model.blocks:
            block.attn.fused_attn = False
    x = images(batch=6)
    plain = gradients_of_a_step(model, x)
    used = count_quick_products(monkeypatch)
    quick = gradients_of_a_step(model, x)
    torch.testing.assert_close(quick, plain, atol=1e-4, rtol=1e-4)
    expected = integration == "mul" and kind not in ("patches dropped", "norm")
    assert bool(used) == expected


def test_hook_on_a_norm_sees_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_vit("seqpe", {"shift_probability": 0.5}).train()
    seen: list[torch.Size] = []
    model.blocks[0].attn.q_norm.register_forward_hook(lambda *given: seen.append(given[-1].shape))
    used = count_quick_products(monkeypatch)
    model(images())
    assert seen == [(2, 2, 17, 16)]
    assert len(used) == 1  # of the second layer


def test_training_mode_without_gradients_shifts_too() -> None:
    model = small_vit("seqpe", {"dropout": 0.0, "shift_probability": 0.5}).train()
    x = images(batch=6)
    torch.manual_seed(1)
    expected = model(x)
    with torch.no_grad():
        torch.manual_seed(1)
        torch.testing.assert_close(model(x), expected.detach())


def count_quick_products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    used: list[int] = []
    really_multiply = stages.multiply_query_key

    def multiply(*given: Any) -> Any:
        used.append(1)
        return really_multiply(*given)

    monkeypatch.setattr(stages, "multiply_query_key", multiply)
    monkeypatch.setattr(training_product, "SMALLEST_EXAMPLE", 0)
    return used
