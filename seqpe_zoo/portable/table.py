"""A lookup table of what was computed for positions, for inference.

The table grows on demand, never computes a position twice, and is invisible: it is not a module, has no
place in a state dict and is not pickled. Its owner clears it when the numbers it holds may have changed.
"""

from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor

from .positions import ravel_positions, unravel_positions

SMALLEST_GROWTH = 128
"""Rows computed ahead when a 1-D table grows: decoding asks for one more position at a time."""


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
        self._codes: Optional[Tensor] = None  # sorted numbers of the known positions
        self._columns: List[Tensor] = []
        self._is_range = False  # whether the known positions are exactly the first M

    def __len__(self) -> int:
        return 0 if self._codes is None else self._codes.shape[0]

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_codes": None, "_columns": [], "_is_range": False}

    def clear(self) -> None:
        """Forgets all rows."""
        self._codes, self._columns, self._is_range = None, [], False

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
        if not (self._is_range and bound is not None and bound - self.lowest <= len(self)):
            self._add_missing(codes.reshape(-1))
        if self._is_range:
            rows = codes
        else:
            assert self._codes is not None
            rows = torch.searchsorted(self._codes, codes)
        return [torch.nn.functional.embedding(rows, column) for column in self._columns]

    def slice(self, start: int, stop: int, device: Optional[torch.device] = None) -> List[Tensor]:
        """Returns the rows of the 1-D positions start..stop-1, where possible as views of the table."""
        if self._is_range and stop <= len(self):
            return [column[start:stop] for column in self._columns]
        columns = self.lookup(torch.arange(start, stop, device=device).unsqueeze(-1))
        return [column[start:stop] for column in self._columns] if self._is_range else columns

    def _add_missing(self, codes: Tensor) -> None:
        if self._codes is not None:
            if codes.device != self._codes.device:
                self.clear()
            elif self._is_range:
                codes = codes[codes >= len(self)]
            else:
                nearest = torch.searchsorted(self._codes, codes).clamp(max=len(self) - 1)
                codes = codes[self._codes[nearest] != codes]
        if codes.numel() == 0 and self._codes is not None:
            return
        missing = torch.unique(codes)
        if len(self.sides) == 1 and missing.numel() > 0 and self._codes is not None:
            missing = self._with_headroom(missing)
        columns = self.compute(unravel_positions(missing, self.sides) + self.lowest)
        if self._codes is not None:
            follows = int(missing[0]) > int(self._codes[-1])
            missing = torch.cat([self._codes, missing])
            columns = [torch.cat([old, new]) for old, new in zip(self._columns, columns)]
            if not follows:
                missing, order = missing.sort()
                columns = [column[order] for column in columns]
        self._codes, self._columns = missing, columns
        self._is_range = len(self) > 0 and int(self._codes[-1]) == len(self) - 1

    def _with_headroom(self, missing: Tensor) -> Tensor:
        """Adds the positions that decoding will ask for next."""
        assert self._codes is not None
        first = int(missing[-1]) + 1
        stop = min(self.sides[0], first + max(SMALLEST_GROWTH, len(self) // 4))
        ahead = torch.arange(first, max(first, stop), device=missing.device)
        known = torch.isin(ahead, self._codes)
        return torch.cat([missing, ahead[~known]])
