"""What the ViT needs of encodings so that TorchScript, torch.fx and pruning work."""

import pytest
import torch
from torch import Tensor, nn

from seqpe_zoo import build_position_encoding, list_position_encodings
from seqpe_zoo.portable.attention import attend
from seqpe_zoo.portable.position_encoding import PositionEncoding, prepend_rows

NAMES_2D = list_position_encodings(2, causal=False)


def small_encoding(name: str, **options: object) -> PositionEncoding:
    return build_position_encoding(
        name, 32, num_heads=2, num_layers=3, num_dims=2, train_shape=(4, 4), num_prefix=1, **options
    ).eval()


class Host(nn.Module):
    def __init__(self, encoding: PositionEncoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, positions: Tensor) -> Tensor:
        return self.encoding.prepare(positions, 1).layers[1]


@pytest.mark.parametrize("name", NAMES_2D)
def test_encoding_with_filled_caches_can_be_scripted(name: str) -> None:
    encoding = small_encoding(name)
    with torch.no_grad():
        expected = encoding.prepare_grid((6, 5), num_prefix=1).layers[1]
        positions = encoding.grid((6, 5), (0, 0), 1)
        actual = torch.jit.script(Host(encoding))(positions)
    torch.testing.assert_close(actual, expected)


def test_attention_with_factors_can_be_scripted() -> None:
    q, k, v = torch.randn(3, 2, 2, 5, 8)
    factors = (torch.randn(2, 5, 3), torch.randn(2, 5, 3))
    torch.testing.assert_close(torch.jit.script(attend)(q, k, v, factors), attend(q, k, v, factors))


def test_prefix_rows_are_repeated_over_a_batch() -> None:
    rows, encoded = torch.randn(2, 3), torch.randn(4, 5, 3)
    joined = prepend_rows(rows, encoded)
    assert joined.shape == (4, 7, 3)
    assert torch.equal(joined[3, :2], rows)


@pytest.mark.parametrize("name", NAMES_2D)
def test_cut_off_layers_leave_no_parameters_and_change_no_terms(name: str) -> None:
    encoding = small_encoding(name)
    with torch.no_grad():
        before = encoding.prepare_grid((4, 4), num_prefix=1).layers
        encoding.keep_layers(2)
        after = encoding.prepare_grid((4, 4), num_prefix=1).layers
    assert len(after) == 2
    assert all(torch.equal(kept, old) for kept, old in zip(after, before, strict=False))


def test_cut_off_layers_of_seqpe_lose_their_projections() -> None:
    encoding = small_encoding("seqpe", projection="per_layer")
    encoding.keep_layers(1)
    assert len(encoding.projection) == 1
