"""Digits: positions written in a number system (paper, section 3.2).

A position with n coordinates becomes n * k digits: each coordinate in base b, left-padded with zeros to k
digits, coordinates one after the other, so (2, 3) with k = 2 is 0 2 0 3. This file knows numbers, not neural
networks. All functions are tensor arithmetic that loops over the k places, never over positions, and may be
scripted, traced, compiled and exported. They do not check their input: see `positions.check_positions`.
"""

from typing import List

import torch
from torch import Tensor


def positions_to_digits(positions: Tensor, base: int, num_digits: int) -> Tensor:
    """Writes each coordinate with `num_digits` digits, most significant first.

    Args:
        positions: integers (..., n), each in [0, base ** num_digits).
        base: base of the number system, at least 2.
        num_digits: k, digits per coordinate.

    Returns:
        Long tensor (..., n * k).
    """
    # CPUs divide several floats at a time. (n + 0.5) / b lies at least 0.5 / b from an integer, and rounding
    # moves it by less while n is below 2 ** 23.
    in_floats = _fits(base, num_digits, 1 << 22)
    if in_floats:
        rest = positions.to(torch.float32)
    elif _fits(base, num_digits, 1 << 31):  # half the bytes and a faster division, with equal results
        rest = positions.to(torch.int32)
    else:
        rest = positions
    places: List[Tensor] = []
    for _ in range(num_digits):
        if in_floats:
            quotient = torch.floor((rest + 0.5) / base)
        else:
            quotient = torch.div(rest, base, rounding_mode="floor")
        places.append(torch.sub(rest, quotient, alpha=base))
        rest = quotient
    places.reverse()
    return torch.stack(places).long().movedim(0, -1).flatten(-2)  # stacked in the order of memory


def digits_to_positions(digits: Tensor, base: int, num_digits: int) -> Tensor:
    """Reads digits back: (..., n * k) to (..., n)."""
    places = digits.unflatten(-1, [digits.shape[-1] // num_digits, num_digits])
    positions = places[..., 0]
    for place in range(1, num_digits):
        positions = positions * base + places[..., place]
    return positions


def real_digit_mask(digits: Tensor, num_digits: int) -> Tensor:
    """Tells real digits from the zeros that pad a coordinate on its left.

    The number 0 is one real digit, so the last place of each coordinate is always real.

    Args:
        digits: (..., n * k).
        num_digits: k.

    Returns:
        Bool tensor (..., n * k), true for real digits. Whether a digit is real depends on the digits before
        it alone, which is what allows prefixes to be shared under padding masks.
    """
    places = digits.unflatten(-1, [digits.shape[-1] // num_digits, num_digits])
    seen = (places != 0).long().cumsum(dim=-1) > 0
    last = torch.arange(num_digits, device=digits.device) == num_digits - 1
    return (seen | last).flatten(-2)


def _fits(base: int, num_digits: int, limit: int) -> bool:
    """Whether all numbers of so many digits are below a limit."""
    capacity = 1
    for _ in range(num_digits):
        capacity *= base
        if capacity > limit:
            return False
    return True
