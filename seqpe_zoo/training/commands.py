"""Command line of this room: `demo`, `train` and `compare`.

Definitions import nothing heavy; handlers import what they need and return an exit code.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..data.recipes import find_recipe
from .launch import add_run_arguments, quiet_libraries, report_errors, say, start


def add_subcommands(subparsers: Any) -> None:
    """Adds the commands to the parser of the command line."""
    demo = subparsers.add_parser(
        "demo",
        help="train, extrapolate and plot for real, in about five minutes",
        description="Trains tiny Llamas on the source of Python's standard library and tiny vision "
        "transformers on letters in matplotlib's fonts, measures them beyond their training length and "
        "resolution, and writes a report with tables, curves and heatmaps.",
    )
    demo.add_argument("--output", type=Path, default=Path("demo_report"), help="folder of the report")
    demo.add_argument("--processes", type=int, default=2, help="models trained side by side (2)")
    demo.add_argument("--scale", type=float, default=1.0, help="share of the training steps (1.0)")
    demo.add_argument("--only", choices=("text", "images"), help="one half of the demo")
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(handler=lambda options: report_errors(lambda: _demo(options)))

    train = subparsers.add_parser(
        "train",
        help="train or fine-tune by a recipe",
        description="Runs a recipe, by name or path, with changes as training.steps=100.",
    )
    add_run_arguments(train)
    train.set_defaults(handler=lambda options: report_errors(lambda: start(options)))

    compare = subparsers.add_parser(
        "compare",
        help="train several encodings under one recipe and report them together",
        description="Each run is an encoding, with options as rope:base=1e6, or a trained checkpoint. "
        "A comparison brings its own; naming some of their labels leaves the others out.",
    )
    compare.add_argument("runs", nargs="*", metavar="[LABEL=]ENCODING[:option=value,...] or MODEL")
    compare.add_argument(
        "--recipe",
        required=True,
        help="comparison, or recipe of a model that is trained from scratch: name as printed by "
        "`seqpe-zoo recipes`, or a YAML file",
    )
    compare.add_argument("--data-dir", type=Path, help="comparisons: texts or images")
    compare.add_argument("--start", type=Path, help="comparisons that fine-tune: output of the earlier one")
    compare.add_argument("--seeds", type=int, nargs="+", default=[], help="other seeds than the file's")
    compare.add_argument(
        "--processes", type=int, help="runs side by side (2 of a comparison, 1 of a recipe of one run)"
    )
    compare.add_argument("--set", nargs="*", default=[], metavar="section.key=value", dest="changes")
    compare.add_argument("--output", type=Path, default=Path("comparison"), help="folder of runs and report")
    compare.add_argument(
        "--resume", action="store_true", help="continue; finished runs are not trained again"
    )
    compare.add_argument("--overwrite", action="store_true", help="train all runs again")
    compare.add_argument("--no-plot", action="store_true")
    compare.set_defaults(handler=lambda options: report_errors(lambda: _compare(options)))

    fit = subparsers.add_parser(
        "fit-positions",
        help="fit a SeqPE encoder to sines and cosines of its positions, for models to start from",
        description="Needs no data. Writes safetensors, which load_position_encoder of "
        "seqpe_zoo.training.fit_positions puts into a model before training.",
    )
    fit.add_argument("output", type=Path, metavar="OUT.safetensors")
    fit.add_argument("--dim", type=int, required=True, help="width of the models that will use it")
    fit.add_argument("--num-dims", type=int, default=1, help="1 for text (default), 2 for images")
    fit.add_argument("--steps", type=int, default=1000, help="of the fit (1000)")
    fit.add_argument("--seed", type=int, default=0)
    fit.add_argument(
        "--option", nargs="*", default=[], metavar="NAME=VALUE", help="of SeqPE, as num_digits=2"
    )
    fit.set_defaults(handler=lambda options: report_errors(lambda: _fit_positions(options)))


def _fit_positions(options: argparse.Namespace) -> int:
    quiet_libraries()
    from ..data.errors import DataError
    from .comparison import read_options
    from .fit_positions import fit_positions

    chosen = read_options(options.option, " ".join(options.option))
    where = (options.output, options.dim, options.num_dims, options.steps, options.seed)
    try:
        error = fit_positions(*where, **chosen)
    except (ValueError, TypeError) as problem:
        raise DataError(str(problem)) from problem
    say(f"wrote {options.output}, mean squared error {error:.5f}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    quiet_libraries()
    from .demo import run_demo

    return run_demo(options.output, options.processes, options.scale, options.only, options.seed)


def _compare(options: argparse.Namespace) -> int:
    find_recipe(options.recipe)  # before torch is imported
    quiet_libraries()
    from rich.console import Console

    from ..evaluation.commands import write_report
    from ..evaluation.report import Report, typed_command
    from .comparison import load_comparison, prepare_places, run_comparison
    from .comparison_report import write_comparison
    from .strict_config import ConfigError

    output, console = options.output, Console(highlight=False)
    comparison = load_comparison(options.recipe, options.changes, options.runs, options.seeds)
    if output.exists() and not (options.resume or options.overwrite) and any(output.iterdir()):
        raise ConfigError(
            f"{output} is not empty: continue with --resume, start again with --overwrite, or give another "
            "--output"
        )
    seeds, is_typed = comparison.seeds, comparison.title is None
    report = Report(typed_command(), seeds[0] if seeds else comparison.recipe["training"].get("seed", 0))
    by_label, measurements = run_comparison(
        comparison,
        prepare_places(comparison, options.data_dir, options.start, output),
        output,
        options.processes or (1 if is_typed else 2),
        report.command,
        console,
        options.resume,
    )
    plot = not options.no_plot
    if not is_typed or len(seeds) > 1:
        write_comparison(comparison, by_label, measurements, report, output, console, plot)
        return 0
    report.measurements += measurements
    for label, (content,) in by_label.items():
        report.details[label] = {key: content["details"][key] for key in ("steps", "seconds_a_step")}
    write_report(report, output, plot)
    return 0
