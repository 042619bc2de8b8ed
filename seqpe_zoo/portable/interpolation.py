"""Stretching what was learned for a grid over a larger one.

This is how learned tables extrapolate in the paper: linearly for text, bicubically for images.
"""

from typing import List, Sequence, Tuple

import torch.nn.functional as F
from torch import Tensor

MODES = {1: "linear", 2: "bicubic", 3: "trilinear"}


def resize_grid_rows(rows: Tensor, shape: Sequence[int], new_shape: Sequence[int]) -> Tensor:
    """Resizes rows of a grid, with pixel centres aligned (align_corners=False) and no anti-aliasing.

    Args:
        rows: (prod(shape), W), row-major.
        shape: the grid they belong to; one, two or three dimensions.
        new_shape: the grid wanted.

    Returns:
        (prod(new_shape), W).
    """
    if tuple(shape) == tuple(new_shape):
        return rows
    if len(shape) not in MODES:
        raise ValueError(f"only grids of 1, 2 or 3 dimensions can be interpolated, not one of shape {tuple(shape)}")
    volume = rows.t().reshape([1, rows.shape[1], *shape]).float()
    resized = F.interpolate(volume, size=list(new_shape), mode=MODES[len(shape)], align_corners=False)
    return resized.flatten(2)[0].t().to(rows.dtype)


def stretch_beyond(trained: Sequence[int], extent: Sequence[int]) -> Tuple[List[int], bool]:
    """Returns the grid to interpolate to and whether it is larger than the trained one in any dimension.

    A dimension that is not larger keeps its trained size, so that short inputs see the rows they were trained on.
    """
    target = [max(old, new) for old, new in zip(trained, extent)]
    return target, target != list(trained)
