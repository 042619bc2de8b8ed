"""The pictures that the page shows to image models: samples that need no download, and uploads."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ..data.digits_images import load_digit_images
from ..data.errors import DataError
from ..data.names import read_config
from ..data.small_images import resize_images
from ..evaluation.model_loading import ImageModel
from .zoo import ZooModel

SAMPLES = 8
"""Pictures offered for a model."""
SAMPLES_FOLDER = "samples"
"""Of a model's folder; its PNG files are offered in the order of their names."""


def class_names(source: str) -> list[str] | None:
    """Returns what a model's configuration calls its classes, None where it does not say."""
    config = read_config(source)
    names: Any = config.get("label_names") or list((config.get("id2label") or {}).values())
    return [str(name) for name in names] or None


@lru_cache(maxsize=16)
def sample_pictures(model: ZooModel) -> list[Image.Image]:
    """Returns pictures for a model: those beside its weights, or the embedded digits if it reads digits.

    Raises:
        DataError: a file of the samples is no picture, or scikit-learn, which holds the digits, is missing.
    """
    files = sorted((Path(model.source) / SAMPLES_FOLDER).glob("*.png"))
    if files:
        return [_read_picture(path) for path in files[:SAMPLES]]
    digits = [str(digit) for digit in range(10)]
    return _sample_digits() if class_names(model.source) == digits else []


def _read_picture(path: Path) -> Image.Image:
    try:
        with Image.open(path) as picture:
            return picture.copy()
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{path.name} among the model's samples is no picture: {error}") from error


def _sample_digits() -> list[Image.Image]:
    images = load_digit_images().split("test").images[:SAMPLES, 0]
    return [Image.fromarray(image.mul(255).round().byte().numpy()) for image in images]


def prepare_picture(picture: Image.Image, model: ImageModel, size: int) -> Tensor:
    """Returns the pixels (1, channels, size, size) of a picture as the model sees it.

    The central square of the picture is resized as a whole, as evaluation does with small sets; nothing at
    its borders is cut off.
    """
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.convert("L" if model.channels == 1 else "RGB").crop((left, top, left + side, top + side))
    values = torch.from_numpy(np.array(square)).float().div(255)
    pixels = resize_images(values.view(side, side, -1).permute(2, 0, 1).unsqueeze(0), size)
    mean, std = (
        torch.tensor(numbers[: model.channels]).view(1, -1, 1, 1) for numbers in (model.mean, model.std)
    )
    return (pixels - mean) / std
