"""Image sets so small that they stay in memory as one tensor, and what is done with such tensors.

Their pictures have few pixels; larger sizes are made by bicubic upsampling. These hold no further detail,
which favours encodings that stretch with the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import DataError


@dataclass(frozen=True)
class LabelledImages:
    """Images (N, 1, H, W) with values 0..1, and labels (N,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class SmallImages:
    """An image set in memory.

    Attributes:
        name: in words.
        identifier: in results.
        class_names: in the order of the labels.
        mean: of the training pixels.
        std: of the training pixels.
        splits: "train", "validation", "test"; the three share no picture.
    """

    name: str
    identifier: str
    class_names: tuple[str, ...]
    mean: float
    std: float
    splits: Mapping[str, LabelledImages]

    def split(self, name: str) -> LabelledImages:
        """Returns a split.

        Raises:
            DataError: there is none of this name.
        """
        if name not in self.splits:
            raise DataError(
                f"{self.identifier} has no split {name!r}; choose one of {', '.join(self.splits)}"
            )
        return self.splits[name]

    def pixels(self, images: Tensor, size: int, channels: int = 3) -> Tensor:
        """Returns images (N, 1, H, W) as a model sees them: resized, normalised, with so many channels."""
        resized = (resize_images(images, size) - self.mean) / self.std
        return resized.expand(-1, channels, -1, -1)


def resize_images(images: Tensor, size: int) -> Tensor:
    """Resizes (N, C, H, W) to squares of `size` pixels, bicubic."""
    if images.shape[-1] == size and images.shape[-2] == size:
        return images
    return F.interpolate(images, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)


def shift_images(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Moves each image by up to `most` pixels in both directions, background entering at the border."""
    padded = F.pad(images, [most] * 4)
    height, width = images.shape[-2:]
    starts = torch.randint(2 * most + 1, (len(images), 2), generator=generator)
    rows = starts[:, :1] + torch.arange(height)  # (N, H)
    columns = starts[:, 1:] + torch.arange(width)  # (N, W)
    index = torch.arange(len(images))
    return padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
