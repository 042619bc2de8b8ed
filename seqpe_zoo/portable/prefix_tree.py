"""The tree of shared prefixes of a set of digit sequences.

Under causal attention the state of a digit depends on the digits before it alone, so all positions that share
leading digits share those states: 0..19999 with five digits are 120,000 tokens but 22,222 different
prefixes. This file finds them with sorting and comparing; `sequence_transformer.py` and `sequence_gru.py`
compute on them.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor


class PrefixTree(NamedTuple):
    """Nodes are the different prefixes, numbered place by place; M nodes, U sequences of T symbols."""

    place: Tensor
    """(M,) place of the last symbol of each prefix, ascending."""
    leaf: Tensor
    """(M,) one sequence that starts with each prefix."""
    paths: Tensor
    """(U, T) node of each sequence at each place."""
    first: Tuple[int, ...]
    """Number of the first node of each place, and M at the end."""


def sort_unique_positions(positions: Tensor, capacity: int) -> Tuple[Tensor, Optional[Tensor]]:
    """Sorts positions lexicographically and drops repetitions.

    Args:
        positions: (N, n), coordinates from -1 (absent) to capacity - 1.
        capacity: coordinates are below it.

    Returns:
        The unique positions (U, n) and, for each input position, its number among them (N,); None instead
        when the input was sorted and unique already, which saves the copy.
    """
    num_dims = positions.shape[-1]
    if (capacity + 1) ** num_dims >= 2**63:  # a single integer cannot number all positions
        unique, inverse = torch.unique(positions, dim=0, return_inverse=True)
        return unique, inverse
    codes = positions[:, 0].long() + 1
    for dimension in range(1, num_dims):
        codes = codes * (capacity + 1) + (positions[:, dimension] + 1)
    if bool((codes[1:] > codes[:-1]).all()):
        return positions, None
    unique_codes, inverse = torch.unique(codes, return_inverse=True)
    coordinates = []
    for _ in range(num_dims):
        coordinates.append(unique_codes % (capacity + 1) - 1)
        unique_codes = unique_codes // (capacity + 1)
    return torch.stack(coordinates[::-1], dim=-1), inverse


def build_prefix_tree(symbols: Tensor) -> PrefixTree:
    """Finds the different prefixes of sequences.

    Args:
        symbols: (U, T), rows different and sorted lexicographically.
    """
    starts_prefix = torch.ones_like(symbols, dtype=torch.bool)
    differs = (symbols[1:] != symbols[:-1]).long().cumsum(
        dim=1
    ) > 0  # differs from the row above at or before t
    starts_prefix[1:] = differs
    counts = starts_prefix.sum(dim=0)
    ends = counts.cumsum(dim=0)
    paths = starts_prefix.long().cumsum(dim=0) - 1 + (ends - counts)
    place, leaf = starts_prefix.t().nonzero(as_tuple=True)
    return PrefixTree(place, leaf, paths, (0, *ends.tolist()))
