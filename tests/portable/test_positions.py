import pytest
import torch

from seqpe_zoo import Positions, SeqPE, build_position_encoding
from seqpe_zoo.portable.positions import (
    grid_positions,
    positions_from_mask,
    range_positions,
    ravel_positions,
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


def test_ranges_start_where_told():
    assert range_positions(3, start=4).tolist() == [[4], [5], [6]]


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


def test_the_last_position_works_and_the_next_does_not():
    pe = SeqPE(dim=8, num_dims=1, num_digits=3, base=7)
    assert pe(torch.tensor([[342]])).shape == (1, 8)
    with pytest.raises(ValueError, match="largest allowed position is 342"):
        pe(torch.tensor([[343]]))


def test_a_range_beyond_capacity_is_refused_before_it_is_made():
    pe = SeqPE(dim=8, num_dims=1, num_digits=2)
    with pytest.raises(ValueError, match="position 119 needs more than num_digits=2"):
        pe(Positions((120,)))


def test_a_grid_beyond_capacity_is_refused_before_it_is_made():
    pe = SeqPE(dim=8, num_dims=2, num_digits=1)
    with pytest.raises(ValueError, match="position 11 needs more than num_digits=1"):
        pe(Positions((4, 4), (0, 8)))


SMALL = [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("name", ["seqpe", "rope", "alibi", "ape_sin", "ape_learn"])
@torch.no_grad()
def test_integers_of_any_type_are_the_same_positions(name, dtype):
    """127 + 1 does not fit into int8, and 256 not into uint8, which alibi divides by."""
    pe = build_position_encoding(name, 8, num_heads=2, causal=True, train_shape=(128,)).eval()
    ids = torch.tensor([[127], [0], [3]])
    expected = pe(Positions(ids=ids))
    for given in (ids.to(dtype), ids.expand(2, 3, 1).to(dtype)):
        found = pe(Positions(ids=given))
        torch.testing.assert_close(found.encoded, expected.encoded.expand_as(found.encoded))
        torch.testing.assert_close(found.layers[0], expected.layers[0].expand_as(found.layers[0]))
    torch.testing.assert_close(pe(ids.to(dtype)), pe(ids))


@pytest.mark.parametrize(("dtype", "largest"), [(torch.uint8, 255), (torch.int8, 127)])
@torch.no_grad()
def test_the_largest_small_integer_is_not_absent(dtype, largest):
    pe = SeqPE(dim=8, num_dims=2, num_digits=3, allow_absent=True).eval()
    ids = torch.tensor([[largest, largest], [0, largest]])
    expected = pe.encoder.encode_each(ids)
    torch.testing.assert_close(pe(ids.to(dtype)), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pe(Positions(ids=ids.to(dtype))).encoded, expected, atol=1e-5, rtol=1e-5)


def test_a_position_that_no_int64_holds_is_refused():
    with pytest.raises(ValueError, match=r"2\*\*63 or more does not fit"):
        SeqPE(dim=8)(torch.tensor([[2**63]], dtype=torch.uint64))


@pytest.mark.parametrize("name", ["seqpe", "rope", "alibi", "ape_sin", "ape_learn", "nope"])
@pytest.mark.parametrize("training", [False, True])
def test_no_positions_are_no_error(name, training):
    pe = build_position_encoding(name, 8, num_heads=2, causal=True, train_shape=(16,)).train(training)
    with torch.no_grad():
        assert pe(torch.empty(0, 1, dtype=torch.long)).shape[0] == 0
        for empty in (Positions((0,)), Positions(ids=torch.empty(2, 0, 1, dtype=torch.long))):
            inputs = pe(empty, batch_size=2, objectives=True)
            assert inputs.layers[0].shape[-2] == 0
            assert inputs.losses is None or all(bool(loss.isfinite()) for loss in inputs.losses)


@torch.no_grad()
def test_a_model_without_memory_has_shapes():
    with torch.device("meta"):
        pe = SeqPE(dim=8, num_heads=2).eval()
    ids = torch.zeros(2, 3, 1, dtype=torch.long, device="meta")
    assert pe(Positions(ids=ids)).layers[0].shape == (2, 3, 16)
    assert pe(Positions((3,)), device=torch.device("meta")).layers[0].shape == (3, 16)


def test_positions_without_values_are_refused_by_a_model_with_memory():
    ids = torch.zeros(3, 1, dtype=torch.long, device="meta")
    for given in (ids, Positions(ids=ids)):
        with pytest.raises(ValueError, match="meta device"):
            SeqPE(dim=8, num_heads=2).eval()(given)


@pytest.mark.parametrize("given", [[[1]], 3, "1"])
def test_what_is_no_tensor_is_refused_in_positions_too(given):
    with pytest.raises(TypeError, match="must be a tensor"):
        SeqPE(dim=8)(Positions(ids=given))


@pytest.mark.parametrize(
    ("size", "start"),
    [((3,), ()), ((3, -1), ()), ((3, 2.0), ()), ((3, 4), (1,)), ((3, 4), (0, -1)), (5, ()), (None, ())],
)
def test_grids_are_whole_numbers_for_each_dimension(size, start):
    with pytest.raises(ValueError, match="must be 2 whole numbers from 0 on"):
        SeqPE(dim=8, num_dims=2)(Positions(size, start))
