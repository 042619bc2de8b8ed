"""Command line of this room: `evaluate`, `diagnose` and `plot`.

Definitions import nothing heavy; handlers check names first, then import what they need. They return an exit
code, or raise a `DataError` that the command line prints.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..data.errors import DataError
from ..data.names import IMAGES, check_data_name, check_head, parse_model_name, read_json, task_of

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
        "by resolution, or question answering. Writes results.json, a Markdown table, with the paper's "
        "numbers where it measured the same, and a plot.",
    )
    parser.add_argument(
        "models", nargs="+", metavar="[LABEL=]MODEL", help="folder, Hub id, file of weights, or timm name"
    )
    parser.add_argument(
        "--task", choices=("text", "images", "questions"), help="by default what the model is for"
    )
    parser.add_argument(
        "--data",
        help="stdlib, wikitext-103, digits, glyphs, fashion-mnist, or a path (default: stdlib or digits)",
    )
    parser.add_argument("--data-root", type=Path, help="cache or shards of hfds/NAME, wds/NAME and the like")
    parser.add_argument("--split", help="default: test; validation for image folders and named readers")
    parser.add_argument(
        "--lengths", type=int, nargs="+", help="tokens (1 to 32 times the first model's training length)"
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
    parser.set_defaults(handler=_evaluate, default_lengths=None, default_resolutions=None)


def _add_diagnose(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "diagnose",
        help="look at the position vectors of a checkpoint",
        description="Scores the vectors that a checkpoint gives to positions: digit artefacts, rank "
        "correlation of similarity with nearness, collapse of shifted copies, coverage; and draws heatmaps.",
    )
    parser.add_argument("model", help="folder, Hub id, file of weights, or timm name")
    parser.add_argument("--positions", type=int, default=2048, help="text: look at positions 0..N-1 (2048)")
    parser.add_argument(
        "--side", type=int, help="images: side of the grid (default: twice the training grid)"
    )
    parser.add_argument("--output", type=Path, default=Path("diagnosis"))
    parser.add_argument("--no-plot", action="store_true")
    _add_model_options(parser)
    parser.set_defaults(handler=_diagnose)


def _add_plot(subparsers: Any) -> None:
    parser = subparsers.add_parser("plot", help="draw the curves of results.json files together")
    parser.add_argument("results", nargs="+", type=Path, help="results.json, or folders that hold one")
    parser.add_argument("--metric", help="default: the first metric of the first file")
    parser.add_argument("--output", type=Path, default=Path("extrapolation.png"), help=".png, .svg or .pdf")
    parser.set_defaults(handler=_plot)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with the weights"
    )
    parser.add_argument("--architecture", help="timm's name of the model in a file of weights")
    parser.add_argument("--library", choices=("timm", "transformers"), help="images: which library loads it")


def split_label(word: str) -> tuple[str | None, str]:
    """Reads `LABEL=MODEL`; a path that contains '=' itself is taken as it is."""
    label, separator, name = word.partition("=")
    if not separator or Path(word).exists():
        return None, word
    return label, name


def _evaluate(arguments: argparse.Namespace) -> int:
    models = [split_label(word) for word in arguments.models]
    for _, name in models:
        parse_model_name(name)  # all of them, before the network is asked for any
    for _, name in models:
        check_head(name)
    tasks = [arguments.task or task_of(name) for _, name in models]
    _check_data(set(tasks), arguments)

    from .report import Report, typed_command

    report = Report(typed_command(), arguments.seed)
    for task, (label, name) in zip(tasks, models, strict=True):
        measured = _measure(task, name, label, arguments)
        report.measurements += _with_own_label(measured, report.measurements, name)
    write_report(report, arguments.output, plot=not arguments.no_plot)
    return 0


def _check_data(tasks: set[str], arguments: argparse.Namespace) -> None:
    """Finds missing data, and says which data is used where none is named."""
    for task in sorted(tasks):
        if arguments.data is not None:
            check_data_name(task, arguments.data)
        elif task == "questions":
            raise DataError(
                "questions need --data: a SQuAD-format .json, or a folder with validation.LENGTH.jsonl"
            )
        else:
            what = "handwritten digits" if task == "images" else "source text of Python's standard library"
            _remark(
                f"no --data is given: measuring on the embedded {what}, which may be foreign to the model"
            )


def _with_own_label(measured: list[Any], before: list[Any], name: str) -> list[Any]:
    """Tells models of one label apart by their names; else the later would hide the earlier."""
    from dataclasses import replace

    label, used = measured[0].model, {m.model for m in before}
    choices = [label, f"{label} ({Path(name).name})", f"{label} ({name})"]
    own = next((choice for choice in choices if choice not in used), f"{label} ({len(used)})")
    return [replace(m, model=own) for m in measured]


def _measure(task: str, name: str, label: str | None, arguments: argparse.Namespace) -> list[Any]:
    from .accuracy import check_resolutions
    from .defaults import accepts, default_lengths, default_resolutions
    from .measure import measure_images, measure_questions, measure_text
    from .model_loading import load_image_model, load_language_model
    from .perplexity import check_lengths

    options = _model_options(arguments)
    if task == "images":
        model: Any = load_image_model(name, library=arguments.library, **options)
        # Later models are measured where the first one was, so that they compare.
        wanted = arguments.default_resolutions or default_resolutions(model)
        arguments.default_resolutions = wanted
        common = [size for size in wanted if accepts(check_resolutions, model, size)]
        source = arguments.data or "digits"
        has_test = source.partition(":")[0] in IMAGES
        return measure_images(
            model,
            label or model.label,
            source,
            arguments.split or ("test" if has_test else "validation"),
            arguments.resolutions or common or default_resolutions(model),
            arguments.batch_size,
            arguments.workers,
            arguments.max_images,
            arguments.data_root,
        )
    model = load_language_model(name, **options)
    label = label or model.label
    if task == "text":
        wanted = arguments.default_lengths or default_lengths(model.model)
        arguments.default_lengths = wanted
        common = [length for length in wanted if accepts(check_lengths, model.model, length)]
        lengths = arguments.lengths or common or default_lengths(model.model)
        split = arguments.split or "test"
        return measure_text(model, label, arguments.data or "stdlib", split, lengths, arguments.max_tokens)
    lengths = arguments.lengths or DEFAULT_QUESTION_LENGTHS
    generate = not arguments.no_generation
    return measure_questions(
        model, label, arguments.data, lengths, arguments.questions, generate, arguments.seed
    )


def _model_options(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("device", "dtype", "trust_remote_code", "architecture")
    return {name: getattr(arguments, name) for name in names}


def _remark(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


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
    task = task_of(arguments.model)

    from rich.console import Console

    from .model_loading import load_image_model, load_language_model
    from .plots import save_figure
    from .position_space import (
        BEST_SCORES,
        diagnose_grid,
        diagnose_line,
        encoding_with_vectors,
        position_heatmap,
    )

    options = _model_options(arguments)
    if task == "text":
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
        save_figure(position_heatmap(encoding, size), folder / "heatmap.png")
    console.print(f"wrote {folder}")
    return 0


def _plot(arguments: argparse.Namespace) -> int:
    contents = [_read_results(given) for given in arguments.results]

    from .plots import plot_extrapolation, save_figure

    curves: dict[str, dict[int, float]] = {}
    entries = [entry for _, content in contents for entry in content["results"]]
    metric = arguments.metric or entries[0]["metric"]
    settings = [name for entry in entries if entry["metric"] == metric for name in entry["setting"]]
    for folder, content in contents:
        for model, values in content["by_model"].items():
            if metric in values:
                name = model if model not in curves else f"{model} ({folder})"
                curves[name] = {int(s): v for s, v in values[metric].items() if v is not None}
    if not curves:
        known = sorted({entry["metric"] for entry in entries})
        raise DataError(f"no file has the metric {metric!r}; they have {', '.join(known)}")
    save_figure(plot_extrapolation(curves, metric, settings[0]), arguments.output)
    sys.stdout.write(f"wrote {arguments.output}\n")
    return 0


def _read_results(given: Path) -> tuple[str, dict[str, Any]]:
    """Reads a `results.json`, or that of a folder; returns the name of its folder, too."""
    path = given / "results.json" if given.is_dir() else given
    content = read_json(path)
    if not content.get("by_model") or not content.get("results"):
        raise DataError(f"{path} is not a results.json of seqpe-zoo")
    return path.parent.name, content
