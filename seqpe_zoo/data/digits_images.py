"""Scikit-learn's 1,797 handwritten digits of 8 x 8 pixels: images that every installation has.

The test images are those that scikit-learn's own examples hold out: the last ones, written by others. The
validation images are the last before them.
"""

from __future__ import annotations

from pathlib import Path

import torch

from .errors import DataError
from .small_images import LabelledImages, SmallImages, resize_images

SHARES = {"train": 0.6, "validation": 0.1, "test": 0.3}
MEAN, STD = 0.305, 0.376
"""Of the training pixels, scaled to 0..1."""


def load_digit_images() -> SmallImages:
    """Loads the digits.

    Raises:
        DataError: scikit-learn is not installed.
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
    splits, first, share = {}, 0, 0.0
    for name, own in SHARES.items():
        share += own
        last = round(len(images) * share)
        splits[name] = LabelledImages(images[first:last], labels[first:last])
        first = last
    names = tuple(str(digit) for digit in range(10))
    return SmallImages("handwritten digits of scikit-learn", "sklearn-digits", names, MEAN, STD, splits)


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
    for split, source, count in (("train", "train", train), ("validation", "test", test)):
        chosen = digits.split(source)
        pixels = resize_images(chosen.images[:count], size).mul(255).round().byte()
        for number, (picture, label) in enumerate(zip(pixels, chosen.labels.tolist(), strict=False)):
            target = folder / split / str(label) / f"{number:04d}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture[0].numpy()).convert("RGB").save(target)
    return folder
