"""Sinusoidal absolute position embedding (Vaswani et al. 2017), added to the input.

Even columns are sines, odd columns cosines of the same angle. Grids are numbered through in row-major order
with prefix tokens first, as the authors' release does for images.
"""

from dataclasses import dataclass
from typing import List, Optional

import torch
from torch import Tensor

from .pe_base import PositionEncoding, prepend_rows


@dataclass(frozen=True)
class SinusoidalOptions:
    """Options of `ape_sin`.

    Attributes:
        base: longest wavelength is 2 pi times it.
        scale: amplitude. With 1.0, as in the release, the table drowns embeddings initialised at 0.02; the
            original transformer multiplied its embeddings by sqrt(C) instead.
    """

    base: float = 10000.0
    scale: float = 1.0


class SinusoidalEmbedding(PositionEncoding):
    """Adds fixed sines and cosines to the input; extends to any length."""

    name = "ape_sin"
    supported_dims = frozenset({1})
    flattens = True
    Options = SinusoidalOptions

    def __init__(self, dim: int, **kwargs: object) -> None:
        super().__init__(dim, **kwargs)  # type: ignore[arg-type]
        self.base, self.scale = float(self.options.base), float(self.options.scale)

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        columns = torch.arange(self.dim, device=positions.device)
        exponent = torch.div(columns, 2, rounding_mode="floor") * (2.0 / self.dim)
        angles = positions.to(torch.float32) * torch.pow(torch.full_like(exponent, self.base), -exponent)
        return torch.where(columns % 2 == 0, angles.sin(), angles.cos()) * self.scale

    def encode_prefix(self, encoded: Tensor, num_prefix: int) -> Tensor:
        if num_prefix == 0:
            return encoded
        first = torch.arange(num_prefix, device=encoded.device).unsqueeze(-1)
        return prepend_rows(self.encode(first), encoded)

    def on_input(self, x: Tensor, encoded: Tensor) -> Tensor:
        return x + encoded.to(x.dtype)
