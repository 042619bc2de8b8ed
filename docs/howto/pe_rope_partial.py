"""Rotary position embedding in a share of the pairs (p-RoPE, Barbero et al. 2024, arXiv:2410.06205).

The lowest frequencies hardly turn within a training context, and models use them for content. Here they do
not turn at all, so content keeps its channels at any length.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .position_encoding import (
    AttentionOperation,
    Options,
    PositionEncoding,
    RotateOperation,
    join_rotation,
    option,
    prepend_rows,
)
from .positions import range_positions


@dataclass(frozen=True)
class PartialRotaryOptions(Options):
    """Options of `rope_partial`.

    Attributes:
        base: as of `rope`.
        share: share of the pairs that turn, those of the highest frequencies.
    """

    base: float = option(10000.0, least=1, most=1e18, kind=True)
    share: float = option(0.75, least=0, most=1, kind=True)


class PartialRotary(PositionEncoding):
    """Rotates a share of the pairs of queries and keys; extends to any length."""

    name = "rope_partial"
    supported_dims = frozenset({1})
    flattens = True  # images: patches are numbered through, after class and register tokens
    Options = PartialRotaryOptions

    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__(dim, **kwargs)
        if self.host.head_dim % 2:  # type: ignore[operator]
            raise ValueError(f"rope_partial rotates pairs, and the head width {self.host.head_dim} is odd")

    def encode(self, positions: Tensor, limit: list[int] | None = None) -> Tensor:
        pairs = self.host.head_dim // 2  # type: ignore[operator]
        numbers = torch.arange(pairs, device=positions.device)
        frequencies = torch.pow(self.options.base, -numbers / pairs)
        turns = numbers < round(self.options.share * pairs)
        return join_rotation((positions.float() * (frequencies * turns)).unsqueeze(-2))  # (..., L, D)

    def encode_prefix(self, encoded: Tensor) -> Tensor:
        numbers = range_positions(self.host.num_prefix, device=encoded.device)
        return prepend_rows(self.encode(numbers), encoded)

    def make_operation(self) -> AttentionOperation:
        return RotateOperation()
