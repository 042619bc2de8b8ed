"""Pictures: extrapolation curves, and heatmaps of similarity in one and two dimensions."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.errors import DataError

COLOURS = ("#0b6e4f", "#d1495b", "#2e4057", "#edae49", "#66a182", "#8d6a9f", "#00798c", "#5b5f97")


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """Makes an empty figure without any display.

    Raises:
        DataError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DataError("plots need matplotlib: pip install 'seqpe-zoo[plot]'") from error
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def plot_extrapolation(
    curves: Mapping[str, Mapping[int, float]],
    metric: str,
    xlabel: str,
    trained_at: int | None = None,
    spreads: Mapping[str, Mapping[int, tuple[float, float]]] | None = None,
) -> Any:
    """Draws a curve for each model: metric by length or resolution; perplexity on a logarithmic axis.

    Args:
        curves: points by model.
        metric: names the vertical axis.
        xlabel: names the horizontal one.
        trained_at: is marked.
        spreads: lowest and highest value of each point, drawn as a band.
    """
    figure, (axes,) = new_figure(6.4, 4.0)
    for number, (model, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(list(points), list(points.values()), marker="o", markersize=4, label=model, color=colour)
        band = (spreads or {}).get(model, {})
        axes.fill_between(
            list(band),
            [low for low, _ in band.values()],
            [high for _, high in band.values()],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    settings = sorted({setting for points in curves.values() for setting in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(settings, [str(setting) for setting in settings])
    axes.minorticks_off()
    if "perplexity" in metric:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    if trained_at is not None:
        axes.axvline(trained_at, color="0.6", linewidth=1, linestyle=":")
        axes.annotate(
            "trained", (trained_at, 1.0), xycoords=("data", "axes fraction"), fontsize=8, color="0.4"
        )
    axes.set_xlabel(xlabel)
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.25)
    for text in axes.legend(frameon=False, fontsize=9).get_texts():
        text.set_parse_math(False)  # names may hold a dollar sign
    return figure


def plot_similarity(similarities: Mapping[str, Tensor], ticks: Sequence[int] | None = None) -> Any:
    """Draws similarity matrices (N, N) beside each other, each on its own scale."""
    figure, panels = new_figure(3.6 * len(similarities), 3.5, len(similarities))
    for axes, (title, similarity) in zip(panels, similarities.items(), strict=True):
        image = axes.imshow(similarity.float().cpu().numpy(), cmap="viridis", interpolation="nearest")
        axes.set_title(title, fontsize=10, parse_math=False)
        if ticks is not None:
            axes.set_xticks(ticks)
            axes.set_yticks(ticks)
        axes.tick_params(labelsize=7)
        figure.colorbar(image, ax=axes, shrink=0.75).ax.tick_params(labelsize=7)
    return figure


def plot_grid_heatmaps(heatmaps: Mapping[tuple[int, int], Tensor], title: str = "") -> Any:
    """Draws the similarity of some positions of a grid to all others, a panel each."""
    figure, panels = new_figure(2.1 * len(heatmaps), 2.4, len(heatmaps))
    for axes, (position, heatmap) in zip(panels, heatmaps.items(), strict=True):
        axes.imshow(heatmap.float().cpu().numpy(), cmap="viridis", interpolation="nearest")
        axes.plot(position[1], position[0], marker="x", color="white", markersize=6)
        axes.set_title(str(position), fontsize=9)
        axes.set_xticks([0, heatmap.shape[1] - 1])
        axes.set_yticks([0, heatmap.shape[0] - 1])
        axes.tick_params(labelsize=6)
    if title:
        figure.suptitle(title, fontsize=10, parse_math=False)
    return figure


def save_figure(figure: Any, path: Path) -> Path:
    """Writes a figure, in the format that the name's ending says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def figure_bytes(figure: Any) -> bytes:
    """Returns a figure as PNG, for reports that are one file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
