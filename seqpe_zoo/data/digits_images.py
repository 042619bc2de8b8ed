"""Scikit-learn's 1,797 handwritten digits of 8 x 8 pixels: images that every installation has.

Larger sizes are made by bicubic upsampling: they hold no further detail, which favours encodings that stretch
with the picture. The test images are those that scikit-learn's own examples hold out: the last ones, written
by others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import DataError

NUM_CLASSES = 10
MEAN, STD = 0.305, 0.376
"""Of the training pixels, scaled to 0..1."""


@dataclass(frozen=True)
class DigitImages:
    """Images (N, 1, 8, 8) with values 0..1, and labels (N,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digit_images(test_share: float = 0.3) -> DigitImages:
    """Loads the digits, the last `test_share` of them for testing.

    Raises:
        DataError: scikit-learn is not installed, or a side would be empty.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the handwritten digits come with scikit-learn: pip install 'seqpe-zoo[train]'"
        ) from error
    loaded = load_digits()
    images = torch.from_numpy(loaded.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(loaded.target).long()
    first = round(len(images) * (1 - test_share))
    if not 0 < first < len(images):
        raise DataError(
            f"test_share={test_share} leaves one side of {len(images)} digits empty; choose 0.1 to 0.5"
        )
    return DigitImages(images[:first], labels[:first], images[first:], labels[first:])


def resize_images(images: Tensor, size: int) -> Tensor:
    """Resizes (N, C, H, W) to squares of `size` pixels, bicubic."""
    if images.shape[-1] == size and images.shape[-2] == size:
        return images
    return F.interpolate(images, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)


def normalise_digits(images: Tensor) -> Tensor:
    """Shifts and scales pixels of 0..1 to mean 0 and deviation 1."""
    return (images - MEAN) / STD


def shift_images(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Moves each image by up to `most` pixels in both directions, background entering at the border."""
    padded = F.pad(images, [most] * 4)
    height, width = images.shape[-2:]
    starts = torch.randint(2 * most + 1, (len(images), 2), generator=generator)
    rows = starts[:, :1] + torch.arange(height)  # (N, H)
    columns = starts[:, 1:] + torch.arange(width)  # (N, W)
    index = torch.arange(len(images))
    return padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def write_image_folder(folder: Path, size: int = 32, train: int = 200, test: int = 80) -> Path:
    """Writes digits as PNG files `train/CLASS/*.png` and `validation/CLASS/*.png`, to try the image scripts.

    Args:
        folder: where to write.
        size: pixels of a side.
        train: training images.
        test: validation images.

    Returns:
        The folder.
    """
    from PIL import Image

    digits = load_digit_images()
    sides = (
        ("train", digits.train_images[:train], digits.train_labels),
        ("validation", digits.test_images[:test], digits.test_labels),
    )
    for split, images, labels in sides:
        pixels = resize_images(images, size).mul(255).round().byte()
        for number, (picture, label) in enumerate(zip(pixels, labels.tolist(), strict=False)):
            target = folder / split / str(label) / f"{number:04d}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture[0].numpy()).convert("RGB").save(target)
    return folder
