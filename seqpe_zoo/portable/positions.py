"""Positions: where tokens are, as integer tensors of shape (..., n).

Everything that makes positions lives here: ranges for text, grids for images and volumes, positions counted
over a padding mask or continued after a cache. Positions are validated here, where they are made, with Python
integers where those are known, so that the hot path never waits for a device. Turning positions into digits
is the business of `digits.py`.
"""

import math
from typing import List, Optional, Sequence

import torch
from torch import Tensor

ABSENT = -1
"""A coordinate that a token does not have, as the row and column of a word between two pictures."""


def range_positions(length: int, start: int = 0, device: Optional[torch.device] = None) -> Tensor:
    """Returns the 1-D positions start, start + 1, ... as an (L, 1) tensor."""
    return torch.arange(start, start + length, device=device).unsqueeze(-1)


def grid_positions(
    size: Sequence[int], start: Optional[Sequence[int]] = None, device: Optional[torch.device] = None
) -> Tensor:
    """Returns the positions of a grid in row-major order, last dimension fastest.

    Args:
        size: number of cells in each dimension, for an image (rows, columns).
        start: position of the first cell, zeros when not given.
        device: where the tensor lives.

    Returns:
        Tensor of shape (prod(size), n); dimension 0 is the row of an image, dimension 1 its column.
    """
    axes: List[Tensor] = []
    for dimension, cells in enumerate(size):
        origin = 0 if start is None else start[dimension]
        axes.append(torch.arange(cells, device=device) + origin)
    return torch.stack(torch.meshgrid(axes, indexing="ij"), dim=-1).reshape(-1, len(axes))


def positions_from_mask(attention_mask: Tensor, start: int = 0) -> Tensor:
    """Counts positions over the real tokens of each row, so that padding on either side takes none.

    Args:
        attention_mask: (B, L), nonzero for real tokens.
        start: position of the first real token.

    Returns:
        (B, L, 1); padded tokens repeat the position before them (or `start`), which is always legal.
    """
    counted = attention_mask.long().cumsum(dim=-1) - 1
    return (counted.clamp(min=0) + start).unsqueeze(-1)


def positions_after_cache(past_length: int, length: int, device: Optional[torch.device] = None) -> Tensor:
    """Returns the (L, 1) positions of new tokens that continue a cache of `past_length` tokens."""
    return range_positions(length, past_length, device)


def ravel_positions(positions: Tensor, sides: List[int]) -> Tensor:
    """Numbers the cells of a box in row-major order: (..., n) positions to (...) indices."""
    index = positions[..., 0].long()  # small integer types would overflow
    for dimension in range(1, len(sides)):
        index = index * sides[dimension] + positions[..., dimension]
    return index


def unravel_positions(index: Tensor, sides: Sequence[int]) -> Tensor:
    """Inverse of `ravel_positions`: (...) indices to (..., n) positions."""
    coordinates: List[Tensor] = []
    for side in reversed(list(sides)):
        coordinates.append(index % side)
        index = torch.div(index, side, rounding_mode="floor")
    return torch.stack(coordinates[::-1], dim=-1)


def check_largest_position(largest: int, capacity: int, base: int, num_digits: int) -> None:
    """Raises when a position does not fit into its digits.

    Raises:
        ValueError: `largest` needs more than `num_digits` digits; says how many would do.
    """
    if largest < capacity:
        return
    needed = num_digits
    while base**needed <= largest:
        needed += 1
    raise ValueError(
        f"position {largest} needs more than num_digits={num_digits} digits in base {base}; "
        f"the largest allowed position is {capacity - 1}. Use num_digits={needed} (a model trained with "
        "fewer digits has no embeddings for more of them), or keep sequences and images below that size."
    )


def check_positions(
    positions: Tensor, num_dims: int, base: int, num_digits: int, allow_absent: bool = False
) -> None:
    """Validates positions that came from outside; reads their values, so on a GPU it waits for the device.

    Raises:
        TypeError: positions are no tensor.
        ValueError: positions are not integers, have another number of dimensions, are negative, or do not
            fit.
    """
    capacity = base**num_digits
    if not isinstance(positions, Tensor):
        raise TypeError(
            f"positions must be a tensor of shape (..., {num_dims}), got {type(positions).__name__}; "
            "convert with torch.tensor(positions)"
        )
    if positions.dtype.is_floating_point or positions.dtype.is_complex or positions.dtype == torch.bool:
        raise ValueError(
            f"positions must be integers, got a tensor of {positions.dtype}; "
            f"whole numbers from 0 to {capacity - 1} are allowed: convert with .long()"
        )
    if positions.ndim == 0 or positions.shape[-1] != num_dims:
        raise ValueError(
            f"positions must have shape (..., {num_dims}), a coordinate (0 to {capacity - 1}) per dimension; "
            f"got {tuple(positions.shape)}."
            + (" Add the missing axis with positions.unsqueeze(-1)." if num_dims == 1 else "")
        )
    if positions.numel() == 0:
        return
    smallest, largest = (int(value) for value in positions.aminmax())
    if smallest < (ABSENT if allow_absent else 0):
        advice = "" if allow_absent else " (a coordinate of -1 means 'absent' and needs allow_absent=True)"
        raise ValueError(
            f"position {smallest} is negative; positions go from 0 to {capacity - 1}{advice}. "
            "Shift all positions so that the smallest is 0."
        )
    check_largest_position(largest, capacity, base, num_digits)


def side_for_volume(volume: int, num_dims: int) -> int:
    """Returns the side of the smallest n-cube that holds `volume` cells."""
    side = max(1, math.floor(volume ** (1.0 / num_dims)))
    while side**num_dims < volume:
        side += 1
    return side
