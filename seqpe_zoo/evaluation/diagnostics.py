"""What an embedding space of positions looks like, as numbers (paper, Figure 2 and section 3.4).

Without the contrastive objective, positions that share digits are similar though they are far apart; with it,
similarity falls with distance. The functions take similarity matrices or vectors, not models.
"""

import torch
from torch import Tensor

NEAR = 20
"""Positions up to this far away count as near."""


def similarity_matrix(vectors: Tensor) -> Tensor:
    """Returns all dot products (N, N) of vectors (N, P), the similarity of the paper's heatmaps."""
    vectors = vectors.detach().float()
    return vectors @ vectors.t()


def digit_artefact_score(similarity: Tensor) -> float:
    """Tells how often a position is more similar to one a round number away than to its near ones.

    Args:
        similarity: (N, N), row p holding the similarities of position p; N greater than 100.

    Returns:
        Share, between 0 and 1, of pairs 100 and 1,000 apart whose similarity exceeds the mean similarity of p
        to the positions 1 to 20 away. Near one half or above for vectors that know digits only; 0 where
        nearness rules.
    """
    size = similarity.shape[0]
    strides = [stride for stride in (100, 1000) if stride < size]
    if not strides:
        raise ValueError(f"a similarity matrix of {size} positions holds no pair 100 apart; use more")
    places = torch.arange(size)
    distance = (places.unsqueeze(1) - places).abs()
    near = ((distance > 0) & (distance <= NEAR)).to(similarity.dtype)
    near_similarity = (similarity * near).sum(1) / near.sum(1)
    exceeding = total = 0
    for stride in strides:
        exceeding += int((similarity.diagonal(stride) > near_similarity[: size - stride]).sum())
        exceeding += int((similarity.diagonal(-stride) > near_similarity[stride:]).sum())
        total += 2 * (size - stride)
    return exceeding / total


def nearness_correlation(similarity: Tensor, distance: Tensor | None = None) -> float:
    """Returns Spearman's rank correlation of similarity with nearness, averaged over positions.

    Args:
        similarity: (N, N).
        distance: (N, N), by default that of positions on a line.
    """
    if distance is None:
        places = torch.arange(similarity.shape[0], device=similarity.device)
        distance = (places.unsqueeze(1) - places).abs()
    a, b = _mean_ranks(similarity.double()), _mean_ranks(-distance.double())
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    spread = (a.square().sum(1) * b.square().sum(1)).sqrt()
    return float(((a * b).sum(1) / spread.clamp(min=1e-12)).mean())


def _mean_ranks(values: Tensor) -> Tensor:
    """Ranks of each row's entries; equal entries share the mean of their ranks."""
    ordered, order = values.sort(dim=1)
    ranks = torch.arange(values.shape[1], dtype=torch.float64, device=values.device).expand_as(values)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = starts.long().cumsum(1) - 1
    sums = torch.zeros(values.shape, dtype=torch.float64, device=values.device).scatter_add_(1, run, ranks)
    counts = torch.zeros_like(sums).scatter_add_(1, run, torch.ones_like(ranks))
    shared = (sums / counts.clamp(min=1)).gather(1, run)
    return torch.empty_like(shared).scatter_(1, order, shared)
