"""A training step of the ViT: hooks, masks, checkpointing and parts that adapters replace."""

from typing import Any

import pytest
import torch

from .small_models import images, small_vit

STILL = {"dropout": 0.0, "shift_probability": 0.0}


def gradients_of_a_step(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model.zero_grad()
    loss = model(x).square().sum() + model.position_losses().weighted
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("integration", ["mul", "sum", "bias", "input"])
@pytest.mark.parametrize(
    "kwargs", [{}, {"reg_tokens": 2}, {"qk_norm": True}, {"scale_attn_norm": True}, {"qkv_bias": False}]
)
def test_attention_in_steps_gives_the_gradients_of_fused_attention(
    kwargs: dict[str, Any], integration: str
) -> None:
    model = small_vit("seqpe", {**STILL, "integration": integration}, **kwargs).train()
    x = images(batch=6)
    model(x)
    model.position_losses()
    fused = gradients_of_a_step(model, x)
    for block in model.blocks:
        block.attn.fused_attn = False
    torch.testing.assert_close(gradients_of_a_step(model, x), fused, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layer", ["qkv", "proj", "norm"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_hooks_see_what_goes_through(layer: str, direction: str) -> None:
    model = small_vit("seqpe", {"dropout": 0.0, "shift_probability": 0.5}).train()
    x, seen = images(batch=4), []
    plain = gradients_of_a_step(model, x)
    module = getattr(model.blocks[0].attn, layer)
    if direction == "forward":
        hook = module.register_forward_hook(lambda _, inputs, output: seen.append(output))
    else:
        hook = module.register_full_backward_hook(lambda _, inputs, outputs: seen.append(outputs[0]))
    model.wants_objectives = False
    model._step_losses = None
    hooked = gradients_of_a_step(model, x)
    hook.remove()
    assert len(seen) == 1
    torch.testing.assert_close(hooked[0], plain[0])


def test_shifted_examples_of_a_batch_equal_single_ones() -> None:
    model = small_vit("seqpe", {"dropout": 0.0, "shift_probability": 1.0, "shift_scope": "example"}).train()
    x = images(batch=1).expand(8, -1, -1, -1)
    logits = model(x)
    different = {tuple(row) for row in logits.detach().round(decimals=3).tolist()}
    assert len(different) > 1


def test_replaced_norm_is_called() -> None:
    class Twice(torch.nn.Identity):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    model = small_vit("seqpe", STILL).train()
    x = images()
    expected = model(x)
    model.blocks[0].attn.q_norm = Twice()
    assert not torch.allclose(model(x), expected, atol=1e-4)


def test_training_mode_without_gradients_shifts_too() -> None:
    model = small_vit("seqpe", {"dropout": 0.0, "shift_probability": 0.5}).train()
    x = images(batch=6)
    torch.manual_seed(1)
    expected = model(x)
    with torch.no_grad():
        torch.manual_seed(1)
        torch.testing.assert_close(model(x), expected.detach())


def test_a_step_may_be_repeated_before_its_gradients_are_taken() -> None:
    model = small_vit("seqpe", STILL).train()
    model.set_grad_checkpointing(True)
    x, y = images(), images()
    first, second = model(x).sum(), model(y).sum()  # recomputed later, with the positions of each pass
    (first + second).backward()
    together = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    model(y).sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], together)


@pytest.mark.parametrize("everywhere", [False, True])
def test_what_a_hook_has_seen_is_not_overwritten(everywhere: bool) -> None:
    model, seen = small_vit("seqpe"), []

    def keep(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        if module is model.blocks[0].attn.qkv:
            seen.append((output, output.clone()))

    if everywhere:
        hook = torch.nn.modules.module.register_module_forward_hook(keep)
    else:
        hook = model.blocks[0].attn.qkv.register_forward_hook(keep)
    try:
        with torch.inference_mode():
            model(images())
    finally:
        hook.remove()
    ((output, copy),) = seen
    assert torch.equal(output, copy)
