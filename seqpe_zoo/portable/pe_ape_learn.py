"""Learned absolute position embedding (GPT-2, ViT), added to the input.

Beyond the trained context the table is stretched: linearly for text, bicubically for images, as in the
paper. The parameter of the table is called `weight`, so that a GPT-2 that keeps this encoding in `wpe` loads
GPT-2's weights by name.
"""

import math
from typing import List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .interpolation import resize_grid_rows, stretch_beyond
from .pe_base import PositionEncoding, prepend_rows
from .positions import ravel_positions


class LearnedEmbedding(PositionEncoding):
    """Adds a learned row for each position of the training context; needs `train_shape`."""

    name = "ape_learn"

    def __init__(self, dim: int, **kwargs: object) -> None:
        super().__init__(dim, **kwargs)  # type: ignore[arg-type]
        if self.train_shape is None:
            raise ValueError(
                "position encoding 'ape_learn' is a table of the training context: give train_shape, "
                "as (512,) for text or (14, 14) for images of 14 x 14 patches"
            )
        self.trained: List[int] = list(self.train_shape)
        self.weight = nn.Parameter(torch.empty(math.prod(self.train_shape), dim))
        self.prefix = nn.Parameter(torch.empty(self.num_prefix, dim)) if self.num_prefix else None
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        """Initialises with normal weights of `std`."""
        nn.init.normal_(self.weight, std=std)
        if self.prefix is not None:
            nn.init.normal_(self.prefix, std=std)

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        if extent is None:
            sizes: List[int] = (positions.reshape(-1, self.num_dims).amax(dim=0) + 1).tolist()
            extent = sizes
        sides, larger = stretch_beyond(self.trained, extent)
        table = resize_grid_rows(self.weight, self.trained, sides) if larger else self.weight
        return F.embedding(ravel_positions(positions, sides), table)

    def encode_prefix(self, encoded: Tensor, num_prefix: int) -> Tensor:
        if self.prefix is None:
            return encoded
        return prepend_rows(self.prefix, encoded)

    def on_input(self, x: Tensor, encoded: Tensor) -> Tensor:
        return x + encoded.to(x.dtype)
