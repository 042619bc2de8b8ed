"""The models that come with the package, with what was measured of them.

Reads `facts.yaml` and `results.json` only, without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..zoo import zoo_folder
from .card_facts import Result, load_facts, load_results


@dataclass(frozen=True)
class ZooEntry:
    """A model and its extrapolation."""

    name: str
    task: str
    encoding: str
    parameters: str
    trained_on: str
    metric: str
    measured: dict[str, float]
    """Setting ("length 512") to value, smallest setting first; the mean where there are several seeds."""


def zoo_entries(cards: Path | None = None) -> list[ZooEntry]:
    """Return the models that have weights beside their card, in a folder of cards or in the package."""
    found = []
    for path in sorted((cards or zoo_folder()).glob("*/facts.yaml")):
        if any(path.parent.glob("*.safetensors")):
            facts, results = load_facts(path), load_results(path.with_name("results.json"))
            metric = results[0].metric if results else ""
            measured = {}
            for result in sorted(results, key=size_of_setting):
                value = result.value if result.mean is None else result.mean
                if value is not None and result.metric == metric:
                    measured[" ".join(f"{name} {size}" for name, size in result.setting.items())] = value
            encoding = str(facts.position_encoding["name"])
            size = str(facts.figures.get("parameters", ""))
            words = (path.parent.name, facts.pipeline_tag, encoding, size, facts.trained_on, metric)
            found.append(ZooEntry(*words, measured))
    return found


def size_of_setting(result: Result) -> float:
    """Return the number in a result's setting, as the length or the resolution."""
    return float(next((value for value in result.setting.values() if isinstance(value, int | float)), 0))
