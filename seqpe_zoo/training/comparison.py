"""Comparisons by name: several encodings, several seeds, one budget, as `seqpe-zoo compare --recipe mini_lm`.

A comparison is a YAML file: a recipe that all contestants share, what each changes, and how the user's data
folder is prepared for it. Words in braces in the recipe stand for places that are known only then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.errors import DataError
from ..data.held_out import split_texts
from ..data.recipes import find_recipe
from ..data.text_blocks import find_text_files, read_text_files
from ..data.trained_tokenizer import train_tokenizer
from .side_by_side import PlannedRun
from .strict_config import ConfigError, apply_overrides, build_config, read_yaml

DATA_KINDS = ("texts", "fashion-mnist", "images")


@dataclass(frozen=True)
class Contestant:
    """What one contestant changes.

    Attributes:
        encoding: a name of the registry; fine-tuned contestants have that of their checkpoint.
        options: of the encoding.
        weights_of: label of another contestant whose models are measured again, nothing is trained.
        scaling: how those read longer contexts, as of `evaluation.context_scaling`.
        start: label of the contestant of an earlier comparison whose model is fine-tuned.
        training: fields of the recipe's training section in which it differs, as position_learning_rate.
        model: fields of its model section.
        data: fields of its data section.
        paper: its row of the paper's table.
    """

    encoding: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    weights_of: str | None = None
    scaling: str | None = None
    start: str | None = None
    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    paper: str | None = None

    def __post_init__(self) -> None:
        if (self.weights_of is None) != (self.scaling is None):
            raise ConfigError(
                f"weights_of={self.weights_of!r} and scaling={self.scaling!r} belong together: whose models "
                "are measured again, and how their positions are scaled"
            )


@dataclass(frozen=True)
class Comparison:
    """A comparison, as its file says.

    Attributes:
        title: of the report.
        data: how the data folder is prepared: "texts", "fashion-mnist" or "images".
        contestants: by label.
        recipe: what they share, in the form of a recipe of `seqpe-zoo train`.
        seeds: each contestant is trained once with each.
        vocabulary: tokens of the tokenizer that is trained on the texts.
        paper_table: which table of the paper it redoes.
    """

    title: str
    data: str
    contestants: dict[str, dict[str, Any]]
    recipe: dict[str, Any]
    seeds: tuple[int, ...] = (0, 1, 2)
    vocabulary: int = 1024
    paper_table: str | None = None

    def __post_init__(self) -> None:
        if self.data not in DATA_KINDS:
            raise ConfigError(f"data={self.data!r} must be one of {', '.join(DATA_KINDS)}")

    def contestant(self, label: str) -> Contestant:
        """Returns a contestant.

        Raises:
            ConfigError: there is none of this label.
        """
        if label not in self.contestants:
            raise ConfigError(f"no contestant {label!r}; there are {', '.join(self.contestants)}")
        return build_config(Contestant, self.contestants[label])


def is_comparison(recipe: str | Path) -> bool:
    """Tells a comparison from a recipe of one run."""
    return "contestants" in read_yaml(find_recipe(recipe))


def load_comparison(recipe: str | Path, changes: Sequence[str] = ()) -> Comparison:
    """Reads a comparison.

    Args:
        recipe: name or path.
        changes: words `section.key=value` of the shared recipe.

    Raises:
        ConfigError: it is wrong in any way.
    """
    content = read_yaml(find_recipe(recipe))
    content["recipe"] = apply_overrides(content.get("recipe", {}), changes)
    return build_config(Comparison, content)


def prepare_places(
    comparison: Comparison, data: Path | None, start: Path | None, output: Path
) -> dict[str, str]:
    """Prepares the user's data below the output folder and returns what words in braces stand for.

    Raises:
        DataError: the data is missing or of another kind.
    """
    places = {} if start is None else {"start": str(start)}
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


def plan_runs(
    comparison: Comparison,
    labels: Sequence[str],
    seeds: Sequence[int],
    places: Mapping[str, str],
    output: Path,
) -> list[PlannedRun]:
    """Returns the runs of all contestants, the first seed of each before the second of any.

    Raises:
        ConfigError: a word in braces stands for nothing, or a contestant is unknown.
    """
    runs = []
    for label in labels:
        source = comparison.contestant(label).weights_of
        if source is not None and source not in labels:
            raise ConfigError(f"{label!r} measures the models of {source!r}: name that contestant too")
    for seed in seeds:
        for label in labels:
            contestant = comparison.contestant(label)
            if contestant.weights_of is not None:
                continue
            known = dict(places)
            if contestant.start is not None and "start" in known:
                known["start"] = str(Path(known["start"]) / run_name(contestant.start, seed))
            recipe = _fill(comparison.recipe, known)
            if contestant.encoding is not None:
                recipe["model"]["position_encoding"] = contestant.encoding
                recipe["model"]["position_encoding_args"] = dict(contestant.options)
            recipe["model"] |= contestant.model
            recipe["data"] |= contestant.data
            name = run_name(label, seed)
            recipe["training"] |= {**contestant.training, "output": str(output / name), "seed": seed}
            runs.append(PlannedRun(name, f"{label}, seed {seed}", recipe))
    return runs


def run_name(label: str, seed: int) -> str:
    """Returns the folder of a run."""
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
