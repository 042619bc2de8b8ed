"""Rotary position embedding for images with learned directions (Heo et al. 2024, "RoPE2D-Mix").

Each layer, head and pair learns a frequency for the column and one for the row. Class and register tokens
are not rotated. The release scrambles heads and positions when it applies the table; this is the method as
published. With `table=True` a learned table is added to the input as well; see `pe_rope2d_axial.py`.
"""

import math
from dataclasses import dataclass
from typing import List, Optional

import torch
from torch import Tensor, nn

from .pe_base import PositionEncoding
from .pe_rope import inverse_frequencies
from .pe_rope2d_axial import check_head_dim, input_table
from .stages import AttentionStage, RotateStage, join_rotation


@dataclass(frozen=True)
class MixedOptions:
    """Options of `rope2d_mixed`.

    Attributes:
        base: magnitudes start at base ** (-4 i / D), in directions drawn for each layer and head.
        table: add a learned row for each patch of the training context to the input too; needs `train_shape`.
    """

    base: float = 10.0
    table: bool = False


class RotaryMixed2D(PositionEncoding):
    """Rotates queries and keys by learned mixtures of column and row; extends to any resolution."""

    name = "rope2d_mixed"
    supported_dims = frozenset({2})
    Options = MixedOptions

    def __init__(self, dim: int, **kwargs: object) -> None:
        super().__init__(dim, **kwargs)  # type: ignore[arg-type]
        check_head_dim(self.name, self.head_dim)
        # Axis 0: frequency for the column (x), then for the row (y).
        self.freqs = nn.Parameter(torch.empty(2, self.num_layers, self.num_heads, self.head_dim // 2))
        self.table = input_table(dim, self.train_shape) if self.options.table else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws a direction for each layer and head; half the pairs turn along it, half across it."""
        if getattr(self.freqs, "_is_hf_initialized", False):  # transformers has loaded it
            return
        direction = torch.empty(self.num_layers, self.num_heads, 1, device=self.freqs.device)
        nn.init.uniform_(direction, 0.0, 2 * math.pi)
        magnitude = inverse_frequencies(float(self.options.base), self.head_dim // 4, self.freqs.device)
        across = direction + math.pi / 2
        x = torch.cat([magnitude * direction.cos(), magnitude * across.cos()], dim=-1)
        y = torch.cat([magnitude * direction.sin(), magnitude * across.sin()], dim=-1)
        with torch.no_grad():
            self.freqs.copy_(torch.stack([x, y]))

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        place = positions.flip(-1).to(torch.float32)  # (..., L, 2): column, row
        if self.table is None:
            return place
        return torch.cat([place, self.table.encode(positions, extent).float()], dim=-1)  # (..., L, 2 + C)

    def on_input(self, x: Tensor, encoded: Tensor) -> Tensor:
        if self.table is None:
            return x
        return x + encoded[..., 2:].to(x.dtype)

    def layer_terms(self, encoded: Tensor) -> List[Tensor]:
        # Float32 whatever the weights are: see `pe_rope.py`. Not as a matrix product, which autocast would
        # compute in half precision.
        column, row = encoded[..., 0:1].unsqueeze(-1), encoded[..., 1:2].unsqueeze(-1)  # (..., L, 1, 1)
        freqs = self.freqs.float()
        terms: List[Tensor] = []
        for layer in range(self.num_layers):
            terms.append(join_rotation(column * freqs[0, layer] + row * freqs[1, layer]))  # (..., L, H, D/2)
        return terms

    def keep_layers(self, num_layers: int) -> None:
        super().keep_layers(num_layers)
        self.freqs = nn.Parameter(self.freqs.detach()[:, :num_layers].clone(), self.freqs.requires_grad)

    def make_stage(self) -> AttentionStage:
        return RotateStage(num_heads=self.num_heads)
