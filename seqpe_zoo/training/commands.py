"""Command line of this room: `demo`, `train` and `compare`.

Definitions import nothing heavy; handlers import what they need and return an exit code.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..data.recipes import find_recipe
from .launch import EXIT_WRONG_INPUT, add_run_arguments


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
    demo.set_defaults(handler=_demo)

    train = subparsers.add_parser(
        "train",
        help="train or fine-tune by a recipe",
        description="Runs a recipe, by name or path, with changes as training.steps=100.",
    )
    add_run_arguments(train)
    train.set_defaults(handler=_train)

    compare = subparsers.add_parser(
        "compare",
        help="train several encodings under one recipe and report them together",
        description="Each contestant is an encoding, with options as rope:base=1e6, or a trained checkpoint. "
        "A comparison brings its own; naming some of their labels leaves the others out.",
    )
    compare.add_argument("contestants", nargs="*", metavar="[LABEL=]ENCODING[:option=value,...] or MODEL")
    compare.add_argument(
        "--recipe",
        required=True,
        help="comparison, or recipe of a model that is trained from scratch: name as printed by "
        "`seqpe-zoo recipes`, or a YAML file",
    )
    compare.add_argument("--data-dir", type=Path, help="comparisons: texts or images")
    compare.add_argument("--start", type=Path, help="comparisons that fine-tune: output of the earlier one")
    compare.add_argument("--seeds", type=int, nargs="+", help="comparisons: other seeds than the file's")
    compare.add_argument("--processes", type=int, default=2, help="comparisons: runs side by side (2)")
    compare.add_argument("--set", nargs="*", default=[], metavar="section.key=value", dest="changes")
    compare.add_argument("--output", type=Path, default=Path("comparison"), help="folder of runs and report")
    compare.add_argument(
        "--resume", action="store_true", help="continue; finished contestants are not trained again"
    )
    compare.add_argument("--overwrite", action="store_true", help="train all contestants again")
    compare.add_argument("--no-plot", action="store_true")
    compare.set_defaults(handler=_compare)

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
    fit.set_defaults(handler=_fit_positions)


def _train(options: argparse.Namespace) -> int:
    from .launch import start

    return start(options)


def _fit_positions(options: argparse.Namespace) -> int:
    import logging

    from .compare import split_contestant
    from .fit_positions import fit_positions
    from .launch import say
    from .strict_config import ConfigError

    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        chosen = split_contestant(f"seqpe:{','.join(options.option)}")[2]
        error = fit_positions(
            options.output, options.dim, options.num_dims, options.steps, options.seed, **chosen
        )
    except (ConfigError, ValueError, TypeError) as problem:
        say(f"error: {problem}")
        return EXIT_WRONG_INPUT
    say(f"wrote {options.output}, mean squared error {error:.5f}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from ..data.errors import DataError
    from .demo import run_demo
    from .launch import quiet_libraries, say

    quiet_libraries()
    try:
        return run_demo(options.output, options.processes, options.scale, options.only, options.seed)
    except DataError as error:
        say(f"error: {error}")
        return EXIT_WRONG_INPUT


def _compare(options: argparse.Namespace) -> int:
    find_recipe(options.recipe)  # before torch is imported
    from ..data.errors import DataError
    from .checkpoints import DiskFullError
    from .comparison import is_comparison
    from .launch import EXIT_DISK_FULL, quiet_libraries, say
    from .side_by_side import TrainingFailed
    from .strict_config import ConfigError

    quiet_libraries()
    try:
        return _run_comparison(options) if is_comparison(options.recipe) else _run_compare(options)
    except TrainingFailed as error:
        say(f"error: {error}")
        return 1
    except (ConfigError, DataError) as error:
        say(f"error: {error}")
        return EXIT_WRONG_INPUT
    except DiskFullError as error:
        say(f"error: {error}")
        return EXIT_DISK_FULL


def _run_comparison(options: argparse.Namespace) -> int:
    from rich.console import Console

    from ..evaluation.report import Report, read_measurements, typed_command
    from .comparison import load_comparison, plan_runs, prepare_places, run_name
    from .comparison_report import write_comparison
    from .launch import builder_of
    from .remeasure import measure_scaled
    from .run_config import RUNS
    from .side_by_side import train_side_by_side
    from .strict_config import ConfigError, build_config

    comparison = load_comparison(options.recipe, options.changes)
    labels = options.contestants or list(comparison.contestants)
    seeds = options.seeds or comparison.seeds
    if (
        options.output.exists()
        and any(options.output.iterdir())
        and not (options.resume or options.overwrite)
    ):
        raise ConfigError(
            f"{options.output} is not empty: continue with --resume, start again with --overwrite, or give "
            "another --output"
        )
    places = prepare_places(comparison, options.data_dir, options.start, options.output)
    runs = plan_runs(comparison, labels, seeds, places, options.output)
    first = [run for run in runs if run.recipe["training"]["seed"] == seeds[0]]
    for run in first:  # a mistake in the last contestant must not cost hours
        builder_of(run.recipe["task"])(build_config(RUNS[run.recipe["task"]], run.recipe))
    report = Report(typed_command(), seeds[0])
    console = Console(highlight=False)
    results = train_side_by_side(runs, options.processes, report.command, console, options.resume)
    trained = [label for label in labels if comparison.contestant(label).weights_of is None]
    by_label = {label: [results[run_name(label, seed)] for seed in seeds] for label in trained}
    measurements = [
        m
        for label, contents in by_label.items()
        for content in contents
        for m in read_measurements(content, label)
    ]
    recipes = {run.name: run.recipe for run in runs}
    for label in labels:
        contestant = comparison.contestant(label)
        for seed in seeds if contestant.weights_of is not None else ():
            source = run_name(contestant.weights_of, seed)
            measurements += measure_scaled(
                options.output / source, recipes[source], contestant.scaling, label
            )
    measurements.sort(key=lambda m: labels.index(m.model))
    write_comparison(comparison, by_label, measurements, report, options.output, console)
    return 0


def _run_compare(options: argparse.Namespace) -> int:
    from ..evaluation.commands import write_report
    from ..evaluation.report import Report, typed_command
    from .compare import is_checkpoint, measure_checkpoint, relabel, run_for
    from .job import run_job
    from .launch import builder_of, say
    from .run_config import load_run
    from .strict_config import ConfigError

    if not options.contestants:
        raise ConfigError(f"name the contestants: {options.recipe} is a recipe of one run")
    run = load_run(options.recipe, [*options.changes, f"training.output={options.output}"])
    if run.task not in ("train_gpt2", "train_vit"):
        raise ConfigError(
            f"{options.recipe} is a recipe of {run.task}; compare needs train_gpt2 or train_vit"
        )
    if not (getattr(run.evaluation, "lengths", ()) or getattr(run.evaluation, "resolutions", ())):
        raise ConfigError("the recipe measures nothing: set evaluation.lengths or evaluation.resolutions")
    report = Report(typed_command(), run.training.seed)
    # All jobs are built before the first one runs: a mistake in the last contestant must not cost hours.
    entries: list[tuple[str, Any]] = []
    for word in options.contestants:
        if is_checkpoint(word):
            entries.append((word, None))
        else:
            label, own = run_for(run, word)
            entries.append((label, builder_of(run.task)(own)))
    for label, job in entries:
        if job is None:
            report.measurements += measure_checkpoint(label, run)
            continue
        say(f"{label}:")
        outcome = run_job(job, options.resume, options.overwrite, command=report.command)
        if outcome.stopped:
            say("stopped and saved; continue with --resume")
            return 0
        report.measurements += relabel(outcome.measurements, label)
        report.details[label] = {"steps": outcome.steps, "seconds_a_step": outcome.seconds_a_step}
    write_report(report, options.output, plot=not options.no_plot)
    return 0
