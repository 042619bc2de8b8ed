"""Stretching what was learned for a grid over a larger one.

This is how learned tables extrapolate in the paper: linearly for text, bicubically for images.
"""

from typing import List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor


def resize_grid_rows(rows: Tensor, shape: List[int], new_shape: List[int]) -> Tensor:
    """Resizes rows of a grid, with pixel centres aligned (align_corners=False) and no anti-aliasing.

    Args:
        rows: (prod(shape), W), row-major.
        shape: the grid they belong to; one, two or three dimensions.
        new_shape: the grid wanted.

    Returns:
        (prod(new_shape), W).
    """
    if not _sizes_are_symbols() and shape == new_shape:
        return rows
    num_dims = len(shape)
    if num_dims > 3:
        raise ValueError(f"only grids of 1, 2 or 3 dimensions can be interpolated, not one of shape {shape}")
    mode = "linear" if num_dims == 1 else ("bicubic" if num_dims == 2 else "trilinear")
    volume = rows.t().reshape([1, rows.shape[1]] + shape).float()
    resized = F.interpolate(volume, size=new_shape, mode=mode, align_corners=False)
    return resized.flatten(2)[0].t().to(rows.dtype)


def stretch_beyond(trained: List[int], extent: List[int]) -> Tuple[List[int], bool]:
    """Returns the grid to interpolate to and whether it is larger than the trained one in any dimension.

    A dimension that is not larger keeps its trained size, so that short inputs see the rows they were
    trained on.
    """
    target = [max(old, new) for old, new in zip(trained, extent)]
    return target, _sizes_are_symbols() or target != trained


def _sizes_are_symbols() -> bool:
    """Whether sizes may be unknown as numbers: then the general way is taken, for equal sizes an identity."""
    if torch.jit.is_scripting():
        return False
    return torch.compiler.is_compiling()
