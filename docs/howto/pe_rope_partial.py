"""Rotary position embedding in a share of the pairs (p-RoPE, Barbero et al. 2024, arXiv:2410.06205).

The lowest frequencies hardly turn within a training context, and models use them for content. Here they do
not turn at all, so content keeps its channels at any length.
"""

from dataclasses import dataclass
from typing import List, Optional

import torch
from torch import Tensor

from .pe_rope import Rotary, inverse_frequencies
from .stages import join_rotation


@dataclass(frozen=True)
class PartialRotaryOptions:
    """Options of `rope_partial`.

    Attributes:
        base: as in `rope`.
        share: share of the pairs that turn, those of the highest frequencies.
    """

    base: float = 10000.0
    share: float = 0.75

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} must be above 0 and at most 1, which is plain rope")


class PartialRotary(Rotary):
    """Rotates a share of the pairs of queries and keys; extends to any length."""

    name = "rope_partial"
    Options = PartialRotaryOptions

    def __init__(self, dim: int, **kwargs: object) -> None:
        super().__init__(dim, **kwargs)
        self.turning = max(1, round(self.options.share * (self.head_dim // 2)))

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        frequencies = inverse_frequencies(self.base, self.head_dim // 2, positions.device)
        turns = torch.arange(self.head_dim // 2, device=positions.device) < self.turning
        angles = positions.to(torch.float32) * (frequencies * turns)
        return join_rotation(angles.unsqueeze(-2))
