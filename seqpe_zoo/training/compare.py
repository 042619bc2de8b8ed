"""Several encodings under one recipe: `seqpe-zoo compare` trains them, or takes checkpoints, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..evaluation.report import Measurement
from .run_config import TrainGPT2Run, TrainViTRun
from .strict_config import ConfigError


def split_contestant(word: str) -> tuple[str, str, dict[str, Any]]:
    """Reads `[LABEL=]ENCODING[:option=value,...]`; returns label, encoding and options.

    Raises:
        ConfigError: an option is not of the form name=value.
    """
    import yaml

    head, _, tail = word.partition(":")
    label, separator, encoding = head.partition("=")
    if not separator:
        label, encoding = word, head
    options = {}
    for part in filter(None, tail.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{word!r}: {part!r} is not an option of the form name=value")
        parsed = yaml.safe_load(value)
        try:
            options[name] = float(parsed) if isinstance(parsed, str) else parsed
        except ValueError:
            options[name] = parsed
    return label, encoding, options


def is_checkpoint(word: str) -> bool:
    """Tells a trained contestant, `[LABEL=]FOLDER` or `[LABEL=]ORG/NAME`, from one to be trained."""
    name = word.partition("=")[2] or word
    return Path(name).is_dir() or "/" in name.partition(":")[0]


def run_for(run: TrainGPT2Run | TrainViTRun, word: str) -> tuple[str, Any]:
    """Returns the label of a contestant, and the recipe with its encoding and a run folder of its own.

    Args:
        run: the common recipe.
        word: as `split_contestant` reads it.
    """
    label, encoding, options = split_contestant(word)
    own = dict(run.model.position_encoding_args) if encoding == run.model.position_encoding else {}
    model = replace(run.model, position_encoding=encoding, position_encoding_args={**own, **options})
    folder = Path(run.training.output) / "".join(c if c.isalnum() or c in "-_." else "_" for c in label)
    return label, replace(run, model=model, training=replace(run.training, output=str(folder)))


def relabel(measurements: Sequence[Measurement], label: str) -> list[Measurement]:
    """Puts the label of a contestant on its numbers."""
    return [replace(measurement, model=label) for measurement in measurements]


def measure_checkpoint(word: str, run: TrainGPT2Run | TrainViTRun) -> list[Measurement]:
    """Measures a trained model as the recipe measures those that it trains."""
    from ..evaluation.commands import split_label
    from ..evaluation.measure import measure_images, measure_text
    from ..evaluation.model_loading import load_image_model, load_language_model

    label, name = split_label(word)
    if isinstance(run, TrainGPT2Run):
        model = load_language_model(name)
        what = run.evaluation
        return measure_text(
            model, label or model.label, run.data.source, what.split, what.lengths, what.max_tokens
        )
    image_model = load_image_model(name)
    split = run.evaluation.split or run.data.validation_split
    where = (run.data.source, split, run.evaluation.resolutions, run.training.batch_size)
    return measure_images(
        image_model, label or image_model.label, *where, max_images=run.evaluation.max_images
    )
