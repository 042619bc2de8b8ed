"""What a model is measured at when nobody says it: multiples of its training, as far as it can go."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..data.errors import DataError
from .accuracy import check_resolutions
from .model_loading import ImageModel, find_position_encoding
from .perplexity import check_lengths

PAPER_LENGTH, PAPER_RESOLUTION = 512, 224
PAPER_RESOLUTIONS = (224, 320, 384, 448, 512, 640, 672)


def default_lengths(model: nn.Module) -> list[int]:
    """Returns 1, 2, 4, 8, 16 and 32 times the training length, for 512 those of the paper's Table 1.

    Lengths that the model's positions cannot write are left out.
    """
    encoding = find_position_encoding(model)
    shape = None if encoding is None else encoding.train_shape
    trained = shape[0] if shape else PAPER_LENGTH
    while trained > 1 and not _accepts(check_lengths, model, trained):
        trained //= 2  # a small model of others, which does not say what it was trained at
    return [trained * 2**n for n in range(6) if _accepts(check_lengths, model, trained * 2**n)]


def default_resolutions(model: ImageModel) -> list[int]:
    """Returns those of the paper's Table 3 for a model of 224 pixels, else 1, 1.5, 2 and 3 times its own."""
    cfg = getattr(model.model, "pretrained_cfg", None) or {}
    config = getattr(model.model, "config", None)
    size = cfg.get("input_size") or getattr(config, "image_size", None) or PAPER_RESOLUTION
    trained = size if isinstance(size, int) else int(size[-1])
    wanted = [int(share * trained) for share in (1, 1.5, 2, 3)]
    if trained == PAPER_RESOLUTION:
        wanted = list(PAPER_RESOLUTIONS)
    return [resolution for resolution in wanted if _accepts(check_resolutions, model, resolution)] or wanted


def number_of_classes(model: ImageModel) -> int | None:
    """Returns how many classes a classifier tells apart, None where it does not say."""
    config = getattr(model.model, "config", None)
    return getattr(model.model, "num_classes", getattr(config, "num_labels", None))


def _accepts(check: Any, model: Any, size: int) -> bool:
    try:
        check(model, [size])
    except DataError:
        return False
    return True
