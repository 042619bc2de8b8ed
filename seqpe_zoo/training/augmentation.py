"""Random views of training pictures, by timm.data: crops, RandAugment, erasing, mixup and cutmix.

Everything random is seeded by what it works on (see `SeededImages`), so that a run can be continued exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.seeding import seeded_randomness
from .run_config import AugmentationConfig


def training_transform(
    config: AugmentationConfig, resolution: int, mean: Sequence[float], std: Sequence[float]
) -> Callable[[Any], Tensor]:
    """Makes the transform of a training picture; one mean, of a model of one channel, makes it grey."""
    from timm.data import create_transform
    from torchvision.transforms import Compose, Grayscale

    is_grey = len(mean) == 1
    transform = create_transform(
        input_size=(3, resolution, resolution),
        is_training=True,
        scale=tuple(config.scale),
        ratio=tuple(config.ratio),
        hflip=config.flip,
        color_jitter=config.colour_jitter,
        auto_augment=config.auto_augment,
        interpolation="bicubic",
        re_prob=config.erase,
        re_mode="pixel",
        mean=tuple(mean) * (3 if is_grey else 1),
        std=tuple(std) * (3 if is_grey else 1),
    )
    return Compose([transform, Grayscale()]) if is_grey else transform


class MixingCollate:
    """Joins pictures to a batch and mixes pairs of them, by mixup or cutmix.

    A batch of an odd number of pictures, such as the last of an epoch, is not mixed.

    Args:
        config: both alphas and the label smoothing.
        num_classes: of the model.
    """

    def __init__(self, config: AugmentationConfig, num_classes: int) -> None:
        from timm.data import Mixup

        self.smoothing, self.num_classes = config.smoothing, num_classes
        self.mixup = None
        if config.mixup > 0 or config.cutmix > 0:
            self.mixup = Mixup(
                mixup_alpha=config.mixup,
                cutmix_alpha=config.cutmix,
                switch_prob=config.switch,
                label_smoothing=config.smoothing,
                num_classes=num_classes,
            )

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        batch = plain_collate(items)
        if self.mixup is None:
            return batch
        if len(items) % 2:
            hard = F.one_hot(batch["labels"], self.num_classes).float()
            shares = hard * (1 - self.smoothing) + self.smoothing / self.num_classes
            return {"pixel_values": batch["pixel_values"], "labels": shares}
        # Pictures of a stream have no number; the first one, a random view, tells batches apart as well.
        draw = items[0].get("draw") or (zlib.crc32(batch["pixel_values"][0].numpy()),)
        with seeded_randomness(*draw, len(items)):
            pixels, labels = self.mixup(batch["pixel_values"], batch["labels"])
        return {"pixel_values": pixels, "labels": labels}


def plain_collate(items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Joins pictures and class numbers to a batch."""
    pixels = torch.stack([item["pixel_values"] for item in items])
    return {"pixel_values": pixels, "labels": torch.tensor([int(item["labels"]) for item in items])}
