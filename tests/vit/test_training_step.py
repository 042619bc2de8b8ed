"""The quick way of a training step gives the gradients of the plain one."""

import functools
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from timm.models.vision_transformer import ParallelScalingBlock, ParallelThingsBlock, ResPostBlock

from seqpe_zoo.portable import stages, training_product, vit
from tests.vit.small_models import images, small_vit

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ResPostBlock": {"block_fn": ResPostBlock},
    "ParallelThingsBlock": {"block_fn": ParallelThingsBlock},
    "ParallelScalingBlock": {"block_fn": ParallelScalingBlock},
    "registers": {"reg_tokens": 2},
    "unfused": {},
    "checkpointing": {},
    "reentrant checkpointing": {},
    "patches dropped": {"patch_drop_rate": 0.25},
    "norm": {"qk_norm": True},
    "norm of heads": {"scale_attn_norm": True},
    "no bias": {"qkv_bias": False},
    "attention dropped": {"attn_drop_rate": 0.2},
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
    model.set_grad_checkpointing("checkpointing" in kind)
    if kind == "reentrant checkpointing":
        reentrant = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=True)
        monkeypatch.setattr(vit, "checkpoint", reentrant)
    if kind == "unfused":
        for block in model.blocks:
            block.attn.fused_attn = False
    x = images(batch=6)
    with monkeypatch.context() as patched:
        patched.setattr(type(model), "_blocks_take_rows", lambda self: False)
        plain = gradients_of_a_step(model, x)
    torch.testing.assert_close(gradients_of_a_step(model, x), plain, atol=1e-4, rtol=1e-4)  # too small
    used = count_quick_products(monkeypatch)
    quick = gradients_of_a_step(model, x)
    torch.testing.assert_close(quick, plain, atol=1e-4, rtol=1e-4)
    expected = integration == "mul" and kind not in ("patches dropped", "norm")
    assert bool(used) == expected


@pytest.mark.parametrize("layer", ["qkv", "proj", "norm"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_hooks_see_what_goes_through(layer: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_vit("seqpe", {"dropout": 0.0, "shift_probability": 0.5}).train()
    x, seen = images(batch=4), []
    attention = model.blocks[0].attn
    module = getattr(attention, layer)
    if direction == "forward":
        hook = module.register_forward_hook(lambda _, inputs, output: seen.append(output.detach()))
    else:
        hook = module.register_full_backward_hook(lambda _, inputs, outputs: seen.append(outputs[0]))
    plain = gradients_of_a_step(model, x)
    count_quick_products(monkeypatch)
    quick = gradients_of_a_step(model, x)
    hook.remove()
    torch.testing.assert_close(seen[1], seen[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(quick, plain, atol=1e-4, rtol=1e-4)


def test_masks_change_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_vit("seqpe", {"dropout": 0.0, "shift_probability": 0.5}).train()
    x = images(batch=4)
    mask = torch.ones(4, 1, 17, 17, dtype=torch.bool)
    mask[:, :, 3] = False  # a query that sees nothing
    gradients = []
    for _ in range(2):
        torch.manual_seed(0)
        model.zero_grad()
        model.forward_features(x, mask)[:, 4:].square().sum().backward()
        gradients.append([parameter.grad for parameter in model.blocks.parameters()])
        count_quick_products(monkeypatch)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_hook_on_a_norm_sees_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_vit("seqpe", {"shift_probability": 0.5}).train()
    seen: list[torch.Size] = []
    model.blocks[0].attn.q_norm.register_forward_hook(lambda *given: seen.append(given[-1].shape))
    used = count_quick_products(monkeypatch)
    model(images())
    assert seen == [(2, 2, 17, 16)]
    assert len(used) == 1  # of the second layer


def test_backward_hook_on_a_norm_is_called() -> None:
    model = small_vit("seqpe").train()
    seen: list[int] = []
    model.blocks[0].attn.k_norm.register_full_backward_hook(lambda *_: seen.append(1))
    model(images()).sum().backward()
    assert seen == [1]


def test_replaced_norm_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(torch.nn.Identity):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    model = small_vit("seqpe", {"dropout": 0.0, "shift_probability": 0.0}).train()
    model.blocks[0].attn.q_norm = Twice()
    x = images()
    expected = model(x)
    count_quick_products(monkeypatch)
    torch.testing.assert_close(model(x), expected)


class FourArguments(torch.nn.Module):
    """A wrapper of a block as it was before there were rows."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor, terms: torch.Tensor, attn_mask: Any, is_causal: bool) -> Any:
        return self.block(x, terms, attn_mask, is_causal)


def test_wrapped_and_hooked_blocks_get_terms_of_their_examples() -> None:
    options = {"dropout": 0.0, "shift_probability": 1.0}
    model, x = small_vit("seqpe", options).train(), images(batch=3)
    expected = gradients_of_a_step(model, x)
    hook = model.blocks[1].register_forward_pre_hook(lambda _, given: given[:4])
    torch.testing.assert_close(gradients_of_a_step(model, x), expected)
    hook.remove()
    model.blocks[0] = FourArguments(model.blocks[0])
    torch.testing.assert_close(gradients_of_a_step(model, x), expected)


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
