"""What a comparison over several seeds found: means with spread, beside the paper's numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..evaluation.commands import print_table
from ..evaluation.paper_tables import load_paper_tables
from ..evaluation.plots import plot_extrapolation, save_figure
from ..evaluation.report import Measurement, Report, format_setting, format_value, markdown_table
from .comparison import Comparison

Cells = dict[str, dict[int, list[Measurement]]]
"""Numbers of all seeds by label and length or resolution."""


def mean_and_spread(seeds: Sequence[Measurement]) -> tuple[float, float]:
    """Returns mean and standard deviation over seeds (0 for one seed)."""
    values = [m.value for m in seeds] or [math.nan]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def rows_with_spread(cells: Cells, metric: str) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows: mean ± standard deviation."""
    settings = sorted({setting for values in cells.values() for setting in values})
    rows = []
    for label, values in cells.items():
        row = [label]
        for setting in settings:
            mean, spread = mean_and_spread(values.get(setting, []))
            shown = format_value(metric, mean)
            row.append(f"{shown} ± {format_value(metric, spread)}" if spread else shown)
        rows.append(row)
    return ["", *map(format_setting, settings)], rows


def paper_table(comparison: Comparison) -> str:
    """Returns the paper's rows of the same runs; settings as multiples of its training setting."""
    paper = load_paper_tables().get(comparison.paper_table or "")
    if paper is None:
        return ""
    header = ["reported in the paper"]
    header += [f"{setting / paper.trained_at:.3g}x ({format_setting(setting)})" for setting in paper.settings]
    rows = [
        [label, *(format_value(paper.metric, value) for value in paper.rows[entry.paper])]
        for label, entry in comparison.runs.items()
        if entry.paper in paper.rows
    ]
    return f"## {paper.table}, {paper.data}\n\n{markdown_table(header, rows)}"


def write_comparison(
    comparison: Comparison,
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    measurements: Sequence[Measurement],
    report: Report,
    output: Path,
    console: Any,
    plot: bool = True,
) -> None:
    """Writes results.json, table.md and a plot for each metric, and prints the tables.

    Args:
        comparison: what was compared.
        results: the content of every seed's results.json by label.
        measurements: the numbers of all seeds.
        report: command and seed; filled here.
        output: folder.
        console: of rich.
        plot: draw the curves, too.
    """
    title = comparison.title or "Comparison"
    sections = [f"# {title}\n\nMeasured here by `{report.command}`.\n"]
    by_metric: dict[str, Cells] = {}
    for m in measurements:
        setting = next(iter(m.setting.values()))
        by_metric.setdefault(m.metric, {}).setdefault(m.model, {}).setdefault(setting, []).append(m)
    for metric, cells in by_metric.items():
        header, rows = rows_with_spread(cells, metric)
        name = metric.replace("_", " ")
        print_table(console, f"{title}: {name}", header, rows)
        sections.append(f"## {name}\n\n{markdown_table(header, rows)}")
        report.measurements += [_joined(seeds) for values in cells.values() for seeds in values.values()]
        if plot:
            save_figure(_figure(cells, metric, comparison.recipe["data"]), output / f"{metric}.png")
    report.details["runs"] = {
        label: [_summary(content) for content in contents] for label, contents in results.items()
    }
    report.write(output)
    (output / "table.md").write_text("\n".join([*sections, paper_table(comparison)]), encoding="utf-8")


def _joined(seeds: Sequence[Measurement]) -> Measurement:
    """Joins the seeds of a number; the note tells their count and spread."""
    mean, spread = mean_and_spread(seeds)
    note = f"{seeds[0].model}, mean of {len(seeds)} seeds, standard deviation {spread:.2f}"
    return replace(seeds[0], value=mean, note=note, paper_table=None)


def _figure(cells: Cells, metric: str, data: Mapping[str, Any]) -> Any:
    ordered = {label: sorted(values.items()) for label, values in cells.items()}
    curves = {
        label: {setting: mean_and_spread(seeds)[0] for setting, seeds in values}
        for label, values in ordered.items()
    }
    spreads = {
        label: {
            setting: (min(m.value for m in seeds), max(m.value for m in seeds)) for setting, seeds in values
        }
        for label, values in ordered.items()
    }
    axis = "length" if "length" in data else "resolution"
    return plot_extrapolation(curves, metric, axis, data.get(axis), spreads)


def _summary(content: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of one run: its numbers, seed and cost, without the log."""
    kept = {key: content["details"][key] for key in ("steps", "seconds_a_step", "parameters")}
    values = {
        f"{entry['metric']} {'/'.join(map(str, entry['setting'].values()))}": entry["value"]
        for entry in content["results"]
    }
    return {"seed": content["seed"], **kept, "values": values}
