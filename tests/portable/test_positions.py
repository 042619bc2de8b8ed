import pytest
import torch

from seqpe_zoo import SeqPE
from seqpe_zoo.portable.positions import (
    grid_positions,
    positions_after_cache,
    positions_from_mask,
    range_positions,
    ravel_positions,
    side_for_volume,
    unravel_positions,
)


def test_grid_is_row_major_with_row_first():
    assert grid_positions((2, 3)).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_grid_starts_where_told():
    assert grid_positions((1, 2), start=(5, 7)).tolist() == [[5, 7], [5, 8]]


def test_grid_of_three_dimensions():
    positions = grid_positions((2, 2, 2))
    assert positions.shape == (8, 3)
    assert positions[5].tolist() == [1, 0, 1]


def test_ranges_and_caches():
    assert range_positions(3, start=4).tolist() == [[4], [5], [6]]
    assert positions_after_cache(past_length=10, length=2).tolist() == [[10], [11]]


def test_padding_takes_no_position_on_either_side():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert positions_from_mask(mask)[..., 0].tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]


def test_mask_positions_may_start_later():
    assert positions_from_mask(torch.tensor([[0, 1, 1]]), start=50)[..., 0].tolist() == [[50, 50, 51]]


def test_ravel_and_unravel_are_inverse():
    sides = (3, 4, 5)
    index = torch.arange(60)
    assert torch.equal(ravel_positions(unravel_positions(index, sides), sides), index)
    assert torch.equal(unravel_positions(index, sides), grid_positions(sides))


@pytest.mark.parametrize(
    ("volume", "num_dims", "side"), [(256, 1, 256), (196, 2, 14), (200, 2, 15), (1000, 3, 10)]
)
def test_smallest_cube_that_holds_a_volume(volume, num_dims, side):
    assert side_for_volume(volume, num_dims) == side


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (torch.tensor([[100, 0]]), r"position 100 .*largest allowed position is 99.*num_digits=3"),
        (torch.tensor([[0, -1]]), r"position -1 is negative.*0 to 99"),
        (torch.tensor([[0.0, 1.0]]), r"must be integers, got a tensor of torch.float32.*99.*long"),
        (torch.tensor([[True, False]]), r"must be integers"),
        (torch.tensor([[1, 2, 3]]), r"shape \(\.\.\., 2\).*got \(1, 3\)"),
        (torch.tensor(3), r"shape \(\.\.\., 2\)"),
    ],
)
def test_bad_positions_are_refused_with_the_limit_and_the_remedy(positions, message):
    pe = SeqPE(dim=8, num_dims=2, num_digits=2)
    with pytest.raises(ValueError, match=message):
        pe(positions)


def test_positions_that_are_no_tensor_are_refused():
    with pytest.raises(TypeError, match=r"got list; convert with torch.tensor"):
        SeqPE(dim=8)([[1]])


def test_small_integer_types_do_not_overflow():
    pe = SeqPE(dim=8, num_dims=2, num_digits=2).eval()
    positions = torch.tensor([[99, 98], [3, 4]])
    with torch.no_grad():
        torch.testing.assert_close(pe(positions.to(torch.uint8)), pe(positions))


def test_the_last_position_works_and_the_next_does_not():
    pe = SeqPE(dim=8, num_dims=1, num_digits=3, base=7)
    assert pe(torch.tensor([[342]])).shape == (1, 8)
    with pytest.raises(ValueError, match="largest allowed position is 342"):
        pe(torch.tensor([[343]]))


def test_a_range_beyond_capacity_is_refused_before_it_is_made():
    pe = SeqPE(dim=8, num_dims=1, num_digits=2)
    with pytest.raises(ValueError, match="position 119 needs more than num_digits=2"):
        pe.prepare_range(0, 120)


def test_a_grid_beyond_capacity_is_refused_before_it_is_made():
    pe = SeqPE(dim=8, num_dims=2, num_digits=1)
    with pytest.raises(ValueError, match="position 11 needs more than num_digits=1"):
        pe.prepare_grid((4, 4), start=(0, 8))
