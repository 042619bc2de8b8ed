"""What a card is made from: `facts.yaml` and `results.json`, read strictly.

An unknown key is an error, and so is a number without an origin: "measured" needs the command, "paper" the
table.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..zoo import zoo_folder
from .errors import UsageError
from .files import parse_yaml, read_json, read_text
from .plan import require_ref, require_repo_id


@dataclass(frozen=True)
class Facts:
    """What is known of a model. The first block is required; everything else has an honest default."""

    title: str
    repo_id: str
    summary: str
    license: str
    libraries: list[str]
    pipeline_tag: str
    position_encoding: dict[str, Any]
    trained_on: str

    tag: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    weights_license: str | None = None
    code_license: str = "apache-2.0"
    tags: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    base_model: str | None = None
    base_model_relation: str | None = None
    language: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)  # shown as a table: parameters, GMACs, context, ...
    tested_up_to: str | None = None
    training: dict[str, Any] = field(default_factory=dict)  # data, recipe, hardware, command, ...
    limits: list[str] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    citation: str | None = None
    input_size: list[int] | None = None  # of images, (3, H, W)
    tokenizer: bool = True
    prompt: str = "Where is this word?"
    sample: str | None = None  # what the first snippet prints; from results.json (model_cards/maintain.py)

    def __post_init__(self) -> None:
        _require_types(self)
        require_repo_id(self.repo_id)
        require_ref(self.tag, "tag")
        unknown = [library for library in self.libraries if library not in ("timm", "transformers")]
        if unknown or not self.libraries:
            raise UsageError(f"libraries {self.libraries} must be among timm and transformers")
        if "name" not in self.position_encoding:
            raise UsageError("position_encoding needs a name, one of the registry's")


@dataclass(frozen=True)
class Result:
    """One number: what was measured, on what, at which length or resolution, and where the number is from."""

    task: str
    dataset: dict[str, Any]  # name, id, and if known config, split, revision
    metric: str
    value: float | None
    origin: str  # "measured" or "paper"
    setting: dict[str, Any] = field(default_factory=dict)  # {"length": 4096}, {"resolution": 448}
    command: str | None = None
    where: str | None = None  # the paper's table
    git_sha: str | None = None
    seed: int | None = None
    note: str | None = None
    # Of repeated runs, of which `value` is one: seeds, mean, standard deviation (model_cards/maintain.py).
    seeds: list[int] = field(default_factory=list)
    mean: float | None = None
    spread: float | None = None

    def __post_init__(self) -> None:
        _require_types(self)
        if (self.mean is None) != (self.spread is None) or (self.mean is not None and len(self.seeds) < 2):
            raise UsageError("mean and spread go together, with the seeds of at least two runs")
        if self.origin not in ("measured", "paper"):
            raise UsageError(f"origin {self.origin!r} must be 'measured' or 'paper'")
        if self.origin == "measured" and self.value is not None and not self.command:
            raise UsageError(f"the measured {self.metric} on {self.dataset.get('name')} has no command")
        if self.origin == "paper" and not self.where:
            raise UsageError(f"the paper's {self.metric} needs 'where', the table it stands in")
        if not self.dataset.get("name") or not self.dataset.get("id"):
            raise UsageError("a dataset needs name and id")


_TYPES = {"str": str, "list": list, "dict": dict, "bool": bool, "int": int, "float": (int, float)}
_TYPES["None"] = type(None)


def _require_types(self: Any) -> None:
    """Refuse a value of another type than its field is declared with, and numbers that are none."""
    for f in fields(self):
        value, declared = getattr(self, f.name), re.sub(r"\[.*?\]", "", str(f.type))
        if not isinstance(value, tuple(_TYPES[name] for name in re.findall(r"\w+", declared))):
            raise UsageError(f"{f.name} must be {f.type}, not {str(value)[:60]!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{f.name} is {value}; leave out what was not measured")


def _strict(kind: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise UsageError(f"{where} must be a mapping")
    known = {f.name for f in fields(kind)}
    if unknown := sorted(map(str, set(values) - known)):
        raise UsageError(f"{where}: unknown key(s) {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    try:
        return kind(**values)
    except (TypeError, UsageError) as error:
        raise UsageError(f"{where}: {error.args[0]}") from None


def load_facts(path: Path) -> Facts:
    """Read `facts.yaml`."""
    try:
        values = parse_yaml(read_text(path), path.name)
    except FileNotFoundError:
        problem = f"{path.name} not found in {path.parent.name}"
        raise UsageError(problem, "write it; see model_cards/README.md") from None
    facts: Facts = _strict(Facts, values, path.name)
    return facts


def load_card(folder: Path) -> tuple[Facts, list[Result]]:
    """Read a folder of facts and results; what the run recorded completes the provenance."""
    facts, path = load_facts(folder / "facts.yaml"), folder / "results.json"
    record = read_json(path) if path.is_file() else {}
    versions = record.get("versions") if isinstance(record.get("versions"), dict) else {}
    known = {"package_version": versions.get("seqpe-zoo"), "git_sha": record.get("git_sha")}
    facts = replace(
        facts, provenance={**known, **facts.provenance}, sample=facts.sample or record.get("sample")
    )
    return facts, load_results(path)


def load_results(path: Path) -> list[Result]:
    """Read `results.json`; a missing file means that nothing was measured."""
    values = read_json(path).get("results") if path.is_file() else []
    if not isinstance(values, list):
        raise UsageError(f"{path.name} needs a list 'results'")
    return [_strict(Result, value, f"{path.name}, result {n}") for n, value in enumerate(values)]


# The models that come with the package, with what was measured of them.


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
