"""What a model is measured at when nobody says it: multiples of its training, as far as it can go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..data.errors import DataError
from .accuracy import check_resolutions
from .model_loading import ImageModel, find_position_encoding
from .perplexity import check_lengths

PAPER_LENGTH, LONGEST, PAPER_RESOLUTION = 512, 16384, 224
PAPER_RESOLUTIONS = (224, 320, 384, 448, 512, 640, 672)


def trained_length(model: nn.Module) -> int:
    """Returns the length of the texts that a language model was trained on, as far as it says it."""
    encoding, config = find_position_encoding(model), getattr(model, "config", None)
    shape = None if encoding is None else encoding.train_shape
    return int(shape[0] if shape else getattr(config, "max_position_embeddings", None) or PAPER_LENGTH)


def trained_size(model: ImageModel) -> int:
    """Returns the side, in pixels, of the pictures that a classifier was trained on."""
    encoding = find_position_encoding(model.model)
    if encoding is not None and encoding.train_shape and model.patch_size:
        return int(encoding.train_shape[0]) * model.patch_size
    cfg = getattr(model.model, "pretrained_cfg", None) or {}
    size = cfg.get("input_size") or getattr(getattr(model.model, "config", None), "image_size", None)
    return int(size[-1] if isinstance(size, (list, tuple)) else size or PAPER_RESOLUTION)


def default_lengths(model: nn.Module) -> list[int]:
    """Returns 1, 2, 4, 8, 16 and 32 times the training length, up to 16,384 tokens.

    Models of long contexts are measured at the lengths of the paper's Table 1. Lengths that the model's
    positions cannot write are left out.
    """
    trained = trained_length(model)
    if 2 * trained > LONGEST or not accepts(check_lengths, model, 2 * trained):
        trained = min(trained, PAPER_LENGTH)
    return [
        length
        for length in (trained * 2**n for n in range(6))
        if length <= LONGEST and accepts(check_lengths, model, length)
    ]


def default_resolutions(model: ImageModel) -> list[int]:
    """Returns those of the paper's Table 3 for a model of 224 pixels, else 1, 1.5, 2 and 3 times its own."""
    trained = trained_size(model)
    wanted: Sequence[int] = [int(share * trained) for share in (1, 1.5, 2, 3)]
    if trained == PAPER_RESOLUTION:
        wanted = PAPER_RESOLUTIONS
    return [size for size in wanted if accepts(check_resolutions, model, size)] or list(wanted)


def number_of_classes(model: ImageModel) -> int | None:
    """Returns how many classes a classifier tells apart, None where it does not say."""
    config = getattr(model.model, "config", None)
    return getattr(model.model, "num_classes", getattr(config, "num_labels", None))


def accepts(check: Callable[[Any, list[int]], None], model: Any, size: int) -> bool:
    """Tells whether a length or resolution passes `check_lengths` or `check_resolutions`."""
    try:
        check(model, [size])
    except DataError:
        return False
    return True
