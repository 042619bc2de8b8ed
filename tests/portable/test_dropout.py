"""Residual dropout drawn from 16 bits an element."""

import pytest
import torch
from torch.func import vmap

from seqpe_zoo.portable.dropout import add_dropped


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_share_and_expectation(probability: float) -> None:
    torch.manual_seed(0)
    x, hidden = torch.zeros(1000, 1000), torch.ones(1000, 1000)
    dropped = add_dropped(x, hidden, probability)
    assert float((dropped == 0).float().mean()) == pytest.approx(probability, abs=0.003)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.01)
    assert len(dropped.unique()) == 2
    # Neighbours come from the same 64 bits, and must not know of each other.
    zero = (dropped == 0).float().flatten() - probability
    for step in (1, 2, 3, 4):
        assert abs(float((zero[step:] * zero[:-step]).mean())) < 0.003


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4), (7,)])
def test_any_number_of_elements(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert add_dropped(x, torch.ones(shape), 0.5).shape == shape
    torch.testing.assert_close(add_dropped(x, torch.zeros(shape), 0.5), x)


def test_ends_of_the_range() -> None:
    x, hidden = torch.randn(2, 50)
    torch.testing.assert_close(add_dropped(x, hidden, 0.0), x + hidden)
    torch.testing.assert_close(add_dropped(x, hidden, 1.0), x)


def test_gradients_pass_where_values_passed() -> None:
    x, hidden = torch.zeros(40, 50, requires_grad=True), torch.ones(40, 50, requires_grad=True)
    dropped = add_dropped(x, hidden, 0.3)
    dropped.sum().backward()
    torch.testing.assert_close(hidden.grad, dropped.detach())
    torch.testing.assert_close(x.grad, torch.ones(40, 50))


def test_seed_decides() -> None:
    x = torch.zeros(100)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(add_dropped(x, torch.ones(100), 0.5))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_keep_theirs(dtype: torch.dtype) -> None:
    dropped = add_dropped(torch.zeros(1000, dtype=dtype), torch.ones(1000, dtype=dtype), 0.5)
    assert dropped.dtype == dtype
    assert 0 < int((dropped == 0).sum()) < 1000


def test_vmap_draws_for_each() -> None:
    hidden = torch.ones(3, 200)
    dropped = vmap(lambda h: add_dropped(torch.zeros(200), h, 0.5), randomness="different")(hidden)
    assert not torch.equal(dropped[0], dropped[1])


def test_default_device_is_not_asked() -> None:
    x, hidden = torch.zeros(8), torch.ones(8)
    with torch.device("meta"):
        dropped = add_dropped(x, hidden, 0.5)
    assert dropped.device.type == "cpu"
