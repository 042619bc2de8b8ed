"""Accuracy of image classifiers at any resolution, with the paper's transform (Table 3).

Unlike the release's distributed sampler, no picture is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
def count_correct(model: ImageModel, batches: Iterable[tuple[Tensor, Tensor]], resolution: int) -> Accuracy:
    """Counts right answers among the first and the first five over batches of (pixels, labels)."""
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
    dataset: Any,
    resolutions: Sequence[int],
    batch_size: int = 64,
    workers: int = 0,
    max_images: int | None = None,
) -> list[Accuracy]:
    """Measures a classifier on a dataset of timm at each resolution.

    Args:
        model: from `load_image_model`.
        dataset: from `open_image_split`.
        resolutions: sides in pixels; must be divisible by the patch size.
        batch_size: pictures at a time.
        workers: processes that load pictures.
        max_images: use evenly spread pictures only, so many; of a stream the first batches.
    """
    check_resolutions(model, resolutions)
    chosen, batches = dataset, None
    if max_images is not None and isinstance(dataset, IterableDataset):
        batches = -(-max_images // batch_size)
    elif max_images is not None and max_images < len(dataset):
        places = torch.linspace(0, len(dataset) - 1, max_images).round().long().tolist()
        chosen = Subset(dataset, places)
    results = []
    for resolution in resolutions:
        dataset.transform = evaluation_transform(resolution, model.mean, model.std)
        loader = DataLoader(chosen, batch_size=batch_size, num_workers=workers)
        results.append(count_correct(model, islice(loader, batches), resolution))
    return results


def evaluate_small_images(
    model: ImageModel,
    small: SmallImages,
    split: str,
    resolutions: Sequence[int],
    batch_size: int = 64,
    max_images: int | None = None,
) -> list[Accuracy]:
    """Measures a classifier on a set in memory, upsampled to each resolution.

    Args:
        model: from `load_image_model`.
        small: from `open_small_images`.
        split: of the set.
        resolutions: sides in pixels; must be divisible by the patch size.
        batch_size: pictures at a time.
        max_images: use the first ones only, so many.
    """
    check_resolutions(model, resolutions)
    chosen = small.split(split)
    images, labels = chosen.images[:max_images], chosen.labels[:max_images]

    def batches(resolution: int) -> Iterator[tuple[Tensor, Tensor]]:
        for some, answers in zip(images.split(batch_size), labels.split(batch_size), strict=True):
            yield small.pixels(some, resolution, model.channels), answers

    return [count_correct(model, batches(resolution), resolution) for resolution in resolutions]
