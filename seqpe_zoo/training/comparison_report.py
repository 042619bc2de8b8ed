"""What a comparison over several seeds found: means with spread, beside the paper's numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..evaluation.commands import print_table
from ..evaluation.paper_tables import PaperTable, load_paper_tables
from ..evaluation.plots import plot_extrapolation, save_figure
from ..evaluation.report import Measurement, Report, format_setting, format_value, markdown_table
from .comparison import Comparison

Cells = dict[str, dict[int, list[float]]]
"""Values of all seeds by label and length or resolution."""


def gather(measurements: Sequence[Measurement], metric: str) -> Cells:
    """Arranges the numbers of all seeds."""
    cells: Cells = {}
    for m in measurements:
        if m.metric == metric:
            setting = next(iter(m.setting.values()))
            cells.setdefault(m.model, {}).setdefault(setting, []).append(m.value)
    return cells


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Returns mean and standard deviation over seeds (0 for one seed)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def means(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Joins the seeds of each number; the note tells their count and spread."""
    groups: dict[tuple[Any, ...], list[Measurement]] = {}
    for m in measurements:
        groups.setdefault((m.model, m.task, m.metric, *m.setting.items()), []).append(m)
    joined = []
    for group in groups.values():
        first = group[0]
        mean, spread = mean_and_spread([m.value for m in group])
        note = f"{first.model}, mean of {len(group)} seeds, standard deviation {spread:.2f}"
        joined.append(
            Measurement(first.model, first.task, first.dataset, first.metric, first.setting, mean, note)
        )
    return joined


def rows_with_spread(cells: Cells, metric: str) -> tuple[list[str], list[list[str]]]:
    """Returns header and rows: mean ± standard deviation."""
    settings = sorted({setting for values in cells.values() for setting in values})
    rows = []
    for label, values in cells.items():
        row = [label]
        for setting in settings:
            mean, spread = mean_and_spread(values.get(setting, [math.nan]))
            shown = format_value(metric, mean)
            row.append(f"{shown} ± {format_value(metric, spread)}" if spread else shown)
        rows.append(row)
    return ["", *map(format_setting, settings)], rows


def paper_rows(
    comparison: Comparison, labels: Sequence[str], paper: PaperTable
) -> tuple[list[str], list[list[str]]]:
    """Returns the paper's rows of the same contestants; settings as multiples of its training setting."""
    header = ["reported in the paper"]
    header += [f"{setting / paper.trained_at:.3g}x ({format_setting(setting)})" for setting in paper.settings]
    rows = []
    for label in labels:
        row = comparison.contestant(label).paper
        if row in paper.rows:
            rows.append([label, *(format_value(paper.metric, value) for value in paper.rows[row])])
    return header, rows


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
    report.measurements += means(measurements)
    report.details["runs"] = {
        label: [_summary(content) for content in contents] for label, contents in results.items()
    }
    report.write(output)
    sections = [f"# {title}\n\nMeasured here by `{report.command}`.\n"]
    paper = load_paper_tables().get(comparison.paper_table or "")
    for metric in dict.fromkeys(m.metric for m in measurements):
        cells = gather(measurements, metric)
        header, rows = rows_with_spread(cells, metric)
        print_table(console, f"{title}: {metric.replace('_', ' ')}", header, rows)
        sections.append(f"## {metric.replace('_', ' ')}\n\n{markdown_table(header, rows)}")
        if plot:
            _plot(cells, metric, measurements, comparison, output)
    if paper is not None:
        header, rows = paper_rows(comparison, list(results), paper)
        sections.append(f"## {paper.table}, {paper.data}\n\n{markdown_table(header, rows)}")
    (output / "table.md").write_text("\n".join(sections), encoding="utf-8")


def _plot(
    cells: Cells, metric: str, measurements: Sequence[Measurement], comparison: Comparison, output: Path
) -> None:
    axis = next(iter(next(m for m in measurements if m.metric == metric).setting))
    data = comparison.recipe["data"]
    curves = {
        label: {setting: mean_and_spread(seeds)[0] for setting, seeds in sorted(values.items())}
        for label, values in cells.items()
    }
    spreads = {
        label: {setting: (min(seeds), max(seeds)) for setting, seeds in sorted(values.items())}
        for label, values in cells.items()
    }
    figure = plot_extrapolation(curves, metric, axis, data.get("length") or data.get("resolution"), spreads)
    save_figure(figure, output / f"{metric}.png")


def _summary(content: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of one run: its numbers, seed and cost, without the log."""
    details = content["details"]
    return {
        "seed": content["seed"],
        "steps": details["steps"],
        "seconds_a_step": details["seconds_a_step"],
        "parameters": details["parameters"],
        "values": {
            f"{entry['metric']} {'/'.join(map(str, entry['setting'].values()))}": entry["value"]
            for entry in content["results"]
        },
    }
