"""What the ViT needs of encodings: rows for class tokens, and layers that are cut off."""

import pytest
import torch

from seqpe_zoo import Positions, build_position_encoding, list_position_encodings
from seqpe_zoo.portable.position_encoding import PositionEncoding, prepend_rows

NAMES_2D = list_position_encodings(2, causal=False)
GRID = Positions((4, 4), (0, 0))


def small_encoding(name: str, **options: object) -> PositionEncoding:
    return build_position_encoding(
        name, 32, num_heads=2, num_layers=3, num_dims=2, train_shape=(4, 4), num_prefix=1, **options
    ).eval()


def test_prefix_rows_are_repeated_over_a_batch() -> None:
    rows, encoded = torch.randn(2, 3), torch.randn(4, 5, 3)
    joined = prepend_rows(rows, encoded)
    assert joined.shape == (4, 7, 3)
    assert torch.equal(joined[3, :2], rows)


@pytest.mark.parametrize("name", NAMES_2D)
def test_cut_off_layers_leave_no_parameters_and_change_no_inputs(name: str) -> None:
    encoding = small_encoding(name)
    with torch.no_grad():
        before = encoding(GRID).layers
        encoding.keep_layers(2)
        after = encoding(GRID).layers
    assert len(after) == 2
    assert all(torch.equal(kept, old) for kept, old in zip(after, before, strict=False))


def test_cut_off_layers_of_seqpe_lose_their_projections() -> None:
    encoding = small_encoding("seqpe", projection="per_layer")
    encoding.keep_layers(1)
    assert len(encoding.projection) == 1
