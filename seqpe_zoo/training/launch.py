"""How a run is started: the arguments that `seqpe-zoo train` and the scripts share, and their errors."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..data.names import check_data_name, parse_model_name

EXIT_WRONG_INPUT, EXIT_DISK_FULL = 2, 32


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of a run to a parser."""
    parser.add_argument("recipe", help="name as printed by `seqpe-zoo recipes`, or a YAML file")
    parser.add_argument(
        "changes", nargs="*", metavar="section.key=value", help="instead of what the recipe says"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the last complete checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="remove the checkpoints of an earlier run")
    parser.add_argument(
        "--dry-run", action="store_true", help="two steps and an evaluation; say what all will cost"
    )
    parser.add_argument(
        "--push-to-hub", metavar="OWNER/NAME", help="publish the finished model, after its check"
    )
    parser.add_argument("--license", default="apache-2.0", help="of the published weights (apache-2.0)")


def check_names(run: Any) -> None:
    """Finds data and checkpoints that are missing.

    Raises:
        DataError: as said.
    """
    source, checkpoint = getattr(run.data, "source", None), getattr(run.model, "checkpoint", None)
    if source is not None:
        check_data_name("images" if run.task.endswith("vit") else "text", source)
    if checkpoint is not None:
        parse_model_name(checkpoint)


def builder_of(task: str) -> Callable[[Any], Any]:
    """Returns the function that builds the jobs of a task."""
    if task.endswith("vit"):
        from . import image_jobs

        return {"train_vit": image_jobs.train_vit_job, "finetune_vit": image_jobs.finetune_vit_job}[task]
    from . import text_jobs

    return {
        "train_gpt2": text_jobs.train_gpt2_job,
        "finetune_gpt2": text_jobs.finetune_gpt2_job,
        "finetune_gpt2_qa": text_jobs.finetune_qa_job,
    }[task]


def run_script(task: str, description: str, arguments: Sequence[str] | None = None) -> int:
    """What a script of `train_scripts/` does; returns its exit code."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_run_arguments(parser)
    return start(parser.parse_args(arguments), task)


def start(options: argparse.Namespace, task: str | None = None) -> int:
    """Reads the recipe, builds the job and carries it out; errors about the input end as one sentence."""
    from ..data.errors import DataError
    from .checkpoints import DiskFullError
    from .run_config import load_run
    from .strict_config import ConfigError

    try:
        run = load_run(options.recipe, options.changes, task)
        check_names(run)  # before torch is imported
        quiet_libraries()
        return _start(options, run)
    except (ConfigError, DataError) as error:
        say(f"error: {error}")
        return EXIT_WRONG_INPUT
    except DiskFullError as error:
        say(f"error: {error}")
        return EXIT_DISK_FULL


def _start(options: argparse.Namespace, run: Any) -> int:
    from ..evaluation.report import typed_command
    from .job import dry_run, run_job
    from .machine_checks import check_machine
    from .publishing import check_target, publish

    check_machine(run.training)
    if options.push_to_hub:
        check_target(options.push_to_hub, options.license)
    job = builder_of(run.task)(run)
    if options.dry_run:
        lines = dry_run(job)
        if is_main_process():
            say("\n".join(lines))
        return 0
    outcome = run_job(job, options.resume, options.overwrite, command=typed_command())
    if outcome.stopped:
        return 0
    if is_main_process():
        show_measurements(outcome.measurements)
        say(f"wrote {outcome.folder}")
        if options.push_to_hub:
            return publish(job, options.push_to_hub, options.license, typed_command())
    return 0


def show_measurements(measurements: Sequence[Any]) -> None:
    """Prints a table of each metric."""
    from rich.console import Console

    from ..evaluation.commands import print_table
    from ..evaluation.report import extrapolation_rows

    for metric in dict.fromkeys(m.metric for m in measurements):
        header, rows = extrapolation_rows(measurements, metric)
        print_table(Console(highlight=False), metric.replace("_", " "), header, rows)


def is_main_process() -> bool:
    """Tells whether this process speaks for all."""
    import os

    return int(os.environ.get("RANK", "0")) == 0


def say(text: str) -> None:
    """Speaks to the user."""
    sys.stderr.write(f"{text}\n")


def quiet_libraries() -> None:
    """Shows our own log, and of others only warnings."""
    from transformers.utils import logging as transformers_logging

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("seqpe_zoo").setLevel(logging.INFO if is_main_process() else logging.ERROR)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # enums of an optional library
    transformers_logging.disable_progress_bar()
