"""A lookup table of what was computed for positions, for inference.

The table grows on demand, never computes a position twice, and is invisible: it is not a module, has no
place in a state dict and is not pickled. Its owner clears it when the numbers it holds may have changed.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch
from torch import Tensor

from .positions import ravel_positions, unravel_positions

SMALLEST_GROWTH = 128
"""Rows computed ahead when a 1-D table grows: decoding asks for one more position at a time."""


class _Rows(NamedTuple):
    """What a table knows. Replaced as a whole, never changed, so that threads may share a table."""

    codes: Tensor
    """(M,) numbers of the known positions, sorted."""
    columns: List[Tensor]
    is_range: bool
    """Whether the known positions are exactly the first M."""


class PositionTable:
    """Rows of numbers for positions, each row computed when first asked for.

    Args:
        compute: maps unique positions (U, n) to a list of tensors (U, W_i), the columns of the table.
        num_dims: n.
        capacity: coordinates are below it; the table never computes a position at or above it.
        lowest: smallest coordinate, -1 when coordinates may be absent.
    """

    def __init__(
        self, compute: Callable[[Tensor], List[Tensor]], num_dims: int, capacity: int, lowest: int = 0
    ) -> None:
        self.compute = compute
        self.lowest = lowest
        self.sides = [capacity - lowest] * num_dims
        self._rows: Optional[_Rows] = None

    def __len__(self) -> int:
        return 0 if self._rows is None else self._rows.codes.shape[0]

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_rows": None}

    def clear(self) -> None:
        """Forgets all rows."""
        self._rows = None

    def lookup(self, positions: Tensor, bound: Optional[int] = None) -> List[Tensor]:
        """Returns the rows of positions, computing those that are new.

        Args:
            positions: (..., n).
            bound: all coordinates are known to be below it; then a table that reaches so far is read without
                looking at the positions (a wait for the device).

        Returns:
            A tensor (..., W_i) for each column.
        """
        codes = ravel_positions(positions - self.lowest, self.sides)
        rows = self._rows
        if rows is None or bound is None or not self._reaches(rows, bound):
            rows = self._with_missing(rows, codes.reshape(-1))
        return self._read(rows, codes)

    def slice(self, start: int, stop: int, device: Optional[torch.device] = None) -> List[Tensor]:
        """Returns the rows of the 1-D positions start..stop-1, where possible as views of the table."""
        rows = self._rows
        if rows is None or not self._reaches(rows, stop):
            codes = torch.arange(start - self.lowest, stop - self.lowest, device=device)
            rows = self._with_missing(rows, codes)
            if not rows.is_range:
                return self._read(rows, codes)
        return [column[start - self.lowest : stop - self.lowest] for column in rows.columns]

    @staticmethod
    def _read(rows: _Rows, codes: Tensor) -> List[Tensor]:
        numbers = codes if rows.is_range else torch.searchsorted(rows.codes, codes)
        return [torch.nn.functional.embedding(numbers, column) for column in rows.columns]

    def _reaches(self, rows: _Rows, bound: int) -> bool:
        """Whether all positions below a bound are known; in a grid that cannot be told from their number."""
        return rows.is_range and len(self.sides) == 1 and bound - self.lowest <= rows.codes.shape[0]

    def _with_missing(self, rows: Optional[_Rows], codes: Tensor) -> _Rows:
        """Computes what is missing among codes (K,), keeps it and returns all."""
        if rows is not None and (codes.device != rows.codes.device or rows.codes.shape[0] == 0):
            rows = None
        if rows is not None:
            if rows.is_range:
                codes = codes[codes >= rows.codes.shape[0]]
            else:
                nearest = torch.searchsorted(rows.codes, codes).clamp(max=rows.codes.shape[0] - 1)
                codes = codes[rows.codes[nearest] != codes]
            if codes.numel() == 0:
                return rows
        missing = torch.unique(codes)
        if rows is not None and len(self.sides) == 1:
            missing = self._with_headroom(rows, missing)
        columns = self.compute(unravel_positions(missing, self.sides) + self.lowest)
        if rows is not None:
            follows = int(missing[0]) > int(rows.codes[-1])
            missing = torch.cat([rows.codes, missing])
            columns = [torch.cat([old, new]) for old, new in zip(rows.columns, columns)]
            if not follows:
                missing, order = missing.sort()
                columns = [column[order] for column in columns]
        count = missing.shape[0]
        self._rows = rows = _Rows(missing, columns, count > 0 and int(missing[-1]) == count - 1)
        return rows

    def _with_headroom(self, rows: _Rows, missing: Tensor) -> Tensor:
        """Adds the positions that decoding will ask for next."""
        first = int(missing[-1]) + 1
        stop = min(self.sides[0], first + max(SMALLEST_GROWTH, rows.codes.shape[0] // 4))
        ahead = torch.arange(first, max(first, stop), device=missing.device)
        known = torch.isin(ahead, rows.codes)
        return torch.cat([missing, ahead[~known]])
