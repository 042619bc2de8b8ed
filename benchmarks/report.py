"""The results as a file of JSON and as a page of one screen.

The file holds for each section what was measured, on which machine, with which versions, and every ratio with
its spread. The page shows the medians.
"""

import json
import os
import platform
import shutil
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "timm", "transformers")
HEAD = """# Benchmark results

Time as a multiple of the baseline's, on a CPU in float32: 1.00 is as fast, 1.10 takes a tenth longer. Made by
`make bench` (`make bench-full` for all rows); every ratio with its spread is in [results.json](results.json).
`python -m benchmarks.compare A.json B.json` compares two runs.
"""
NOISY = "~ the machine was never quiet: a rough number."


def read_results(path: Path) -> dict[str, Any]:
    """Returns the sections of a file by name; nothing where there is no file."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write_results(results: dict[str, Any], path: Path) -> None:
    """Writes the sections of a file."""
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def render_page(results: dict[str, Any]) -> str:
    """Returns the page: a table for each section, with a column for each candidate."""
    parts = [HEAD]
    origins = [_origin(section["measured"]) for section in results.values()]
    if not results:
        parts.append("This version has not been measured yet.\n")
    elif len(set(origins)) == 1:
        parts.append(f"{origins[0]}\n")
    for section, origin in zip(results.values(), origins, strict=True):
        parts.append(_table(section["title"], section["rows"]))
        if len(set(origins)) > 1:
            parts.append(f"{origin}\n")
    if any(not row["stable"] for section in results.values() for row in section["rows"]):
        parts.append(f"{NOISY}\n")
    return "\n".join(parts)


def _origin(measured: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in measured["versions"].items())
    run = f"{measured['mode']} run of {measured['date']}, commit {measured['commit']}"
    return f"{measured['machine']}; {versions}; {run}."


def _table(title: str, rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["name"] for row in rows))
    cells = {(row["what"], row["name"]): row for row in rows}
    lines = [f"## {title}", "", f"| 1.00 = {rows[0]['baseline']} | {' | '.join(names)} |"]
    lines.append(f"|---{'|---' * len(names)}|")
    for what in dict.fromkeys(row["what"] for row in rows):
        lines.append(f"| {what} | {' | '.join(_cell(cells.get((what, name))) for name in names)} |")
    return "\n".join([*lines, ""])


def _cell(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{'' if row['stable'] else '~'}{row['median']:.2f}"


def describe_run(mode: str) -> dict[str, Any]:
    """Returns where, when and with what a section is measured."""
    import torch

    return {
        "mode": mode,
        "date": str(date.today()),
        "commit": _commit(),
        "machine": f"{_processor()}, {torch.get_num_threads()} threads",
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str:
    """The commit that is measured, marked when files other than results differ from it."""
    if shutil.which("git") is None:
        return "unknown"
    git = ["git", "-C", str(Path(__file__).parent)]
    found = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        return "unknown"
    status = [*git, "status", "--porcelain", "--", "..", ":!results.json", ":!RESULTS.md"]
    changed = subprocess.run(status, capture_output=True, text=True, check=False).stdout.strip()
    return found.stdout.strip() + (" with changes" if changed else "")
