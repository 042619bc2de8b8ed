"""Accuracy of image classifiers at any resolution, with the paper's transform (Table 3).

Unlike the release's distributed sampler, no picture is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset

from ..data.errors import DataError
from ..data.images import evaluation_transform
from ..data.small_images import SmallImages
from .model_loading import ImageModel, find_position_encoding

Batches = Iterable[tuple[Tensor, Tensor]]
"""Of (pixels, labels)."""


@dataclass(frozen=True)
class Accuracy:
    """Result at one resolution, in percent."""

    resolution: int
    top1: float
    top5: float
    images: int


def check_resolutions(model: ImageModel, resolutions: Sequence[int]) -> None:
    """Refuses resolutions that the model cannot see, before anything is computed.

    Raises:
        DataError: patches do not divide a resolution, or its grid is beyond the positions' digits.
    """
    if not resolutions or min(resolutions) < 1:
        raise DataError(f"resolutions {list(resolutions)} must be positive numbers of pixels")
    if model.patch_size is None:
        return
    encoding = find_position_encoding(model.model)
    for resolution in resolutions:
        if resolution % model.patch_size:
            below = resolution // model.patch_size * model.patch_size
            raise DataError(
                f"resolution {resolution} is not divisible into patches of {model.patch_size} pixels; "
                f"use {below or model.patch_size} or {below + model.patch_size}"
            )
        if encoding is not None:
            try:
                encoding.check_limit([resolution // model.patch_size])
            except ValueError as error:
                raise DataError(f"resolution {resolution}: {error}") from error


@torch.inference_mode()
def count_correct(model: ImageModel, batches: Batches, resolution: int) -> Accuracy:
    """Counts right answers among the first and the first five over batches."""
    was_training = model.model.training
    model.model.eval()
    first = next(model.model.parameters())
    top1 = top5 = images = 0
    for pixels, labels in batches:
        logits = model.logits(pixels.to(device=first.device, dtype=first.dtype))
        if int(labels.max()) >= logits.shape[-1]:
            raise DataError(
                f"a picture is of class number {int(labels.max())}, and {model.name} tells "
                f"{logits.shape[-1]} classes apart: give data of the model's own classes"
            )
        ranked = logits.float().topk(min(5, logits.shape[-1]), dim=-1).indices.cpu()
        hits = ranked == labels.unsqueeze(1)
        top1 += int(hits[:, 0].sum())
        top5 += int(hits.any(1).sum())
        images += len(labels)
    model.model.train(was_training)
    if images == 0:
        raise DataError(f"there is no image to measure at resolution {resolution}")
    return Accuracy(resolution, 100 * top1 / images, 100 * top5 / images, images)


def evaluate_accuracy(
    model: ImageModel,
    images: Any,
    resolutions: Sequence[int],
    batch_size: int = 64,
    workers: int = 0,
    max_images: int | None = None,
) -> list[Accuracy]:
    """Measures a classifier at each resolution.

    Args:
        model: from `load_image_model`.
        images: a dataset of timm from `open_image_split`, or a set in memory and the name of its split, from
            `open_small_images`, which is upsampled.
        resolutions: sides in pixels; must be divisible by the patch size.
        batch_size: pictures at a time.
        workers: processes that load pictures.
        max_images: use so many: of a dataset evenly spread ones, of a stream the first batches, of a set in
            memory the first ones.
    """
    check_resolutions(model, resolutions)
    if isinstance(images, tuple):
        batches_at = _batches_in_memory(model, *images, batch_size, max_images)
    else:
        batches_at = _batches_of_dataset(model, images, batch_size, workers, max_images)
    return [count_correct(model, batches_at(resolution), resolution) for resolution in resolutions]


def _batches_of_dataset(
    model: ImageModel, dataset: Any, batch_size: int, workers: int, most: int | None
) -> Callable[[int], Batches]:
    chosen, count = dataset, None
    if most is not None and isinstance(dataset, IterableDataset):
        count = -(-most // batch_size)
    elif most is not None and most < len(dataset):
        places = torch.linspace(0, len(dataset) - 1, most).round().long().tolist()
        chosen = Subset(dataset, places)

    def batches_at(resolution: int) -> Batches:
        dataset.transform = evaluation_transform(resolution, model.mean, model.std)
        return islice(DataLoader(chosen, batch_size=batch_size, num_workers=workers), count)

    return batches_at


def _batches_in_memory(
    model: ImageModel, small: SmallImages, split: str, batch_size: int, most: int | None
) -> Callable[[int], Batches]:
    chosen = small.split(split)
    images, labels = (part[:most].split(batch_size) for part in (chosen.images, chosen.labels))
    return lambda resolution: zip(
        (small.pixels(some, resolution, model.channels) for some in images), labels, strict=True
    )
