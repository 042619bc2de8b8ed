"""AttnMul of a training step is the product that autograd would put together."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from seqpe_zoo.portable import training_product
from seqpe_zoo.portable.stages import MultiplyStage
from seqpe_zoo.portable.training_product import can_multiply, multiply_query_key

BATCH, LENGTH, HEADS, DIM = 4, 3, 2, 2
WIDTH = HEADS * DIM
ROWS = torch.tensor([0, 2, 0, 1])


def put_together(
    qkv: Tensor, terms: Tensor, rows: Tensor | None, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    if bias is not None:
        qkv = qkv + torch.cat([bias, bias.new_zeros(WIDTH)])
    q, k, v = qkv.unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
    terms = terms if rows is None else terms[rows]
    return (*MultiplyStage(HEADS).on_query_key(q, k, terms), v)


def inputs(rows: Tensor | None, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    shape = (LENGTH, 2 * WIDTH) if rows is None else (3, LENGTH, 2 * WIDTH)
    qkv = torch.randn(BATCH, LENGTH, 3 * WIDTH, dtype=dtype, requires_grad=True)
    return qkv, torch.randn(shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize("biased", [False, True])
def test_values_and_gradients(rows: Tensor | None, biased: bool) -> None:
    learned = [*inputs(rows)]
    if biased:
        learned.append(torch.randn(2 * WIDTH, dtype=torch.float64, requires_grad=True))
    qkv, terms, *bias = learned
    found = multiply_query_key(qkv, terms, rows, HEADS, *bias)
    expected = put_together(qkv, terms, rows, *bias)
    torch.testing.assert_close(found, expected)
    weights = [torch.randn_like(part) for part in expected]
    gradients = [
        torch.autograd.grad([(part * weight).sum() for part, weight in zip(parts, weights)], learned)
        for parts in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("rows", [None, ROWS])
def test_gradients_of_gradients(rows: Tensor | None) -> None:
    qkv, terms = inputs(rows)
    bias = torch.randn(2 * WIDTH, dtype=torch.float64, requires_grad=True)

    def multiply(qkv: Tensor, terms: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return multiply_query_key(qkv, terms, rows, HEADS, bias)

    assert torch.autograd.gradgradcheck(multiply, (qkv, terms, bias))


def test_a_slice_of_a_larger_projection() -> None:
    larger = torch.randn(BATCH, LENGTH, 5 * WIDTH, dtype=torch.float64, requires_grad=True)
    _, terms = inputs(ROWS)
    qkv = larger[..., 2 * WIDTH :]
    gradients = []
    for parts in (multiply_query_key(qkv, terms, ROWS, HEADS), put_together(qkv, terms, ROWS)):
        gradients.append(torch.autograd.grad(sum(part.square().sum() for part in parts), (larger, terms)))
    torch.testing.assert_close(*gradients)


def test_terms_without_gradients() -> None:
    qkv, terms = inputs(ROWS)
    gradients = []
    for parts in (
        multiply_query_key(qkv, terms.detach(), ROWS, HEADS),
        put_together(qkv, terms.detach(), ROWS),
    ):
        gradients.append(torch.autograd.grad(sum(part.square().sum() for part in parts), qkv))
    torch.testing.assert_close(*gradients)


def test_many_gradients_at_a_time() -> None:
    qkv, terms = inputs(ROWS)
    weights = torch.randn(5, BATCH, HEADS, LENGTH, DIM, dtype=torch.float64)
    gradients = [
        torch.autograd.grad(parts[0], (qkv, terms), weights, is_grads_batched=True)
        for parts in (multiply_query_key(qkv, terms, ROWS, HEADS), put_together(qkv, terms, ROWS))
    ]
    torch.testing.assert_close(*gradients)


def test_where_it_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_product, "SMALLEST_EXAMPLE", 0)
    qkv, terms = inputs(None, torch.float32)
    assert can_multiply(qkv * 1, 2 * WIDTH, terms * 1, None)
    assert not can_multiply(qkv * 1, 2 * WIDTH, terms[:, :DIM] * 1, None)  # one position head for all
    assert not can_multiply(qkv * 1, 2 * WIDTH, terms[:1] * 1, None)  # one position for all
    assert not can_multiply(qkv * 1, 2 * WIDTH, terms.expand(BATCH, -1, -1) * 1, None)  # rows each
    assert not can_multiply(qkv * 1, 2 * WIDTH, terms.expand(3, -1, -1) * 1, ROWS[:2])  # of another batch
    assert not can_multiply(qkv.bfloat16(), 2 * WIDTH, terms.bfloat16(), None)
    assert not can_multiply(qkv.to("meta"), 2 * WIDTH, terms.to("meta"), None)
    with torch.no_grad():
        assert not can_multiply(qkv * 1, 2 * WIDTH, terms * 1, None)
    with forward_ad.dual_level():
        assert not can_multiply(qkv * 1, 2 * WIDTH, terms * 1, None)
    seen: list[bool] = []

    def loss(x: Tensor) -> Any:
        seen.append(can_multiply(x * 1, 2 * WIDTH, terms * 1, None))
        return x.sum()

    torch.func.grad(loss)(qkv)
    assert seen == [False]


def test_stage_that_does_more_keeps_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class Another(MultiplyStage):
        def on_query_key(self, q: Tensor, k: Tensor, terms: Tensor) -> tuple[Tensor, Tensor]:
            return q, k

    monkeypatch.setattr(training_product, "SMALLEST_EXAMPLE", 0)
    qkv, terms = inputs(None, torch.float32)
    given = (qkv * 1, 2 * WIDTH, terms * 1, None)
    assert MultiplyStage(HEADS).can_place_in_training(*given)
    assert not Another(HEADS).can_place_in_training(*given)
