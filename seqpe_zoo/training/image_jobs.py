"""Jobs of image classifiers: a ViT from scratch, and fine-tuning of any checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..data.errors import DataError
from ..data.image_sources import open_small_images
from ..data.images import (
    SeededImages,
    check_same_classes,
    class_names,
    evaluation_transform,
    open_image_split,
)
from ..data.small_images import SmallImages, shift_images
from ..evaluation.accuracy import check_resolutions
from ..evaluation.measure import measure_images
from ..evaluation.model_loading import (
    ImageModel,
    find_position_encoding,
    image_model_of,
    load_image_model,
    read_config,
)
from .augmentation import MixingCollate, plain_collate, training_transform
from .image_task import ImageTask, save_image_model
from .job import Job
from .run_config import FinetuneViTRun, ImageModelConfig, TrainViTRun
from .strict_config import ConfigError
from .text_jobs import check_encoding
from .trainer import image_statistics


def model_arguments(model: ImageModelConfig, resolution: int) -> dict[str, Any]:
    """Returns what `timm.create_model` is given beside the name."""
    return {
        "pos_embed": model.position_encoding,
        "pos_embed_args": dict(model.position_encoding_args),
        "img_size": resolution,
        "dynamic_img_size": True,
        **model.architecture,
    }


def build_image_model(model: ImageModelConfig, resolution: int, num_classes: int) -> nn.Module:
    """Builds the transformer of a recipe.

    Raises:
        ConfigError: timm has no such name, the encoding is unknown, or an option does not exist.
    """
    import timm

    try:
        return timm.create_model(model.name, num_classes=num_classes, **model_arguments(model, resolution))
    except (RuntimeError, ValueError, TypeError, AssertionError, ArithmeticError) as error:
        raise ConfigError(f"model: {error}") from error


def train_vit_job(run: TrainViTRun) -> Job:
    """Builds the job of `task: train_vit`."""
    from transformers import set_seed

    source = _open_source(run)
    set_seed(run.training.seed)
    count = run.model.num_classes or source.num_classes
    if count is None:
        raise ConfigError(f"{run.data.source} does not tell its classes: set model.num_classes")
    if source.num_classes is not None and count < source.num_classes:
        raise ConfigError(
            f"model.num_classes={count}, but {run.data.source} has {source.num_classes} classes"
        )
    model = build_image_model(run.model, run.data.resolution, count)
    arguments = model_arguments(run.model, run.data.resolution)
    return _image_job(run, image_model_of(model, run.model.name), source, arguments, count)


def finetune_vit_job(run: FinetuneViTRun) -> Job:
    """Builds the job of `task: finetune_vit`."""
    from transformers import set_seed

    source = _open_source(run)
    set_seed(run.training.seed)
    loaded = load_image_model(run.model.checkpoint, trust_remote_code=run.model.trust_remote_code)
    check_encoding(loaded.model, run.model)
    if source.num_classes is None:
        raise ConfigError(f"{run.data.source} does not tell its classes")
    arguments: dict[str, Any] = {}
    if hasattr(loaded.model, "reset_classifier"):
        if loaded.model.num_classes != source.num_classes:
            loaded.model.reset_classifier(source.num_classes)
        arguments = dict(read_config(run.model.checkpoint).get("model_args") or {})
        arguments["dynamic_img_size"] = True
        if hasattr(loaded.model, "set_input_size"):  # the training grid is now that of these pictures
            check_resolutions(loaded, [run.data.resolution])
            loaded.model.set_input_size((run.data.resolution,) * 2)
            arguments["img_size"] = run.data.resolution
    elif loaded.model.config.num_labels != source.num_classes:
        loaded = _with_new_head(loaded, run, source)
    return _image_job(run, loaded, source, arguments, source.num_classes)


class _Source:
    """Training and validation pictures with what is known of them."""

    def __init__(
        self, train: Any, validation: Any, names: list[str] | None, small: SmallImages | None
    ) -> None:
        self.train, self.validation, self.names, self.small = train, validation, names, small
        self.num_classes = None if names is None else len(names)


def _open_source(run: TrainViTRun | FinetuneViTRun) -> _Source:
    data = run.data
    small = open_small_images(data.source)
    if small is not None:
        sides = (
            SmallImageItems(small, split, data.resolution, run.training.seed)
            for split in (data.train_split, data.validation_split)
        )
        return _Source(*sides, list(small.class_names), small)
    root = None if data.root is None else Path(data.root)
    options = {"root": root, "batch_size": run.training.batch_size, "seed": run.training.seed}
    train = open_image_split(
        data.source, data.train_split, is_training=True, num_samples=data.train_images, **options
    )
    validation = open_image_split(data.source, data.validation_split, **options)
    check_same_classes(train, validation, data.validation_split)
    return _Source(train, validation, class_names(train), None)


def _image_job(
    run: TrainViTRun | FinetuneViTRun,
    model: ImageModel,
    source: _Source,
    arguments: dict[str, Any],
    classes: int,
) -> Job:
    data, augmentation = run.data, run.augmentation
    train, validation = source.train, source.validation
    if source.small is not None:
        model.mean, model.std = (source.small.mean,) * model.channels, (source.small.std,) * model.channels
        train.moves = True
        train.channels = validation.channels = model.channels
    else:
        transform = training_transform(augmentation, data.resolution, model.mean, model.std)
        train = _with_transform(train, transform, run.training.seed)
        validation = _with_transform(
            validation, evaluation_transform(data.resolution, model.mean, model.std), run.training.seed
        )
    check_resolutions(model, [data.resolution, *run.evaluation.resolutions])
    task = ImageTask(model.model, augmentation.smoothing)

    def measure() -> list[Any]:
        evaluation = run.evaluation
        if not evaluation.resolutions:
            return []
        where = (data.source, evaluation.split or data.validation_split, evaluation.resolutions)
        name = _label(model)
        batch = run.training.evaluation_batch_size or run.training.batch_size
        root = None if data.root is None else Path(data.root)
        return measure_images(model, name, *where, batch, run.training.workers, evaluation.max_images, root)

    return Job(
        run=run,
        model=task,
        train=train,
        validation=validation,
        collate=MixingCollate(augmentation, classes),
        validation_collate=plain_collate,
        statistics=image_statistics,
        metric="accuracy",
        units_an_example=1,
        unit="images",
        save=partial(
            save_image_model,
            model.model,
            model_args=arguments,
            labels=source.names,
            resolution=data.resolution,
            mean=model.mean,
            std=model.std,
            crop_pct=0.875 if source.small is None else 1.0,
        ),
        measure=measure,
    )


class SmallImageItems(Dataset[dict[str, Any]]):
    """Pictures of a set in memory.

    Args:
        small: the set.
        split: of the set.
        resolution: of the pictures.
        seed: of the moves.

    Attributes:
        moves: whether each picture is moved at random by up to an eighth of its original side.
        channels: of the pictures.
    """

    def __init__(self, small: SmallImages, split: str, resolution: int, seed: int) -> None:
        self.small, self.chosen = small, small.split(split)
        self.resolution, self.seed, self.epoch = resolution, seed, 0
        self.moves, self.channels = False, 3

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
            moved = [
                shift_images(images[place : place + 1], most, self._generator(index))
                for place, index in enumerate(indices)
            ]
            images = torch.cat(moved)
        pixels = self.small.pixels(images, self.resolution, self.channels)
        labels = self.chosen.labels
        return [
            {"pixel_values": picture, "labels": int(labels[i]), "draw": (self.seed, self.epoch, i)}
            for picture, i in zip(pixels, indices, strict=True)
        ]

    def _generator(self, index: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) * 1_000_003 + index)


def _with_transform(dataset: Any, transform: Any, seed: int) -> Any:
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return _StreamedImages(dataset, transform)
    return SeededImages(dataset, transform, seed)


class _StreamedImages(torch.utils.data.IterableDataset[dict[str, Any]]):
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


def _with_new_head(loaded: ImageModel, run: FinetuneViTRun, source: _Source) -> ImageModel:
    """Loads a classifier of transformers again, with a fresh head for the classes of the data."""
    from transformers import AutoModelForImageClassification

    names = dict(enumerate(source.names or []))
    model = AutoModelForImageClassification.from_pretrained(
        run.model.checkpoint,
        id2label=names,
        label2id={name: number for number, name in names.items()},
        ignore_mismatched_sizes=True,
        trust_remote_code=run.model.trust_remote_code,
    )
    if getattr(model.config, "num_labels", None) != source.num_classes:
        raise DataError(f"{run.model.checkpoint} does not take a head of {source.num_classes} classes")

    def logits(pixels: Tensor) -> Tensor:
        return model(pixel_values=pixels).logits

    return ImageModel(loaded.name, model, logits, loaded.mean, loaded.std, loaded.patch_size)


def _label(model: ImageModel) -> str:
    encoding = find_position_encoding(model.model)
    return model.name if encoding is None else str(encoding.name)
