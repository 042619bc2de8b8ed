"""Rotation by complex numbers is the rotation of pairs."""

import pytest
import torch

from seqpe_zoo.portable.stages import RotateStage, rotate_pairs, split_rotation


@pytest.mark.parametrize("layout", ["heads first", "split of one projection", "odd offset"])
@pytest.mark.parametrize("rows", [None, 2])
def test_complex_rotation_equals_rotation_of_pairs(layout: str, rows: int | None) -> None:
    q, k = torch.randn(2, 2, 3, 5, 8)
    if layout == "split of one projection":
        q, k = (x.view(2, 5, 3, 8).transpose(1, 2) for x in torch.randn(2, 5, 48).split(24, dim=-1))
    if layout == "odd offset":
        q, k = (torch.randn(2 * 3 * 5 * 8 + 1)[1:].view(2, 3, 5, 8) for _ in range(2))
    terms = torch.randn(5, 8) if rows is None else torch.randn(rows, 5, 8)
    cos, sin = split_rotation(terms, 1)
    turned = RotateStage(1).on_query_key(q, k, terms)
    torch.testing.assert_close(turned[0], rotate_pairs(q, cos, sin))
    torch.testing.assert_close(turned[1], rotate_pairs(k, cos, sin))


def test_gradients_of_both_ways_agree() -> None:
    cos, sin = split_rotation(torch.randn(5, 8), 1)
    terms, gradients = torch.cat([cos, sin], dim=-1)[0], []
    for rotate in (
        lambda x: rotate_pairs(x, cos, sin),
        lambda x: RotateStage(1).on_query_key(x, x, terms)[0],
    ):
        x = torch.linspace(-1, 1, 240).view(2, 3, 5, 8).requires_grad_()
        rotate(x).square().sum().add(rotate(x)[..., 0].sum()).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_scripted_stage_equals_eager() -> None:
    q, k, terms = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(5, 8)

    class Host(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stage = RotateStage(1)

        def forward(self, q: torch.Tensor, k: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
            return self.stage.on_query_key(q, k, terms)[0]

    torch.testing.assert_close(torch.jit.script(Host())(q, k, terms), Host()(q, k, terms))
