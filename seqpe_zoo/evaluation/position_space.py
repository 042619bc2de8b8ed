"""The vectors that a checkpoint gives to positions, and what can be read from them without data.

Two more scores beside those of `diagnostics.py`: whether shifted copies of the training context have
collapsed (section 3.4 of the paper), and for which share of the positions similarity finds the neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..data.errors import DataError
from ..portable.positions import grid_positions
from .diagnostics import NEAR, digit_artefact_score, nearness_correlation, similarity_matrix
from .model_loading import find_position_encoding
from .plots import plot_grid_heatmaps, plot_similarity

_LARGEST_HEATMAP = 1024
"""Rows of a heatmap: more could not be told apart on a screen."""
BEST_SCORES = {
    "digit_artefact_score": "0: nearness rules, not digits",
    "nearness_correlation": "1: similarity falls with distance",
    "collapse_of_training_context": "below 1: positions can be told apart",
    "collapse_of_shifted_copies": "that of the training context",
    "coverage_of_training_context": "1: the most similar position is a near one",
    "coverage_of_all_positions": "1",
}
"""What a score is where all is well, in words for a reader."""


def encoding_with_vectors(model: nn.Module) -> Any:
    """Returns the encoding of a model that gives each position a vector.

    Raises:
        DataError: the model is none of ours, or its encoding has no vectors (rope, alibi, nope).
    """
    encoding = find_position_encoding(model)
    if encoding is None:
        raise DataError("this model has no position encoding of seqpe_zoo; there are no vectors to look at")
    with torch.inference_mode():
        position = torch.zeros(1, encoding.num_dims, dtype=torch.long, device=_device(encoding))
        width = encoding.eval().encode(position).shape[-1]
    if encoding.name not in ("seqpe", "ape_learn", "ape_sin") or width == 0:
        raise DataError(
            f"position encoding {encoding.name!r} gives positions no vectors of their own; "
            "seqpe, ape_learn and ape_sin do"
        )
    return encoding


@torch.inference_mode()
def position_vectors(encoding: Any, positions: Tensor, extent: Sequence[int] | None = None) -> Tensor:
    """Returns the vectors (N, P) of positions (N, n), on the CPU."""
    places = positions.to(_device(encoding))
    return encoding.eval().encode(places, None if extent is None else list(extent)).float().cpu().clone()


def grid_vectors(encoding: Any, side: int) -> Tensor:
    """Returns the vectors (side * side, P) of a square grid in row-major order."""
    if encoding.flattens:  # cells are numbered through; that a class token comes first changes no similarity
        return position_vectors(encoding, torch.arange(side * side).unsqueeze(-1))
    return position_vectors(encoding, grid_positions((side, side)), (side, side))


def collapse_score(vectors: Tensor) -> float:
    """Tells how alike the positions of a context look to each other: 1 when they cannot be told apart.

    Args:
        vectors: (N, P), of one context.

    Returns:
        Mean entropy of the rows of the softmax of all dot products, as the distillation objective compares
        them, as a share of the entropy of the uniform distribution.
    """
    logs = similarity_matrix(vectors).double().log_softmax(dim=-1)
    entropy = -(logs.exp() * logs).sum(-1)
    return float(entropy.mean() / math.log(len(vectors)))


def neighbour_coverage(similarity: Tensor) -> float:
    """Returns the share of positions whose most similar other position is near."""
    others = similarity.clone().fill_diagonal_(-math.inf)
    places = torch.arange(len(similarity))
    return float(((others.argmax(1).cpu() - places).abs() <= NEAR).double().mean())


def diagnose_line(encoding: Any, positions: int) -> dict[str, float]:
    """All scores of a 1-D encoding over the positions 0..positions-1.

    Args:
        encoding: from `encoding_with_vectors`.
        positions: how many, at least 101 for the digit artefacts.
    """
    if positions < 101:
        raise DataError(f"{positions} positions hold no pair 100 apart; look at 101 or more")
    window = min(int((encoding.train_shape or (128,))[0]), positions // 2)
    vectors = position_vectors(encoding, torch.arange(positions).unsqueeze(-1), [positions])
    similarity = similarity_matrix(vectors)
    starts = torch.linspace(window, positions - window, 8).long().unique().tolist()
    shifted = [collapse_score(vectors[start : start + window]) for start in starts]
    return {
        "positions": positions,
        "training_context": window,
        "digit_artefact_score": digit_artefact_score(similarity),
        "nearness_correlation": nearness_correlation(similarity),
        "collapse_of_training_context": collapse_score(vectors[:window]),
        "collapse_of_shifted_copies": sum(shifted) / len(shifted),
        "coverage_of_training_context": neighbour_coverage(similarity[:window, :window]),
        "coverage_of_all_positions": neighbour_coverage(similarity),
    }


def diagnose_grid(encoding: Any, side: int) -> dict[str, float]:
    """All scores of a 2-D encoding over a grid of side x side positions."""
    rows, columns = encoding.train_shape or (side // 2, side // 2)
    rows, columns = min(rows, side), min(columns, side)
    cells = grid_positions((side, side))
    vectors = grid_vectors(encoding, side)
    similarity = similarity_matrix(vectors)
    distance = torch.cdist(cells.double(), cells.double())
    inside = (cells[:, 0] < rows) & (cells[:, 1] < columns)
    last = (cells[:, 0] >= side - rows) & (cells[:, 1] >= side - columns)
    found = similarity.clone().fill_diagonal_(-math.inf).argmax(1, keepdim=True)
    near = distance.gather(1, found).squeeze(1) <= 1.5  # the eight neighbours
    return {
        "positions": side * side,
        "training_context": rows * columns,
        "nearness_correlation": nearness_correlation(similarity, distance),
        "collapse_of_training_context": collapse_score(vectors[inside]),
        "collapse_of_shifted_copies": collapse_score(vectors[last]),
        "coverage_of_training_context": float(near[inside].double().mean()),
        "coverage_of_all_positions": float(near.double().mean()),
    }


def grid_heatmaps(encoding: Any, side: int) -> dict[tuple[int, int], Tensor]:
    """Returns the similarity of the paper's five positions, four corners and centre, to all of a grid."""
    return landmarks(similarity_matrix(grid_vectors(encoding, side)), side)


