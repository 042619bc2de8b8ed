"""Rotary position embedding for images, axis by axis (Heo et al. 2024, "RoPE2D").

The first half of the pairs turns with the column, the second half with the row. Class and register tokens
are not rotated.
"""

from dataclasses import dataclass
from typing import List, Optional

import torch
from torch import Tensor

from .pe_base import PositionEncoding, prepend_rows
from .pe_rope import inverse_frequencies
from .stages import AttentionStage, RotateStage, join_rotation


@dataclass(frozen=True)
class AxialOptions:
    """Options of `rope2d_axial`.

    Attributes:
        base: frequencies are base ** (-4 i / D); 100 as in Heo et al.
    """

    base: float = 100.0


class RotaryAxial2D(PositionEncoding):
    """Rotates queries and keys by column and row; extends to any resolution."""

    name = "rope2d_axial"
    supported_dims = frozenset({2})
    Options = AxialOptions

    def __init__(self, dim: int, **kwargs: object) -> None:
        super().__init__(dim, **kwargs)  # type: ignore[arg-type]
        check_head_dim(self.name, self.head_dim)
        self.base = float(self.options.base)

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        frequencies = inverse_frequencies(self.base, self.head_dim // 4, positions.device)
        row, column = positions.to(torch.float32).unsqueeze(-1).unbind(-2)  # (..., L, 1) each
        return join_rotation(torch.cat([column * frequencies, row * frequencies], dim=-1).unsqueeze(-2))

    def encode_prefix(self, encoded: Tensor, num_prefix: int) -> Tensor:
        if num_prefix == 0:
            return encoded
        unrotated = join_rotation(encoded.new_zeros(num_prefix, 1, self.head_dim // 2))
        return prepend_rows(unrotated, encoded)

    def make_stage(self) -> AttentionStage:
        return RotateStage(num_heads=1)


def check_head_dim(name: str, head_dim: int) -> None:
    """Raises ValueError when pairs cannot be divided between two axes."""
    if head_dim % 4:
        raise ValueError(
            f"{name} divides pairs between rows and columns: the head width {head_dim} (dim / num_heads) "
            "must be a multiple of 4; choose another number of heads"
        )
