"""Rotary position embedding for images, axis by axis (Heo et al. 2024, "RoPE2D").

The first half of the pairs turns with the column, the second half with the row. Class and register tokens
are not rotated. With `table=True` a learned table is added to the input as well, as in the "ape" models of
Heo et al.; beyond the trained resolution it is stretched.
"""

from dataclasses import dataclass
from typing import List, Optional, Tuple

import torch
from torch import Tensor

from .pe_ape_learn import LearnedEmbedding
from .pe_base import PositionEncoding, prepend_rows
from .pe_rope import inverse_frequencies
from .stages import AttentionStage, RotateStage, join_rotation


@dataclass(frozen=True)
class AxialOptions:
    """Options of `rope2d_axial`.

    Attributes:
        base: frequencies are base ** (-4 i / D); 100 as in Heo et al.
        table: add a learned row for each patch of the training context to the input too; needs `train_shape`.
    """

    base: float = 100.0
    table: bool = False


class RotaryAxial2D(PositionEncoding):
    """Rotates queries and keys by column and row; extends to any resolution."""

    name = "rope2d_axial"
    supported_dims = frozenset({2})
    Options = AxialOptions

    def __init__(self, dim: int, **kwargs: object) -> None:
        super().__init__(dim, **kwargs)  # type: ignore[arg-type]
        check_head_dim(self.name, self.head_dim)
        self.base = float(self.options.base)
        self.table = input_table(dim, self.train_shape) if self.options.table else None

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        frequencies = inverse_frequencies(self.base, self.head_dim // 4, positions.device)
        row, column = positions.to(torch.float32).unsqueeze(-1).unbind(-2)  # (..., L, 1) each
        angles = torch.cat([column * frequencies, row * frequencies], dim=-1).unsqueeze(-2)
        rotation = join_rotation(angles)
        if self.table is None:
            return rotation
        return torch.cat([rotation, self.table.encode(positions, extent).float()], dim=-1)  # (..., L, D + C)

    def encode_prefix(self, encoded: Tensor, num_prefix: int) -> Tensor:
        if num_prefix == 0:
            return encoded
        unrotated = join_rotation(encoded.new_zeros(num_prefix, 1, self.head_dim // 2))
        if self.table is not None:
            unrotated = torch.cat([unrotated, encoded.new_zeros(num_prefix, self.dim)], dim=-1)
        return prepend_rows(unrotated, encoded)

    def on_input(self, x: Tensor, encoded: Tensor) -> Tensor:
        if self.table is None:
            return x
        return x + encoded[..., self.head_dim :].to(x.dtype)

    def layer_terms(self, encoded: Tensor) -> List[Tensor]:
        terms = encoded if self.table is None else encoded[..., : self.head_dim]
        return [terms] * self.num_layers

    def make_stage(self) -> AttentionStage:
        return RotateStage(num_heads=1)


def input_table(dim: int, train_shape: Optional[Tuple[int, ...]]) -> LearnedEmbedding:
    """Builds the learned table that rotary encodings may add to the input; prefix tokens have no row."""
    return LearnedEmbedding(dim, num_dims=2, train_shape=train_shape)


def check_head_dim(name: str, head_dim: int) -> None:
    """Raises ValueError when pairs cannot be divided between two axes."""
    if head_dim % 4:
        raise ValueError(
            f"{name} divides pairs between rows and columns: the head width {head_dim} (dim / num_heads) "
            "must be a multiple of 4; choose another number of heads"
        )
