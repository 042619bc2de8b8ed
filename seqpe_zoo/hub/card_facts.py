"""What a card is made from: `facts.yaml` and `results.json`, read strictly.

An unknown key is an error, and so is a number without an origin: "measured" needs the command, "paper" the
table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import UsageError


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

    def __post_init__(self) -> None:
        unknown = [library for library in self.libraries if library not in ("timm", "transformers")]
        if unknown or not self.libraries:
            raise UsageError(f"facts.yaml: libraries {self.libraries} must be among timm and transformers")
        if "name" not in self.position_encoding:
            raise UsageError("facts.yaml: position_encoding needs a name, one of the registry's")


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
    # Of repeated runs, of which `value` is one: their seeds, mean and standard deviation (`seed_results.py`).
    seeds: list[int] = field(default_factory=list)
    mean: float | None = None
    spread: float | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.spread is None) or (self.mean is not None and len(self.seeds) < 2):
            raise UsageError("results.json: mean and spread go together, with the seeds of at least two runs")
        if self.origin not in ("measured", "paper"):
            raise UsageError(f"results.json: origin {self.origin!r} must be 'measured' or 'paper'")
        if self.origin == "measured" and self.value is not None and not self.command:
            raise UsageError(
                f"results.json: the measured {self.metric} on {self.dataset.get('name')} has no command"
            )
        if self.origin == "paper" and not self.where:
            raise UsageError(f"results.json: the paper's {self.metric} needs 'where', the table it stands in")
        if not self.dataset.get("name") or not self.dataset.get("id"):
            raise UsageError("results.json: a dataset needs name and id")


def _strict(kind: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise UsageError(f"{where} must be a mapping")
    known = {f.name for f in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise UsageError(f"{where}: unknown key(s) {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    try:
        return kind(**values)
    except TypeError as error:
        raise UsageError(f"{where}: {error}") from None


def load_facts(path: Path) -> Facts:
    """Read `facts.yaml`."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{path.name} not found in {path.parent.name}", "write it; see model_cards/README.md"
        ) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path.name} is not YAML: {error}") from error
    return _strict(Facts, values, path.name)


def load_results(path: Path) -> list[Result]:
    """Read `results.json`; a missing file means that nothing was measured."""
    if not path.is_file():
        return []
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path.name} is not JSON: {error}") from error
    return [_strict(Result, value, f"{path.name}, result {n}") for n, value in enumerate(values["results"])]
