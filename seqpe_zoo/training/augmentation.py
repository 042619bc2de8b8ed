"""Training pictures: data sets, and random views by timm.data: crops, RandAugment, erasing, mixup and cutmix.

Everything random is seeded by what it works on (see `SeededImages`), so that a run can be continued exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from ..data.images import SeededImages
from ..data.seeding import seeded_randomness
from ..data.small_images import SmallImages, shift_images
from .run_config import AugmentationConfig
from .strict_config import ConfigError


def training_transform(
    config: AugmentationConfig, resolution: int, mean: Sequence[float], std: Sequence[float]
) -> Callable[[Any], Tensor]:
    """Makes the transform of a training picture; one mean, of a model of one channel, makes it grey.

    Raises:
        ConfigError: timm does not know the policy of automatic augmentation.
    """
    from timm.data import create_transform
    from torchvision.transforms import Compose, Grayscale

    is_grey = len(mean) == 1
    try:
        transform = create_transform(
            input_size=(3, resolution, resolution),
            is_training=True,
            scale=config.scale,
            ratio=config.ratio,
            hflip=config.flip,
            color_jitter=config.colour_jitter,
            auto_augment=config.auto_augment,
            interpolation="bicubic",
            re_prob=config.erase,
            re_mode="pixel",
            mean=tuple(mean) * (3 if is_grey else 1),
            std=tuple(std) * (3 if is_grey else 1),
        )
    except (AssertionError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(
            f"augmentation.auto_augment={config.auto_augment!r} is no policy of timm, as "
            "rand-m9-mstd0.5-inc1, or null for none"
        ) from error
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


class SmallImageItems(Dataset[dict[str, Any]]):
    """Pictures of a set in memory.

    Args:
        small: the set.
        split: of the set.
        resolution: of the pictures.
        channels: of the pictures.
        seed: of the moves.
        moves: whether each picture is moved at random by up to an eighth of its original side.
    """

    def __init__(
        self, small: SmallImages, split: str, resolution: int, channels: int, seed: int, moves: bool
    ) -> None:
        self.small, self.chosen, self.moves = small, small.split(split), moves
        self.resolution, self.channels, self.seed, self.epoch = resolution, channels, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Tells which epoch begins; called by accelerate."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.chosen.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Makes many items at once: resizing them together is several times faster."""
        images: Tensor = self.chosen.images[list(indices)]
        if self.moves:
            most = max(1, images.shape[-1] // 8)
            pairs = zip(images.split(1), indices, strict=True)
            images = torch.cat([shift_images(image, most, self._generator(index)) for image, index in pairs])
        pixels = self.small.pixels(images, self.resolution, self.channels)
        labels = self.chosen.labels
        return [
            {"pixel_values": picture, "labels": int(labels[i]), "draw": (self.seed, self.epoch, i)}
            for picture, i in zip(pixels, indices, strict=True)
        ]

    def _generator(self, index: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) * 1_000_003 + index)


class StreamedImages(IterableDataset[dict[str, Any]]):
    """Pictures of a set that is read as a stream, in its own order; they are not seeded one by one."""

    def __init__(self, dataset: Any, transform: Any) -> None:
        dataset.transform = transform
        self.dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        """Tells the reader which epoch begins."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __iter__(self) -> Any:
        for pixels, label in self.dataset:
            yield {"pixel_values": pixels, "labels": int(label)}

    def __len__(self) -> int:
        return len(self.dataset)


def with_transform(dataset: Any, transform: Any, seed: int) -> Any:
    """Returns items of a data set of pictures, which may be a stream."""
    if isinstance(dataset, IterableDataset):
        return StreamedImages(dataset, transform)
    return SeededImages(dataset, transform, seed)
