"""The models that come with the package, with what was measured of them.

Reads `facts.yaml` and `results.json` only, without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..zoo import zoo_folder
from .card_facts import Facts, Result, load_facts, load_results


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


def zoo_entries(cards: Path | None = None) -> list[ZooEntry]:
    """Return the models that have weights beside their card, in a folder of cards or in the package."""
    folders = sorted(path.parent for path in (cards or zoo_folder()).glob("*/facts.yaml"))
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
    for result in sorted(results, key=_size):
        value = result.value if result.mean is None else result.mean
        if value is not None:
            measured[" ".join(f"{name} {size}" for name, size in result.setting.items())] = value
    return measured


def _size(result: Result) -> float:
    return float(next((value for value in result.setting.values() if isinstance(value, int | float)), 0))
