import pytest
import torch

from seqpe_zoo.data.errors import DataError
from seqpe_zoo.evaluation.diagnostics import similarity_matrix
from seqpe_zoo.evaluation.position_space import (
    BEST_SCORES,
    collapse_score,
    diagnose_grid,
    diagnose_line,
    encoding_with_vectors,
    grid_heatmaps,
    neighbour_coverage,
)
from seqpe_zoo.portable.encodings import build_position_encoding


def ring(count: int, turns: float) -> torch.Tensor:
    angle = torch.arange(count) / count * turns * torch.pi
    return 12 * torch.stack([angle.cos(), angle.sin()], dim=-1)


def test_identical_vectors_have_collapsed_and_different_ones_have_not() -> None:
    assert collapse_score(torch.ones(50, 8)) == pytest.approx(1.0)
    assert collapse_score(30 * torch.eye(50)) < 0.01


def test_neighbours_are_found_on_a_line_and_not_among_digits() -> None:
    assert neighbour_coverage(similarity_matrix(ring(200, 1.0))) == 1.0
    last_digit = torch.nn.functional.one_hot(torch.arange(200) % 100).float()
    assert neighbour_coverage(similarity_matrix(last_digit)) == 0.0


@pytest.mark.parametrize("name", ["seqpe", "ape_learn", "ape_sin"])
def test_line_is_diagnosed(name: str) -> None:
    encoding = build_position_encoding(name, 32, num_heads=4, train_shape=(64,), causal=True)
    scores = diagnose_line(encoding_with_vectors(encoding), 300)
    assert 0 <= scores["digit_artefact_score"] <= 1
    assert 0 < scores["collapse_of_shifted_copies"] <= 1.0001
    assert scores["training_context"] == 64
    assert set(BEST_SCORES) == set(scores) - {"positions", "training_context"}


@pytest.mark.parametrize("name", ["seqpe", "ape_learn"])
def test_grid_is_diagnosed(name: str) -> None:
    encoding = build_position_encoding(name, 32, num_heads=4, num_dims=2, train_shape=(4, 4), num_prefix=1)
    scores = diagnose_grid(encoding_with_vectors(encoding), 8)
    assert -1 <= scores["nearness_correlation"] <= 1
    assert scores["positions"] == 64


def test_heatmaps_are_those_of_corners_and_centre() -> None:
    encoding = build_position_encoding("seqpe", 32, num_heads=4, num_dims=2, train_shape=(4, 4))
    heatmaps = grid_heatmaps(encoding, 5)
    assert list(heatmaps) == [(0, 0), (0, 4), (2, 2), (4, 0), (4, 4)]
    assert heatmaps[0, 4][4, 0] == pytest.approx(float(heatmaps[4, 0][0, 4]), rel=1e-4)


@pytest.mark.parametrize("name", ["rope", "alibi", "nope"])
def test_encoding_without_vectors_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"{name!r} gives positions no vectors"):
        encoding_with_vectors(build_position_encoding(name, 32, num_heads=4, causal=True))


def test_other_model_is_refused() -> None:
    with pytest.raises(DataError, match="no position encoding of seqpe_zoo"):
        encoding_with_vectors(torch.nn.Linear(2, 2))


def test_encoding_that_numbers_patches_through_is_diagnosed_on_a_grid() -> None:
    encoding = build_position_encoding("ape_sin", dim=16, num_dims=2, train_shape=(4, 4))
    scores = diagnose_grid(encoding, 6)
    assert (scores["positions"], scores["training_context"]) == (36, 16)
    heatmap = grid_heatmaps(encoding, 6)[(0, 0)]
    assert heatmap.shape == (6, 6)
    assert heatmap.argmax() == 0  # a position is most like itself
    assert heatmap[0, 1] > heatmap[1, 0]  # the next column is next in number, the next row is not
