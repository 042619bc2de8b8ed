"""Command line of this room: `evaluate`, `diagnose` and `plot`.

Definitions import nothing heavy; handlers import what they need and return an exit code.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEFAULT_QUESTION_LENGTHS = [1024, 2048, 4096, 8192]


def add_subcommands(subparsers: Any) -> None:
    """Adds the commands to the parser of the command line."""
    _add_evaluate(subparsers)
    _add_diagnose(subparsers)
    _add_plot(subparsers)


def _add_evaluate(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "evaluate",
        help="measure models at many lengths or resolutions",
        description="Measures any model that transformers or timm can load: perplexity by length, accuracy "
        "by resolution, or question answering. Writes results.json, a Markdown table with the paper's "
        "numbers beside ours, and a plot.",
    )
    parser.add_argument("models", nargs="+", metavar="[LABEL=]MODEL", help="folder, Hub id or timm name")
    parser.add_argument(
        "--task", choices=("text", "images", "questions"), help="by default what the model is for"
    )
    parser.add_argument("--data", help="stdlib, wikitext-103, digits, or a path (default: the embedded data)")
    parser.add_argument("--data-root", type=Path, help="cache or shards of hfds/NAME, wds/NAME and the like")
    parser.add_argument("--split", help="default: test; validation for image folders and named readers")
    parser.add_argument(
        "--lengths", type=int, nargs="+", help="tokens (default: 1 to 32 times the training length)"
    )
    parser.add_argument("--resolutions", type=int, nargs="+", help="pixels (default: 1 to 3 times)")
    parser.add_argument("--output", type=Path, default=Path("evaluation"), help="folder of the report")
    parser.add_argument("--max-tokens", type=int, help="read no more text than this")
    parser.add_argument("--max-images", type=int, help="evenly spread images, so many")
    parser.add_argument("--questions", type=int, default=500, help="how many questions at each length (500)")
    parser.add_argument(
        "--no-generation", action="store_true", help="questions: perplexity of the answer only"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=42, help="of the drawn questions")
    parser.add_argument("--no-plot", action="store_true")
    _add_model_options(parser)
    parser.set_defaults(handler=_reporting(_evaluate))


def _add_diagnose(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "diagnose",
        help="look at the position vectors of a checkpoint",
        description="Scores the vectors that a checkpoint gives to positions: digit artefacts, rank "
        "correlation of similarity with nearness, collapse of shifted copies, coverage; and draws heatmaps.",
    )
    parser.add_argument("model", help="folder, Hub id or timm name")
    parser.add_argument("--positions", type=int, default=2048, help="text: look at positions 0..N-1 (2048)")
    parser.add_argument(
        "--side", type=int, help="images: side of the grid (default: twice the training grid)"
    )
    parser.add_argument("--output", type=Path, default=Path("diagnosis"))
    parser.add_argument("--no-plot", action="store_true")
    _add_model_options(parser)
    parser.set_defaults(handler=_reporting(_diagnose))


def _add_plot(subparsers: Any) -> None:
    parser = subparsers.add_parser("plot", help="draw the curves of results.json files together")
    parser.add_argument("results", nargs="+", type=Path, help="results.json, or folders that hold one")
    parser.add_argument("--metric", help="default: the first metric of the first file")
    parser.add_argument("--output", type=Path, default=Path("extrapolation.png"), help=".png, .svg or .pdf")
    parser.set_defaults(handler=_reporting(_plot))


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with the weights"
    )
    parser.add_argument("--library", choices=("timm", "transformers"), help="images: which library loads it")


def _reporting(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Turns errors about the user's input into a sentence and exit code 2."""

    def handler(arguments: argparse.Namespace) -> int:
        from ..data.errors import DataError

        try:
            return run(arguments)
        except DataError as error:
            _remark(f"error: {error}")
            return 2

    return handler


def split_label(word: str) -> tuple[str | None, str]:
    """Reads `LABEL=MODEL`; a path that contains '=' itself is taken as it is."""
    label, separator, name = word.partition("=")
    if not separator or Path(word).exists():
        return None, word
    return label, name


