import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqpe_zoo.portable.objectives import (
    distance_contrastive_loss,
    edit_positions,
    sample_contrastive,
    sample_distinct,
    sample_shifts,
    sample_transfer,
    squared_distance,
)
from seqpe_zoo.portable.positions import ravel_positions


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(high=st.integers(1, 5000), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_distinct_samples_are_distinct_and_in_range(high, share, seed):
    count = max(1, int(min(high, 40) * share))
    drawn = sample_distinct(high, 5, count, generator(seed))
    assert drawn.shape == (5, count)
    assert drawn.min() >= 0
    assert drawn.max() < high
    assert all(len(set(row)) == count for row in drawn.tolist())


def test_distinct_samples_are_uniform():
    for high in (40, 400):  # both ways of drawing
        counts = torch.bincount(sample_distinct(high, 20000, 5, generator()).flatten(), minlength=high)
        expected = 20000 * 5 / high
        assert (counts - expected).abs().max() < 6 * expected**0.5


def test_more_samples_than_positions_are_refused():
    with pytest.raises(ValueError, match="cannot draw 11 different positions out of 10"):
        sample_distinct(10, 2, 11, generator())


@given(
    max_position=st.integers(12, 3000),
    num_dims=st.integers(1, 3),
    base=st.integers(2, 16),
    candidates=st.integers(2, 9),
    local=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_contrastive_sets_keep_their_promises(max_position, num_dims, base, candidates, local, seed):
    drawn = sample_contrastive(
        max_position, num_dims, base, 16, candidates, generator(seed), local_probability=local, local_range=20
    )
    pivots = drawn.pivots.unsqueeze(1)
    assert drawn.candidates.shape == (16, candidates, num_dims)
    assert drawn.candidates.min() >= 0
    assert drawn.candidates.max() < max_position
    assert not (drawn.candidates == pivots).all(-1).any()
    codes = ravel_positions(drawn.candidates, [max_position] * num_dims)
    assert all(len(set(row)) == candidates for row in codes.tolist())
    distances = squared_distance(drawn.pivots, drawn.candidates)
    chosen = distances.gather(1, drawn.nearest.unsqueeze(1))
    assert torch.equal(chosen.squeeze(1), distances.amin(1))
    expected_ties = (distances == chosen).scatter(1, drawn.nearest.unsqueeze(1), False)
    assert torch.equal(drawn.tied, expected_ties)


def test_ties_are_marked_and_not_trained_as_negatives():
    """The release labels one of two equidistant candidates at random and trains the other as a negative."""
    drawn = sample_contrastive(60, 1, 10, 500, 20, generator(), local_probability=0.0)
    assert drawn.tied.any()
    row = int(drawn.tied.any(1).nonzero()[0])
    candidates = torch.randn(1, 20, 8, requires_grad=True)
    loss = distance_contrastive_loss(
        torch.randn(1, 8), candidates, drawn.nearest[row : row + 1], drawn.tied[row : row + 1]
    )
    loss.backward()
    assert (candidates.grad[0][drawn.tied[row]] == 0).all()
    assert (candidates.grad[0][~drawn.tied[row]] != 0).any(-1).all()


@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_hard_candidates_are_drawn_and_never_positive(num_dims):
    """The release's image sampler never draws hard or local candidates; ours does, in any dimension."""
    max_position = 20000 if num_dims == 1 else 100
    drawn = sample_contrastive(max_position, num_dims, 10, 400, 32, generator(), local_probability=0.0)
    pivots = drawn.pivots.unsqueeze(1)
    # A twin differs in one coordinate alone (by chance that is rare in several dimensions) and comes first.
    twins = drawn.candidates[:, :8]
    one_coordinate = ((twins != pivots).sum(-1) == 1).float().mean()
    assert one_coordinate > 0.3
    positive = drawn.candidates.gather(1, drawn.nearest[:, None, None].expand(-1, 1, num_dims))
    if num_dims > 1:  # where twins can be told from others, no positive is one
        assert ((positive != pivots).sum(-1) == 1).float().mean() < 0.5


@pytest.mark.parametrize(("num_dims", "max_position", "side"), [(1, 20000, 256), (2, 100, 16), (3, 100, 7)])
def test_local_candidates_come_from_one_small_region(num_dims, max_position, side):
    drawn = sample_contrastive(max_position, num_dims, 10, 200, 32, generator(), local_probability=1.0)
    extent = drawn.candidates.amax(1) - drawn.candidates.amin(1)
    assert extent.max() < side


def test_both_kinds_of_sets_are_drawn():
    drawn = sample_contrastive(20000, 1, 10, 1000, 32, generator(), local_probability=0.5)
    extent = (drawn.candidates.amax(1) - drawn.candidates.amin(1)).squeeze(1)
    assert 0.4 < (extent < 256).float().mean() < 0.6


def test_edits_are_single_digit_operations():
    numbers = torch.full((4000, 1), 123)
    edited = {int(value) for value in edit_positions(numbers, 10, 10**5, generator())}
    assert {213, 132, 321} <= edited  # swapped
    assert {1230, 1123, 1923} <= edited  # inserted
    assert {124, 193, 923} <= edited  # replaced
    assert {12, 13, 23} <= edited  # deleted


def test_a_seed_gives_the_same_sets_and_another_seed_others():
    draws = [sample_contrastive(1000, 2, 10, 8, 16, generator(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0].candidates, draws[1].candidates)
    assert not torch.equal(draws[0].candidates, draws[2].candidates)


@given(
    window=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    room=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_transfer_sets_keep_their_promises(window, room, seed):
    max_position = 2 * max(window) + room
    drawn = sample_transfer(window, max_position, 6, 10, generator(seed))
    sides = torch.tensor(window)
    assert (drawn.teachers >= 0).all()
    assert (drawn.teachers < sides).all()
    assert drawn.students.max() < max_position
    shift = drawn.students - drawn.teachers
    assert (shift == shift[:, :1]).all()
    assert (shift > 0).any(-1).all()
    assert all(len(set(map(tuple, row))) == len(row) for row in drawn.teachers.tolist())


def test_no_room_for_shifted_contexts_is_said():
    with pytest.raises(ValueError, match=r"context of \(90,\).*max_position=100.*ood_weight=0"):
        sample_transfer((90,), 100, 4, 8, generator())


def test_shifts_follow_their_probability_and_stay_inside():
    starts, rows = sample_shifts((14, 14), 100, 2000, 0.1, "example", generator())
    assert rows.shape == (2000,)
    assert starts.shape[1] == 2
    assert starts[0].tolist() == [0, 0]
    assert starts.max() <= 86
    assert 0.07 < (rows > 0).float().mean() < 0.13
    assert len(set(rows[rows > 0].tolist())) == starts.shape[0] - 1


def test_batch_scope_shifts_all_or_none():
    shares = {
        float((sample_shifts((14,), 100, 16, 0.5, "batch", generator(seed))[1] > 0).float().mean())
        for seed in range(20)
    }
    assert shares == {0.0, 1.0}


def test_a_window_that_fills_the_max_position_is_not_shifted():
    starts, rows = sample_shifts((100,), 100, 8, 1.0, "example", generator())
    assert starts.shape == (1, 1)
    assert (rows == 0).all()