def landmarks(similarity: Tensor, side: int) -> dict[tuple[int, int], Tensor]:
    """Returns the rows of four corners and the centre from the similarities of a square grid."""
    end, middle = side - 1, side // 2
    chosen = dict.fromkeys([(0, 0), (0, end), (middle, middle), (end, 0), (end, end)])
    return {(row, column): similarity[row * side + column].view(side, side) for row, column in chosen}


def position_heatmap(encoding: Any, size: int) -> Any:
    """Draws how alike position vectors are: of a line of `size` tokens, or of a grid of that side.

    Dot products have another scale at every size; correlations are between -1 and 1 at all of them.

    Args:
        encoding: from `encoding_with_vectors`.
        size: tokens, or patches of a side.
    """
    if encoding.host.num_dims == 2:
        shown = correlations(grid_vectors(encoding, size))
        figure = plot_grid_heatmaps(landmarks(shown, size), f"grid of {size} x {size} patches")
    else:
        stride = -(-size // _LARGEST_HEATMAP)
        vectors = position_vectors(encoding, torch.arange(0, size, stride).unsqueeze(-1), [size])
        title = f"{size:,} positions" if stride == 1 else f"{size:,} positions, one of {stride} shown"
        figure = plot_similarity({title: correlations(vectors)})
    for axes in figure.axes:
        for image in axes.images:
            image.set_clim(-1.0, 1.0)
    return figure


def correlations(vectors: Tensor) -> Tensor:
    """Returns how alike vectors (N, P) are, (N, N), seen from their mean: between -1 and 1."""
    centred = vectors - vectors.mean(dim=0)
    return similarity_matrix(torch.nn.functional.normalize(centred, dim=-1))


def _device(encoding: nn.Module) -> torch.device:
    return next((parameter.device for parameter in encoding.parameters()), torch.device("cpu"))
