"""Results as files: `results.json` with where they come from, and Markdown tables in the paper's layout.

An entry of `results` has the fields that model cards read (seqpe_zoo/hub/card.py): a number always stands
with its command, seed and commit.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .paper_tables import load_paper_tables

PACKAGES = ("seqpe-zoo", "torch", "timm", "transformers", "accelerate", "datasets", "numpy")


@dataclass(frozen=True)
class Measurement:
    """One number: of which model, on what, at which length or resolution.

    Attributes:
        paper_table: the table of the paper whose numbers are of the same data, whole, in the same unit.
    """

    model: str
    task: str
    dataset: Mapping[str, str]
    metric: str
    setting: Mapping[str, int]
    value: float
    note: str | None = None
    paper_table: str | None = None


@dataclass
class Report:
    """All measurements of one command.

    Attributes:
        command: how it was started, in words that can be typed again.
        seed: of the run.
        measurements: the numbers.
        details: anything else worth keeping, as times and configurations.
    """

    command: str
    seed: int | None = None
    measurements: list[Measurement] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns what `results.json` holds."""
        sha = git_sha()
        results = [
            {
                "task": m.task,
                "dataset": dict(m.dataset),
                "metric": m.metric,
                "value": None if math.isnan(m.value) else m.value,
                "origin": "measured",
                "setting": dict(m.setting),
                "command": self.command,
                "git_sha": sha,
                "seed": self.seed,
                "note": m.note or m.model,
            }
            for m in self.measurements
        ]
        return {
            "command": self.command,
            "seed": self.seed,
            "git_sha": sha,
            "versions": package_versions(),
            "machine": {
                "system": platform.platform(),
                "processor": platform.machine(),
                "cores": os.cpu_count(),
            },
            "results": results,
            "by_model": by_model(self.measurements),
            "details": self.details,
        }

    def write(self, folder: Path) -> Path:
        """Writes `results.json` and returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "results.json"
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        return path


def read_measurements(content: Mapping[str, Any], label: str) -> list[Measurement]:
    """Returns the numbers of a `results.json`, under the label of their model."""
    return [
        Measurement(
            label,
            entry["task"],
            entry["dataset"],
            entry["metric"],
            entry["setting"],
            math.nan if entry["value"] is None else entry["value"],
        )
        for entry in content["results"]
    ]


def typed_command(arguments: Sequence[str] | None = None) -> str:
    """Returns the command of this process without paths of this machine."""
    arguments = list(sys.argv if arguments is None else arguments)
    program = Path(arguments[0]).name if arguments else "seqpe-zoo"
    if program in ("__main__.py", "cli.py"):
        program = "seqpe-zoo"
    elif program.endswith(".py"):
        program = f"python {program}"
    return " ".join([program, *(shlex.quote(_without_folder(word)) for word in arguments[1:])])


def _without_folder(word: str) -> str:
    """Shortens an absolute path, alone or as the value of `key=path`, to its last part."""
    key, equals, value = word.rpartition("=")
    return f"{key}{equals}{Path(value).name}" if Path(value).is_absolute() else word


def package_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that decide about numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def git_sha() -> str | None:
    """Returns the commit of the source, marked when files differ from it; None outside of a repository."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    run = {"capture_output": True, "text": True, "timeout": 20, "check": True}
    try:
        # Fails where the package is installed inside of somebody else's repository.
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], **run)
        described = ["describe", "--always", "--dirty=+changes", "--abbrev=40", "--exclude=*"]
        return subprocess.run([*git, *described], **run).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def by_model(measurements: Sequence[Measurement]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Arranges numbers as model -> metric -> setting -> value."""
    table: dict[str, dict[str, dict[str, float | None]]] = {}
    for m in measurements:
        cell = "/".join(str(value) for value in m.setting.values()) or "all"
        table.setdefault(m.model, {}).setdefault(m.metric, {})[cell] = (
            None if math.isnan(m.value) else m.value
        )
    return table


def format_value(metric: str, value: float | None) -> str:
    """Writes a number as the paper does: two decimals for perplexity, one for percentages."""
    if value is None or math.isnan(value):
        return "not measured"
    if "perplexity" in metric:
        return f"{value:.2f}" if value < 2000 else f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.1f}" if "accuracy" in metric or "match" in metric else f"{value:.3f}"


def format_setting(setting: int) -> str:
    """Writes 1024 as 1K, as the paper's columns do; 224 stays 224."""
    return f"{setting // 1024}K" if setting >= 1024 and setting % 1024 == 0 else str(setting)


def extrapolation_rows(measurements: Sequence[Measurement], metric: str) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows of a table: one row a model, one column a setting, the average last.

    Below a model stands its row of the paper, where the paper measured the same at any of the settings.
    """
    measurements = [m for m in measurements if m.metric == metric]
    table = {model: values[metric] for model, values in by_model(measurements).items()}
    settings = sorted({int(setting) for values in table.values() for setting in values})
    header = ["Model", *map(format_setting, settings), "AVG."]
    papers = {m.model: load_paper_tables()[m.paper_table] for m in measurements if m.paper_table}
    rows = []
    for model, values in table.items():
        rows.append(_row(model, metric, [values.get(str(setting)) for setting in settings]))
        theirs = [papers[model].value(model, setting) for setting in settings] if model in papers else []
        if any(value is not None for value in theirs):
            rows.append(_row(f"{model} (paper)", metric, theirs))
    return header, rows


def _row(name: str, metric: str, cells: Sequence[float | None]) -> list[str]:
    known = [cell for cell in cells if cell is not None]
    average = sum(known) / len(known) if known and len(known) == len(cells) else None
    shown = [format_value(metric, cell) if cell is not None else "-" for cell in cells]
    return [name, *shown, format_value(metric, average) if average is not None else "-"]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Writes a Markdown table, numbers to the right; names are shown as they are."""

    def line(cells: Sequence[str]) -> str:
        shown = [re.sub(r"([\\`*|<])", r"\\\1", " ".join(cell.split())) for cell in cells]
        return f"| {' | '.join(shown)} |"

    lines = [line(header), f"|---|{'---:|' * (len(header) - 1)}", *map(line, rows)]
    return "\n".join(lines) + "\n"
