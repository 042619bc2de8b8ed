"""What the page shows, computed: perplexity or prediction, the heatmap of positions, curves of two models.

Nothing here knows of the page. Whatever cannot be shown is a `DataError` with a sentence for the reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import nn

from ..data.errors import DataError
from ..evaluation.accuracy import check_resolutions
from ..evaluation.defaults import accepts, trained_length, trained_size
from ..evaluation.model_loading import ImageModel, LanguageModel
from ..evaluation.perplexity import check_lengths, evaluate_perplexity
from ..evaluation.plots import plot_extrapolation
from ..evaluation.position_space import encoding_with_vectors, position_heatmap
from .pictures import prepare_picture
from .texts import check_text, read_text

LENGTH_MULTIPLES = (1, 2, 4, 8, 16)
SIZE_MULTIPLES = (1.0, 1.5, 2.0, 3.0, 4.0)
"""Contexts and pictures are shown up to so many times those of training."""


@dataclass(frozen=True)
class View:
    """What is seen of a model at one setting.

    Attributes:
        summary: a sentence of Markdown.
        heatmap: a figure, None where the encoding has no vectors.
        note: why something is missing.
        probabilities: of the classes; image models only.
    """

    summary: str
    heatmap: Any | None
    note: str = ""
    probabilities: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Curves:
    """Two models over many settings.

    Attributes:
        points: model -> setting -> value.
        figure: the same, drawn.
        note: what was left out.
    """

    points: Mapping[str, Mapping[int, float]]
    figure: Any
    note: str = ""


@dataclass(frozen=True)
class SettingRange:
    """How far a slider goes, in which steps, and where it begins."""

    largest: int
    step: int
    start: int


# Language models.


def length_range(models: Sequence[LanguageModel]) -> SettingRange:
    """Returns the context lengths that a slider offers for models; it begins as far out as all can read."""
    trained = [trained_length(model.model) for model in models]
    step, shortest = max(1, min(trained) // 4), min(trained)
    readable = [
        shortest * multiple
        for multiple in LENGTH_MULTIPLES
        if all(accepts(check_lengths, model.model, shortest * multiple) for model in models)
    ]
    return SettingRange(LENGTH_MULTIPLES[-1] * max(trained), step, max(readable, default=shortest))


def view_text(model: LanguageModel, text: str, own: str, length: int) -> View:
    """Measures a language model at one context length.

    Args:
        model: which one.
        text: one of `texts.TEXTS`.
        own: the user's text.
        length: tokens of a context.

    Raises:
        DataError: the length is beyond the model or the text, or there is no such text.
    """
    check_lengths(model.model, [length])
    stream = read_text(model, text, own, length)
    check_text(stream, length)
    (result,) = evaluate_perplexity(model.model, stream, [length])
    times = _times(length, trained_length(model.model), "tokens")
    summary = (
        f"### Perplexity {result.perplexity:.2f}\n"
        f"in contexts of {length:,} tokens, {times}; {result.targets:,} tokens predicted. "
        f"Position encoding: `{model.label}`."
    )
    return View(summary, *_heatmap_or_note(model.model, length))


def compare_texts(models: Mapping[str, LanguageModel], text: str, own: str) -> Curves:
    """Measures language models on the same text over many context lengths.

    Lengths are multiples of the shortest training length. Those beyond a model's capacity are left out of
    its curve, those beyond the text out of all.

    Raises:
        DataError: the models cut the text into different tokens, or the text is too short for two lengths.
    """
    trained = min(trained_length(model.model) for model in models.values())
    lengths = [trained * multiple for multiple in LENGTH_MULTIPLES]
    streams = {name: read_text(model, text, own, lengths[-1]) for name, model in models.items()}
    stream, *others = streams.values()
    if not all(torch.equal(stream, other) for other in others):
        raise DataError(
            "these models cut the text into different tokens, so their perplexities do not compare: choose "
            "two with the same tokenizer"
        )
    check_text(stream, lengths[1])  # a curve has two points at least
    fitting = [length for length in lengths if length < stream.numel()]
    notes = [] if fitting == lengths else [f"The text ends before {lengths[len(fitting)]:,} tokens."]
    points: dict[str, dict[int, float]] = {}
    for name, model in models.items():
        readable = [length for length in fitting if accepts(check_lengths, model.model, length)]
        if readable != fitting:
            notes.append(f"{name} cannot read {fitting[len(readable)]:,} tokens.")
        results = evaluate_perplexity(model.model, stream, readable)
        points[name] = {result.length: result.perplexity for result in results}
    figure = plot_extrapolation(points, "perplexity", "context length (tokens)", trained)
    return Curves(points, figure, " ".join(notes))


# Image models.


def size_range(models: Sequence[ImageModel]) -> SettingRange:
    """Returns the image sizes that a slider offers for models: whole patches of all of them."""
    trained = [trained_size(model) for model in models]
    step = math.lcm(*(model.patch_size or 1 for model in models))
    largest = int(SIZE_MULTIPLES[-1] * max(trained)) // step * step
    return SettingRange(largest, step, max(step, min(trained) // step * step))


def view_picture(model: ImageModel, names: Sequence[str] | None, picture: Image.Image, size: int) -> View:
    """Classifies a picture at one size.

    Args:
        model: which one.
        names: of its classes; numbers where there are none.
        picture: of any size and mode.
        size: to which the picture is resized, in pixels.

    Raises:
        DataError: patches do not divide the size, or it is beyond the model's positions.
    """
    probabilities = classify(model, names, picture, size)
    answer = max(probabilities, key=lambda name: probabilities[name])
    summary = (
        f"### {answer}: {100 * probabilities[answer]:.1f} %\n"
        f"at {size} x {size} pixels, {_times(size, trained_size(model), 'pixels')}. "
        f"Position encoding: `{model.label}`."
    )
    side = size // (model.patch_size or size)
    return View(summary, *_heatmap_or_note(model.model, side), probabilities)


@torch.inference_mode()
def classify(
    model: ImageModel, names: Sequence[str] | None, picture: Image.Image, size: int
) -> dict[str, float]:
    """Returns the probability of each class for a picture at one size.

    Raises:
        DataError: as `view_picture`.
    """
    check_resolutions(model, [size])
    probabilities = model.logits(prepare_picture(picture, model, size))[0].float().softmax(-1).tolist()
    if names is None or len(names) != len(probabilities):
        names = [f"class {number}" for number in range(len(probabilities))]
    return dict(zip(names, probabilities, strict=True))


def compare_pictures(
    models: Mapping[str, tuple[ImageModel, Sequence[str] | None]], picture: Image.Image
) -> Curves:
    """Follows the first model's answer over many sizes: how probable is it to each model?

    Args:
        models: name -> model and the names of its classes.
        picture: of any size and mode.

    Raises:
        DataError: the models know different classes.
    """
    trained = min(trained_size(model) for model, _ in models.values())
    known = {name: classify(*pair, picture, trained_size(pair[0])) for name, pair in models.items()}
    first, *others = known.values()
    if any(list(other) != list(first) for other in others):
        raise DataError("these models know different classes, so their answers do not compare: choose others")
    answer = max(first, key=lambda name: first[name])
    step = size_range([model for model, _ in models.values()]).step
    sizes = sorted({max(step, round(trained * multiple / step) * step) for multiple in SIZE_MULTIPLES})
    notes = []
    points: dict[str, dict[int, float]] = {}
    for name, (model, names) in models.items():
        visible = [size for size in sizes if accepts(check_resolutions, model, size)]
        if visible != sizes:
            notes.append(f"{name} cannot see {sizes[len(visible)]} pixels.")
        points[name] = {size: 100 * classify(model, names, picture, size)[answer] for size in visible}
    figure = plot_extrapolation(points, f"probability of {answer} (%)", "image size (pixels)", trained)
    return Curves(points, figure, " ".join(notes))


def _heatmap_or_note(model: nn.Module, size: int) -> tuple[Any | None, str]:
    try:
        return position_heatmap(encoding_with_vectors(model), size), ""
    except DataError as error:
        return None, f"No heatmap: {error}"


def _times(setting: int, trained: int, unit: str) -> str:
    if setting == trained:
        return "as in training"
    return f"{setting / trained:.3g} times the {trained:,} {unit} of training"
