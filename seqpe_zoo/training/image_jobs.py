"""Jobs of image classifiers: a ViT from scratch, and fine-tuning of any checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import set_seed

from ..data.errors import DataError
from ..data.image_sources import open_small_images
from ..data.images import check_same_classes, class_names, evaluation_transform, open_image_split
from ..data.small_images import SmallImages
from ..evaluation.accuracy import check_resolutions
from ..evaluation.measure import measure_images
from ..evaluation.model_loading import (
    ImageModel,
    find_position_encoding,
    image_model_of,
    load_image_model,
    read_config,
)
from .augmentation import MixingCollate, SmallImageItems, plain_collate, training_transform, with_transform
from .image_task import ImageTask, save_image_model
from .job import Job
from .run_config import ImageModelConfig, Run
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


def train_vit_job(run: Run) -> Job:
    """Builds the job of `task: train_vit`."""
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


def finetune_vit_job(run: Run) -> Job:
    """Builds the job of `task: finetune_vit`.

    Raises:
        ConfigError: the checkpoint has no position encoding of this package, and the recipe does not say so.
    """
    section = run.model
    if section.new_encoding is not None or section.rope_parameters:
        raise ConfigError(
            "model.new_encoding and model.rope_parameters are for language models; give an image model "
            f"SeqPE by `seqpe-zoo graft {section.checkpoint} FOLDER` and fine-tune the folder"
        )
    source = _open_source(run)
    set_seed(run.training.seed)
    loaded = load_image_model(section.checkpoint, trust_remote_code=section.trust_remote_code)
    check_encoding(loaded.model, section)
    if section.position_encoding is None and find_position_encoding(loaded.model) is None:
        raise ConfigError(
            f"{section.checkpoint} has no position encoding of seqpe_zoo: give it SeqPE by `seqpe-zoo graft "
            f"{section.checkpoint} FOLDER` and fine-tune the folder, or set model.position_encoding=native "
            "to fine-tune it with its own positions"
        )
    if source.num_classes is None:
        raise ConfigError(f"{run.data.source} does not tell its classes")
    arguments: dict[str, Any] = {}
    if hasattr(loaded.model, "reset_classifier"):
        if loaded.model.num_classes != source.num_classes:
            loaded.model.reset_classifier(source.num_classes)
        arguments = dict(read_config(section.checkpoint).get("model_args") or {})
        arguments["dynamic_img_size"] = True
        if hasattr(loaded.model, "set_input_size"):  # the training grid is now that of these pictures
            check_resolutions(loaded, [run.data.resolution])
            loaded.model.set_input_size((run.data.resolution,) * 2)
            arguments["img_size"] = run.data.resolution
    elif loaded.model.config.num_labels != source.num_classes:
        loaded = _with_new_head(loaded, run, source)
    return _image_job(run, loaded, source, arguments, source.num_classes)


@dataclass(frozen=True)
class _Source:
    """Training and validation pictures, of a small set in memory or of a data set, with their classes."""

    names: list[str] | None
    small: SmallImages | None = None
    train: Any = None
    validation: Any = None

    @property
    def num_classes(self) -> int | None:
        return None if self.names is None else len(self.names)


def _open_source(run: Run) -> _Source:
    data = run.data
    small = open_small_images(data.source)
    if small is not None:
        return _Source(list(small.class_names), small)
    root = None if data.root is None else Path(data.root)
    options = {"root": root, "batch_size": run.training.batch_size, "seed": run.training.seed}
    train = open_image_split(
        data.source, data.train_split, is_training=True, num_samples=data.train_images, **options
    )
    validation = open_image_split(data.source, data.validation_split, **options)
    check_same_classes(train, validation, data.validation_split)
    return _Source(class_names(train), None, train, validation)


def _image_job(run: Run, model: ImageModel, source: _Source, arguments: dict[str, Any], classes: int) -> Job:
    data, augmentation, seed = run.data, run.augmentation, run.training.seed
    small = source.small
    if small is not None:
        model.mean, model.std = (small.mean,) * model.channels, (small.std,) * model.channels
        how = (data.resolution, model.channels, seed)
        train: Any = SmallImageItems(small, data.train_split, *how, moves=True)
        validation: Any = SmallImageItems(small, data.validation_split, *how, moves=False)
    else:
        how = (data.resolution, model.mean, model.std)
        train = with_transform(source.train, training_transform(augmentation, *how), seed)
        validation = with_transform(source.validation, evaluation_transform(*how), seed)
    check_resolutions(model, [data.resolution, *run.evaluation.resolutions])

    def measure() -> list[Any]:
        evaluation = run.evaluation
        if not evaluation.resolutions:
            return []
        where = (data.source, evaluation.split or data.validation_split, evaluation.resolutions)
        batch = run.training.evaluation_batch_size or run.training.batch_size
        root = None if data.root is None else Path(data.root)
        return measure_images(
            model, model.label, *where, batch, run.training.workers, evaluation.max_images, root
        )

    return Job(
        run=run,
        model=ImageTask(model.model, augmentation.smoothing),
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
            crop_pct=0.875 if small is None else 1.0,
        ),
        measure=measure,
    )


def _with_new_head(loaded: ImageModel, run: Run, source: _Source) -> ImageModel:
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
    return ImageModel(
        loaded.name,
        model,
        lambda pixels: model(pixel_values=pixels).logits,
        loaded.mean,
        loaded.std,
        loaded.patch_size,
    )
