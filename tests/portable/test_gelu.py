"""GELU by its tanh approximation."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from transformers.activations import NewGELUActivation

from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.gelu import TanhGELU, gelu_tanh
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel, SeqPEGPT2MLP


def _exact(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x.double(), approximate="tanh").to(x.dtype)


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4), (2, 7, 30)])
def test_equals_pytorch_and_leaves_its_input(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = 3 * torch.randn(shape)
    before = x.clone()
    torch.testing.assert_close(gelu_tanh(x), _exact(x), rtol=1e-5, atol=1e-6)
    assert torch.equal(x, before)


def test_extremes() -> None:
    x = torch.tensor([-1e30, -200.0, -12.0, -0.0, 0.0, 1e-30, 12.0, 200.0, 1e30, float("inf")])
    torch.testing.assert_close(gelu_tanh(x), _exact(x))
    assert gelu_tanh(torch.tensor([float("nan")])).isnan().all()


@pytest.mark.parametrize("strided", [False, True])
def test_slices_of_a_larger_tensor(strided: bool) -> None:
    x = torch.randn(6, 8)[:, ::2] if strided else torch.randn(6, 8)[1:4]
    torch.testing.assert_close(gelu_tanh(x), _exact(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("quick", [True, False])
def test_which_way_is_taken(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four quick passes unless a gradient is wanted."""
    calls: list[int] = []
    original = F.gelu

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(F, "gelu", counted)
    x = torch.randn(6, requires_grad=not quick)
    gelu_tanh(x)
    with torch.inference_mode():
        gelu_tanh(torch.randn(6))
    with torch.no_grad():
        gelu_tanh(x)
    assert len(calls) == (0 if quick else 1)


def test_gradients() -> None:
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gelu_tanh, (x,))
    ours, theirs = (x.detach().float().requires_grad_() for _ in range(2))
    gelu_tanh(ours).sum().backward()
    F.gelu(theirs, approximate="tanh").sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    x = torch.randn(20).to(dtype)
    result = gelu_tanh(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result, F.gelu(x, approximate="tanh"))


def test_transforms_and_graphs() -> None:
    x = torch.randn(4, 6)
    torch.testing.assert_close(vmap(gelu_tanh)(x), _exact(x))
    for graph in (torch.fx.symbolic_trace(TanhGELU()), torch.jit.script(TanhGELU())):
        torch.testing.assert_close(graph(x), _exact(x))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gelu_new", NewGELUActivation), ("gelu_pytorch_tanh", TanhGELU), ("relu", nn.ReLU)],
)
def test_gpt2_takes_it_for_the_name_that_means_it(name: str, kind: type[nn.Module]) -> None:
    assert isinstance(SeqPEGPT2MLP(SeqPEGPT2Config.tiny(activation_function=name)).act, kind)


def test_both_names_give_the_same_model() -> None:
    torch.manual_seed(0)
    plain = SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(activation_function="gelu_new")).eval()
    quick = SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(activation_function="gelu_pytorch_tanh")).eval()
    quick.load_state_dict(plain.state_dict())
    tokens = torch.randint(128, (2, 40))
    for model in (plain, quick):
        model(tokens, labels=tokens).loss.backward()
    gradients = dict(plain.named_parameters())
    for name, parameter in quick.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, atol=1e-6, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(quick(tokens).logits, plain(tokens).logits, atol=1e-6, rtol=1e-4)


def test_a_saved_model_takes_the_quicker_name_when_it_is_loaded(tmp_path: Path) -> None:
    """As docs/howto/fast-inference.md says."""
    SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny()).save_pretrained(tmp_path)
    loaded = SeqPEGPT2LMHeadModel.from_pretrained(tmp_path, activation_function="gelu_pytorch_tanh")
    assert isinstance(loaded.transformer.h[0].mlp.act, TanhGELU)
