"""Several encodings under one recipe and budget, as `seqpe-zoo compare --recipe mini_lm`.

A comparison is a YAML file: a recipe that all runs share, what each changes, and how the user's data
folder is prepared for it. Words in braces in the recipe stand for places that are known only then.
Runs that are typed, as `seqpe rope:base=1e6 org/model`, make a comparison of a recipe of train_gpt2 or
train_vit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ..data.errors import DataError
from ..data.held_out import split_texts
from ..data.recipes import find_recipe
from ..data.text_blocks import find_text_files, read_text_files
from ..data.trained_tokenizer import train_tokenizer
from ..evaluation.commands import split_label
from ..evaluation.context_scaling import scale_context
from ..evaluation.measure import measure_images, measure_text
from ..evaluation.model_loading import load_image_model, load_language_model
from ..evaluation.report import Measurement, read_measurements
from .launch import build_job
from .run_config import Count, build_run
from .side_by_side import PlannedRun, train_side_by_side
from .strict_config import ConfigError, Within, apply_overrides, build_config, read_value, read_yaml

Seed = Annotated[int, Within(0, 2**32 - 1)]


@dataclass(frozen=True)
class Entry:
    """What one run changes."""

    encoding: str | None = None  # of the registry; fine-tuned runs have that of their checkpoint
    options: dict[str, Any] = field(default_factory=dict)  # of the encoding
    weights_of: str | None = None  # another run whose models are measured again, nothing is trained
    scaling: str | None = None  # how those read longer contexts, as of `evaluation.context_scaling`
    checkpoint: str | None = None  # folder or Hub id of a model that is measured, nothing is trained
    start: str | None = None  # run of an earlier comparison whose model is fine-tuned
    training: dict[str, Any] = field(default_factory=dict)  # fields in which its training section differs
    model: dict[str, Any] = field(default_factory=dict)  # the same of its model section
    data: dict[str, Any] = field(default_factory=dict)  # the same of its data section
    paper: str | None = None  # its row of the paper's table

    def __post_init__(self) -> None:
        if (self.weights_of is None) != (self.scaling is None):
            raise ConfigError(
                f"weights_of={self.weights_of!r} and scaling={self.scaling!r} belong together: whose models "
                "are measured again, and how their positions are scaled"
            )


@dataclass(frozen=True)
class Comparison:
    """A comparison, as its file or what was typed says."""

    runs: dict[str, Any]  # an Entry for each label
    recipe: dict[str, Any]  # what they share, in the form of a recipe of `seqpe-zoo train`
    title: str | None = None  # of the report; None for runs that were typed
    data: Literal["texts", "fashion-mnist", "images"] | None = None  # how the data folder is prepared
    seeds: tuple[Seed, ...] = ()  # each run is trained once with each; empty takes the recipe's
    vocabulary: Count = 1024  # tokens of the tokenizer that is trained on the texts
    paper_table: str | None = None  # which table of the paper it redoes


def load_comparison(
    recipe: str | Path, changes: Sequence[str] = (), words: Sequence[str] = (), seeds: Sequence[int] = ()
) -> Comparison:
    """Reads a comparison, or makes one of a recipe and of runs as typed.

    Args:
        recipe: name or path.
        changes: words `section.key=value` of the shared recipe.
        words: runs as `read_entry` takes them, or those of the comparison that take part.
        seeds: instead of those of the comparison.

    Raises:
        ConfigError: it is wrong in any way.
    """
    path = find_recipe(recipe)
    content = read_yaml(path)
    if "runs" not in content:
        return _typed_comparison(recipe, apply_overrides(content, changes), words, seeds)
    content["recipe"] = apply_overrides(content.get("recipe") or {}, changes)
    made = build_config(Comparison, {"title": path.stem, "seeds": [0, 1, 2], **content})
    chosen = {}
    for label in words or made.runs:
        if label not in made.runs:
            raise ConfigError(f"no run {label!r}; there are {', '.join(made.runs)}")
        chosen[label] = build_config(Entry, made.runs[label], label)
    for label, entry in chosen.items():
        if entry.weights_of is not None and entry.weights_of not in chosen:
            source = entry.weights_of
            raise ConfigError(f"{label!r} measures the models of {source!r}: name that run too")
    return replace(made, runs=chosen, seeds=tuple(seeds) or made.seeds)


def _typed_comparison(
    recipe: Path, shared: dict[str, Any], words: Sequence[str], seeds: Sequence[int]
) -> Comparison:
    if not words:
        raise ConfigError(f"name the runs: {recipe} is a recipe of one run")
    if shared.get("task") not in ("train_gpt2", "train_vit"):
        raise ConfigError(
            f"{recipe} is a recipe of {shared.get('task')}; compare needs train_gpt2 or train_vit"
        )
    evaluation = build_run(shared).evaluation
    if not (getattr(evaluation, "lengths", ()) or getattr(evaluation, "resolutions", ())):
        raise ConfigError("the recipe measures nothing: set evaluation.lengths or evaluation.resolutions")
    return Comparison(dict(map(read_entry, words)), shared, seeds=tuple(seeds))


def read_entry(word: str) -> tuple[str, Entry]:
    """Reads a run as typed; returns its label, and what it changes.

    A trained one is `[LABEL=]FOLDER` or `[LABEL=]ORG/NAME`; one to be trained is
    `[LABEL=]ENCODING[:option=value,...]`.

    Raises:
        ConfigError: an option is not of the form name=value.
    """
    label, name = split_label(word)
    if Path(name).is_dir() or "/" in name.partition(":")[0]:
        return label or word, Entry(checkpoint=name)
    head, _, tail = word.partition(":")
    label, separator, encoding = head.partition("=")
    options = read_options(tail.split(","), word)
    return (label, Entry(encoding, options)) if separator else (word, Entry(head, options))


def read_options(parts: Sequence[str], word: str) -> dict[str, Any]:
    """Reads options of an encoding, `name=value` each, values as in YAML.

    Raises:
        ConfigError: one is not of that form; names the `word` that they are part of.
    """
    options = {}
    for part in filter(None, parts):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"{word!r}: {part!r} is not an option of the form name=value")
        options[name] = read_value(value, word)
    return options


def prepare_places(
    comparison: Comparison, data: Path | None, start: Path | None, output: Path
) -> dict[str, str]:
    """Prepares the user's data below the output folder and returns what words in braces stand for.

    Raises:
        DataError: the data is missing or of another kind.
    """
    places = {} if start is None else {"start": str(start)}
    if comparison.data is None:
        return places
    if comparison.data == "fashion-mnist":
        return {**places, "data": "fashion-mnist" if data is None else f"fashion-mnist:{data}"}
    if data is None:
        raise DataError(f"this comparison needs --data-dir, a folder or file of {comparison.data}")
    if comparison.data == "texts":
        folder = split_texts(data, output / "data" / data.name)  # results name the text by its folder
        tokenizer = output / "data" / "tokenizer"
        wanted = comparison.recipe.get("model", {}).get("tokenizer")
        if wanted == "{tokenizer}" and not tokenizer.is_dir():
            lines = read_text_files(find_text_files(folder, "train"))
            train_tokenizer(lines, comparison.vocabulary).save_pretrained(tokenizer)
        return {**places, "data": str(folder), "tokenizer": str(tokenizer)}
    return {**places, "data": str(data)}


def plan_runs(comparison: Comparison, places: Mapping[str, str], output: Path) -> list[PlannedRun]:
    """Returns what is trained, the first seed of each before the second of any.

    Raises:
        ConfigError: a word in braces stands for nothing.
    """
    planned = []
    for seed in comparison.seeds or [None]:
        for label, entry in comparison.runs.items():
            if entry.weights_of is not None or entry.checkpoint is not None:
                continue
            known = dict(places)
            if entry.start is not None and "start" in known:
                known["start"] = str(Path(known["start"]) / run_name(entry.start, seed))
            recipe = {"model": {}, "data": {}, **_fill(comparison.recipe, known)}
            model = recipe["model"]
            if entry.encoding is not None:
                is_same = model.get("position_encoding", "seqpe") == entry.encoding
                own = model.get("position_encoding_args", {}) if is_same else {}
                model["position_encoding"] = entry.encoding
                model["position_encoding_args"] = {**own, **entry.options}
            name = run_name(label, seed)
            recipe["model"] |= entry.model
            recipe["data"] |= entry.data
            recipe["training"] |= {**entry.training, "output": str(output / name)}
            if seed is not None:
                recipe["training"]["seed"] = seed
            planned.append(PlannedRun(name, label if seed is None else f"{label}, seed {seed}", recipe))
    return planned


def run_comparison(
    comparison: Comparison,
    places: Mapping[str, str],
    output: Path,
    processes: int,
    command: str,
    console: Any,
    resume: bool = False,
) -> tuple[dict[str, list[dict[str, Any]]], list[Measurement]]:
    """Trains and measures all runs; see `train_side_by_side` for the arguments.

    Returns:
        What the results.json of every seed hold, by label of those that were trained; and all numbers, in the
        order of the labels.
    """
    planned, seeds = plan_runs(comparison, places, output), comparison.seeds or [None]
    for run in planned[: len(planned) // len(seeds)]:  # a mistake in the last run must not cost hours
        build_job(build_run(run.recipe))
    is_typed = comparison.title is None
    results = train_side_by_side(planned, processes, command, console, resume, keep_checkpoints=is_typed)
    recipes = {run.name: run.recipe for run in planned}
    by_label: dict[str, list[dict[str, Any]]] = {}
    measurements = []
    for label, entry in comparison.runs.items():
        if entry.checkpoint is not None:
            name = None if entry.checkpoint == label else label
            measurements += measure_finished(entry.checkpoint, comparison.recipe, name)
            continue
        for name in (run_name(entry.weights_of or label, seed) for seed in seeds):
            if entry.weights_of is None:
                by_label.setdefault(label, []).append(results[name])
                measurements += read_measurements(results[name], label)
            else:
                folder = str(output / name)
                measurements += measure_finished(folder, recipes[name], label, entry.scaling)
    return by_label, measurements


def measure_finished(
    name: str, recipe: Mapping[str, Any], label: str | None = None, scaling: str | None = None
) -> list[Measurement]:
    """Measures a trained model as a recipe measures those that it trains.

    Args:
        name: folder or Hub id.
        recipe: whose data and evaluation sections are used.
        label: of the numbers, by default the model's.
        scaling: scale positions from the trained size to each that is measured, as of `scale_context`.
    """
    run = build_run(recipe)
    data, evaluation = run.data, run.evaluation
    is_text = hasattr(evaluation, "lengths")
    sizes = evaluation.lengths if is_text else evaluation.resolutions
    batch = run.training.evaluation_batch_size or run.training.batch_size
    measurements = []
    for group in [sizes] if scaling is None else [(size,) for size in sizes]:
        model = load_language_model(name) if is_text else load_image_model(name)
        if scaling is not None:
            scale_context(model.model, scaling, group[0] / (data.length if is_text else data.resolution))
        shown = label or model.label
        if is_text:
            what = (data.source, evaluation.split, group, evaluation.max_tokens)
            measurements += measure_text(model, shown, *what)
        else:
            where = (data.source, evaluation.split or data.validation_split, group, batch)
            measurements += measure_images(model, shown, *where, max_images=evaluation.max_images)
    return measurements


def run_name(label: str, seed: int | None) -> str:
    """Returns the folder of a run."""
    if seed is None:
        return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in label)
    return f"{re.sub('[^A-Za-z0-9]+', '_', label).strip('_')}-seed{seed}"


def _fill(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(entry, places) for key, entry in value.items()}
    if isinstance(value, list):
        return [_fill(entry, places) for entry in value]
    if isinstance(value, str) and value.startswith("{") and value.endswith("}"):
        if value[1:-1] not in places:
            hint = ": give the folder of the earlier comparison with --start" if value == "{start}" else ""
            raise ConfigError(f"the recipe says {value}, and nothing is known of that name{hint}")
        return places[value[1:-1]]
    return value
