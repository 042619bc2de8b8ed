"""Positions: where tokens are, and how a position is written as digits (paper, section 3.2).

A position has n integer coordinates. `Positions` describes those of a forward pass: a grid whose size is
known without looking at a tensor (a range of text is a grid of one dimension), or a tensor. Digits are plain
tensor arithmetic that can be traced, compiled and exported.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

ABSENT = -1
"""A coordinate that a token does not have, such as the row and column of a word between two images."""


class Positions(NamedTuple):
    """The positions of a forward pass: a grid of `size` cells whose first is `start`, or a tensor `ids`."""

    size: tuple[int, ...] | None = None
    start: tuple[int, ...] = ()
    """As long as `size`; zeros when not given."""
    ids: Tensor | None = None
    """Integers (L, n) or (B, L, n)."""
    bound: tuple[int, ...] | None = None
    """What the coordinates of `ids` are known to be below, by dimension; with it they are not read."""

    def origin(self) -> tuple[int, ...]:
        """Returns the first cell of a grid."""
        return self.start or (0,) * len(self.size)  # type: ignore[arg-type]

    def within(self, rows: int) -> bool:
        """Whether these are a range of text positions that ends at `rows` at the latest."""
        if not isinstance(self.size, tuple) or not len(self.size) == len(self.origin()) == 1:
            return False
        (cells,), (first,) = self.size, self.origin()
        return 0 <= first < rows and first <= first + cells <= rows

    def tensor(self, device: Any = None) -> Tensor:
        """Returns (L, n), or (B, L, n) where the examples of a batch differ."""
        return grid_positions(self.size, self.origin(), device) if self.ids is None else self.ids  # type: ignore[arg-type]

    def limit(self) -> list[int] | None:
        """Returns what coordinates are below, by dimension; None for a tensor whose values are unknown."""
        if self.ids is None:
            return [first + cells for first, cells in zip(self.origin(), self.size)]  # type: ignore[arg-type]
        return None if self.bound is None else list(self.bound)


def range_positions(length: int, start: int = 0, device: Any = None) -> Tensor:
    """Returns the 1-D positions start, start + 1, ... as an (L, 1) tensor."""
    return grid_positions((length,), (start,), device)


def grid_positions(size: Sequence[int], start: Sequence[int] | None = None, device: Any = None) -> Tensor:
    """Returns the positions of a grid in row-major order, last dimension fastest.

    Args:
        size: cells in each dimension, for an image (rows, columns).
        start: position of the first cell, zeros when not given.
        device: where the tensor lives.

    Returns:
        (prod(size), n); dimension 0 is the row of an image, dimension 1 its column.
    """
    axes = [
        torch.arange(cells, device=device) + first for cells, first in zip(size, start or [0] * len(size))
    ]
    return torch.stack(torch.meshgrid(axes, indexing="ij"), dim=-1).reshape(-1, len(axes))


def positions_from_mask(attention_mask: Tensor, start: int = 0) -> Tensor:
    """Counts positions over the real tokens of each row, so that padding on either side takes none.

    Args:
        attention_mask: (B, L), nonzero for real tokens.
        start: position of the first real token.

    Returns:
        (B, L, 1); padded tokens repeat the position before them (or `start`), which is always legal.
    """
    counted = (attention_mask != 0).long().cumsum(dim=-1) - 1
    return (counted.clamp(min=0) + start).unsqueeze(-1)


def ravel_positions(positions: Tensor, sides: Sequence[int]) -> Tensor:
    """Numbers the cells of a box in row-major order: (..., n) positions to (...) indices."""
    index = positions[..., 0].long()
    for dimension in range(1, len(sides)):
        index = index * sides[dimension] + positions[..., dimension]
    return index


def unravel_positions(index: Tensor, sides: Sequence[int]) -> Tensor:
    """Inverse of `ravel_positions`: (...) indices to (..., n) positions."""
    coordinates: list[Tensor] = []
    for side in reversed(list(sides)):
        coordinates.append(index % side)
        index = torch.div(index, side, rounding_mode="floor")
    return torch.stack(coordinates[::-1], dim=-1)


def check_positions(
    positions: Any,
    num_dims: int,
    capacity: int | None,
    allow_absent: bool = False,
    device: torch.device | None = None,
) -> Positions:
    """Validates positions that a user passes; reads their values, so on a GPU it waits for the device.

    Args:
        positions: integers (..., n).
        num_dims: n.
        capacity: what coordinates should be below, for messages; None where there is no limit.
        allow_absent: whether a coordinate may be -1.
        device: of the encoding.

    Returns:
        The positions as int64, so that arithmetic does not overflow, with their bound.
    """
    highest = "any size" if capacity is None else f"{capacity - 1}"
    if not isinstance(positions, Tensor):
        raise TypeError(
            f"positions must be a tensor of shape (..., {num_dims}), got {type(positions).__name__}; "
            "convert with torch.tensor(positions)"
        )
    if positions.dtype.is_floating_point or positions.dtype.is_complex or positions.dtype == torch.bool:
        raise ValueError(
            f"positions must be integers, got a tensor of {positions.dtype}; "
            f"whole numbers from 0 to {highest} are allowed: convert with .long()"
        )
    if positions.ndim == 0 or positions.shape[-1] != num_dims:
        raise ValueError(
            f"positions must have shape (..., {num_dims}), a coordinate (0 to {highest}) per dimension; "
            f"got {tuple(positions.shape)}."
            + (" Add the missing axis with positions.unsqueeze(-1)." if num_dims == 1 else "")
        )
    checked = positions.long()
    if checked.is_meta and device is not None and device.type != "meta":
        raise ValueError(f"positions are on the meta device and the encoding is on {device}; move one")
    if checked.numel() == 0 or checked.is_meta:
        return Positions(ids=checked, bound=(0,) * num_dims)
    smallest = int(checked.min())
    if positions.dtype == torch.uint64 and smallest < 0:
        raise ValueError("a position of 2**63 or more does not fit; positions are 64-bit signed integers")
    if smallest < (ABSENT if allow_absent else 0):
        raise ValueError(
            f"position {smallest} is negative; positions go from 0 to {highest} (-1 means 'absent' and needs "
            "allow_absent=True). Shift all positions so that the smallest is 0."
        )
    largest = checked.flatten(0, -2).amax(dim=0)
    return Positions(ids=checked, bound=tuple(int(number) + 1 for number in largest))


def check_grid(size: Any, start: Any, num_dims: int) -> None:
    """Raises ValueError when size or start of a grid are not `num_dims` whole numbers from 0 on."""
    for name, numbers in (("size", size), ("start", start or (0,) * num_dims)):
        whole = [n for n in numbers if type(n) is int and n >= 0] if isinstance(numbers, Sequence) else []
        if not len(whole) == num_dims == len(numbers):
            raise ValueError(
                f"{name}={numbers!r} of a grid of positions must be {num_dims} whole numbers from 0 on, one "
                "for each dimension"
            )


def count_digits(base: int, below: int) -> int:
    """Returns how many digits write all numbers below `below`, at least one."""
    digits = 1
    while base**digits < below:
        digits += 1
    return digits


def positions_to_digits(positions: Tensor, base: int, num_digits: int) -> Tensor:
    """Writes each coordinate with `num_digits` digits, most significant first.

    Coordinates follow each other, each left-padded with zeros: (2, 3) with two digits is 0 2 0 3.

    Args:
        positions: integers (..., n), each in [0, base ** num_digits).
        base: of the number system, at least 2.
        num_digits: k, for each coordinate.

    Returns:
        Long tensor (..., n * k).
    """
    powers = torch.tensor([base**place for place in reversed(range(num_digits))], device=positions.device)
    quotients = torch.div(positions.long().unsqueeze(-1), powers, rounding_mode="floor")
    return (quotients % base).flatten(-2)


def real_digit_mask(digits: Tensor, num_digits: int) -> Tensor:
    """Tells real digits from the zeros that pad a coordinate on its left: (..., n * k) to bool (..., n * k).

    The number 0 is one real digit, so the last place of each coordinate is always real. Whether a digit is
    real depends on the digits before it alone, which allows prefixes to be shared under padding masks.
    """
    places = digits.unflatten(-1, (-1, num_digits))
    seen = (places != 0).long().cumsum(dim=-1) > 0
    last = torch.arange(num_digits, device=digits.device) == num_digits - 1
    return (seen | last).flatten(-2)