def task_of(name: str) -> str:
    """Returns what a model is for, by its configuration: "text" or "images"."""
    from .model_loading import read_config

    config = read_config(name)
    words = " ".join(str(word) for word in config.get("architectures", []) or [])
    return "text" if "CausalLM" in words or "LMHead" in words else "images"


def _evaluate(arguments: argparse.Namespace) -> int:
    from .report import Report, typed_command

    report = Report(typed_command(), arguments.seed)
    for word in arguments.models:
        label, name = split_label(word)
        task = arguments.task or task_of(name)
        measured = _measure(task, name, label, arguments)
        report.measurements += _with_own_label(measured, report.measurements, name)
    write_report(report, arguments.output, plot=not arguments.no_plot)
    return 0


def _with_own_label(measured: list[Any], before: list[Any], name: str) -> list[Any]:
    """Tells models of one label apart by their names; else the later would hide the earlier."""
    from dataclasses import replace

    label, used = measured[0].model, {m.model for m in before}
    choices = [label, f"{label} ({Path(name).name})", f"{label} ({name})"]
    own = next((choice for choice in choices if choice not in used), f"{label} ({len(used)})")
    return [replace(m, model=own) for m in measured]


def _measure(task: str, name: str, label: str | None, arguments: argparse.Namespace) -> list[Any]:
    from ..data.errors import DataError
    from ..data.image_sources import DIGITS, open_small_images
    from .defaults import default_lengths, default_resolutions
    from .measure import measure_images, measure_questions, measure_text
    from .model_loading import load_image_model, load_language_model

    options = {
        "device": arguments.device,
        "dtype": arguments.dtype,
        "trust_remote_code": arguments.trust_remote_code,
    }
    if task == "images":
        image_model = load_image_model(name, library=arguments.library, **options)
        source = arguments.data or DIGITS
        if arguments.data is None:
            _say_embedded("handwritten digits")
        has_test = open_small_images(source) is not None
        return measure_images(
            image_model,
            label or image_model.label,
            source,
            arguments.split or ("test" if has_test else "validation"),
            arguments.resolutions or default_resolutions(image_model),
            arguments.batch_size,
            arguments.workers,
            arguments.max_images,
            arguments.data_root,
        )
    model = load_language_model(name, **options)
    label = label or model.label
    if task == "text":
        lengths = arguments.lengths or default_lengths(model.model)
        if arguments.data is None:
            _say_embedded("source text of Python's standard library")
        return measure_text(
            model, label, arguments.data or "stdlib", arguments.split or "test", lengths, arguments.max_tokens
        )
    if arguments.data is None:
        raise DataError(
            "questions need --data: a SQuAD-format .json, or a folder with validation.LENGTH.jsonl"
        )
    lengths = arguments.lengths or DEFAULT_QUESTION_LENGTHS
    generate = not arguments.no_generation
    return measure_questions(
        model, label, arguments.data, lengths, arguments.questions, generate, arguments.seed
    )


def _say_embedded(what: str) -> None:
    _remark(
        f"no --data is given: measuring on the embedded {what}, which the model may not have been made for"
    )


def _remark(sentence: str) -> None:
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(sentence, markup=False)


def write_report(report: Any, folder: Path, plot: bool) -> None:
    """Writes results.json, table.md and a plot for each metric, and prints the tables."""
    from rich.console import Console

    from .paper_tables import load_paper_tables
    from .plots import plot_extrapolation, save_figure
    from .report import by_model, extrapolation_rows, markdown_table

    console = Console(highlight=False)
    results = report.write(folder)
    sections = []
    kinds = dict.fromkeys((m.task, m.metric) for m in report.measurements)
    for task, metric in kinds:
        of_task = [m for m in report.measurements if m.task == task]
        header, rows = extrapolation_rows(of_task, metric)
        print_table(console, f"{metric.replace('_', ' ')}: {of_task[0].dataset['name']}", header, rows)
        quoted = {m.paper_table for m in of_task if m.metric == metric and m.paper_table}
        papers = [load_paper_tables()[name] for name in sorted(quoted)]
        shown = any(row[0].endswith("(paper)") for row in rows)
        source = "".join(f"Rows marked (paper): {p.table}, {p.data}.\n" for p in papers if shown)
        sections.append(
            f"## {metric} on {of_task[0].dataset['name']}\n\n{markdown_table(header, rows)}\n{source}"
        )
        if plot:
            axis = "resolution" if task == "image-classification" else "length"
            curves = {
                model: {int(setting): value for setting, value in values[metric].items() if value is not None}
                for model, values in by_model(of_task).items()
                if metric in values
            }
            save_figure(plot_extrapolation(curves, metric, axis), folder / f"{metric}.png")
    text = f"# Results\n\n    {report.command}\n\n" + "\n".join(sections)
    (folder / "table.md").write_text(text, encoding="utf-8")
    console.print(f"wrote {results.parent}")


