"""Rotary position embedding in one dimension (Su et al. 2021).

Queries and keys are rotated by angles proportional to the position, so that scores depend on distances alone.
Interleaved pairs; angles in float32, because bfloat16 cannot tell 257 from 258. Grids are numbered through in
row-major order with prefix tokens first, as the authors' release does for images.
"""

from dataclasses import dataclass
from typing import List, Optional

import torch
from torch import Tensor

from .pe_base import PositionEncoding, prepend_rows
from .stages import AttentionStage, RotateStage, join_rotation


@dataclass(frozen=True)
class RotaryOptions:
    """Options of `rope`.

    Attributes:
        base: frequencies are base ** (-2 i / D). The paper trains 1e4, 1e6 and 1e8.
    """

    base: float = 10000.0


class Rotary(PositionEncoding):
    """Rotates queries and keys; extends to any length."""

    name = "rope"
    supported_dims = frozenset({1})
    flattens = True
    Options = RotaryOptions

    def __init__(self, dim: int, **kwargs: object) -> None:
        super().__init__(dim, **kwargs)  # type: ignore[arg-type]
        if self.head_dim % 2:
            raise ValueError(
                f"rope rotates pairs: the head width {self.head_dim} must be even (dim / num_heads)"
            )
        self.base = float(self.options.base)

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        frequencies = inverse_frequencies(self.base, self.head_dim // 2, positions.device)
        return join_rotation((positions.to(torch.float32) * frequencies).unsqueeze(-2))

    def encode_prefix(self, encoded: Tensor, num_prefix: int) -> Tensor:
        if num_prefix == 0:
            return encoded
        first = torch.arange(num_prefix, device=encoded.device).unsqueeze(-1)
        return prepend_rows(self.encode(first), encoded)

    def make_stage(self) -> AttentionStage:
        return RotateStage(num_heads=1)


def inverse_frequencies(base: float, count: int, device: torch.device) -> Tensor:
    """Returns base ** (-i / count) for i = 0..count-1, in float32."""
    exponent = torch.arange(count, device=device, dtype=torch.float32) / count
    return torch.pow(torch.full_like(exponent, base), -exponent)
