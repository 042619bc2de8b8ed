"""The models of the zoo whose weights are in a clone of the repository, with what was measured of them.

`model_cards/` is not part of the installed package: where there is no clone, there are no entries. Reads
`facts.yaml` and `results.json` only, without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .card_facts import Facts, Result, load_facts, load_results

CARDS = Path(__file__).parents[2] / "model_cards"
"""Beside the package in a clone; in an installation there is no such folder."""


@dataclass(frozen=True)
class ZooEntry:
    """A model and its extrapolation."""

    name: str
    folder: Path
    task: str
    encoding: str
    parameters: str
    trained_on: str
    metric: str
    measured: dict[str, float]
    """Setting ("length 512") to value, smallest setting first; the mean where there are several seeds."""


def zoo_entries(cards: Path = CARDS) -> list[ZooEntry]:
    """Return the models below `model_cards` that have weights beside their card."""
    folders = sorted(path.parent for path in cards.glob("*/facts.yaml"))
    return [
        _entry(folder, load_facts(folder / "facts.yaml"), load_results(folder / "results.json"))
        for folder in folders
        if any(folder.glob("*.safetensors"))
    ]


def _entry(folder: Path, facts: Facts, results: list[Result]) -> ZooEntry:
    metric = results[0].metric if results else ""
    return ZooEntry(
        name=folder.name,
        folder=folder,
        task=facts.pipeline_tag,
        encoding=str(facts.position_encoding["name"]),
        parameters=str(facts.figures.get("parameters", "")),
        trained_on=facts.trained_on,
        metric=metric,
        measured=_by_setting([result for result in results if result.metric == metric]),
    )


def _by_setting(results: list[Result]) -> dict[str, float]:
    measured = {}
    for result in sorted(results, key=size_of_setting):
        value = result.value if result.mean is None else result.mean
        if value is not None:
            measured[" ".join(f"{name} {size}" for name, size in result.setting.items())] = value
    return measured


def size_of_setting(result: Result) -> float:
    """Return the number in a result's setting, as the length or the resolution."""
    return float(next((value for value in result.setting.values() if isinstance(value, int | float)), 0))