def print_table(console: Any, title: str, header: list[str], rows: list[list[str]]) -> None:
    """Prints a table to the terminal."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row, style="dim" if row[0].endswith("(paper)") else None)
    console.print(table)


def _diagnose(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from ..data.errors import DataError
    from .model_loading import load_image_model, load_language_model
    from .position_space import BEST_SCORES, diagnose_grid, diagnose_line, encoding_with_vectors

    options = {"device": arguments.device, "trust_remote_code": arguments.trust_remote_code}
    if task_of(arguments.model) == "text":
        model = load_language_model(arguments.model, **options).model
    else:
        model = load_image_model(arguments.model, library=arguments.library, **options).model
    encoding = encoding_with_vectors(model)
    is_line = encoding.host.num_dims == 1
    size = arguments.positions if is_line else arguments.side or 2 * (encoding.train_shape or (14, 14))[0]
    try:
        encoding.check_limit([size])
    except ValueError as error:
        raise DataError(str(error)) from error
    scores = diagnose_line(encoding, size) if is_line else diagnose_grid(encoding, size)
    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    content = {"model": Path(arguments.model).name, "position_encoding": encoding.name, "scores": scores}
    (folder / "diagnosis.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    console = Console(highlight=False)
    rows = [
        [name.replace("_", " "), f"{value:g}", BEST_SCORES.get(name, "")] for name, value in scores.items()
    ]
    title = f"position vectors of {content['model']} ({encoding.name})"
    print_table(console, title, ["score", "value", "best"], rows)
    if not arguments.no_plot:
        _draw_heatmaps(encoding, size, is_line, folder)
    console.print(f"wrote {folder}")
    return 0


def _draw_heatmaps(encoding: Any, size: int, is_line: bool, folder: Path) -> None:
    import torch

    from .diagnostics import similarity_matrix
    from .plots import plot_grid_heatmaps, plot_similarity, save_figure
    from .position_space import grid_heatmaps, position_vectors

    if is_line:
        vectors = position_vectors(encoding, torch.arange(size).unsqueeze(-1), [size])
        figure = plot_similarity({f"positions 0 to {size - 1}": similarity_matrix(vectors)})
    else:
        figure = plot_grid_heatmaps(grid_heatmaps(encoding, size), encoding.name)
    save_figure(figure, folder / "heatmap.png")


def _plot(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from ..data.errors import DataError
    from .plots import plot_extrapolation, save_figure

    curves: dict[str, dict[int, float]] = {}
    metric, axis = arguments.metric, "length"
    for given in arguments.results:
        path = given / "results.json" if given.is_dir() else given
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            tables, entries = content["by_model"], content["results"]
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a results.json of seqpe-zoo") from error
        metric = metric or entries[0]["metric"]
        axis = next(
            (name for entry in entries if entry["metric"] == metric for name in entry["setting"]), axis
        )
        for model, values in tables.items():
            if metric in values:
                name = model if model not in curves else f"{model} ({path.parent.name})"
                curves[name] = {int(s): v for s, v in values[metric].items() if v is not None}
    if not curves:
        raise DataError(f"no file has the metric {metric!r}")
    save_figure(plot_extrapolation(curves, metric, axis), arguments.output)
    Console(highlight=False).print(f"wrote {arguments.output}")
    return 0
