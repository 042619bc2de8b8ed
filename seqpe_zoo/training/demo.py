"""`seqpe-zoo demo`: trains tiny models, measures them beyond their training context, writes a report."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from ..data.errors import DataError
from ..evaluation.report import Report, read_measurements, typed_command
from .comparison import measure_finished
from .demo_jobs import DEMO_JOBS, demo_recipe
from .side_by_side import PlannedRun, TrainingFailed, train_side_by_side

MODELS = "models"


def run_demo(
    output: Path, processes: int = 2, scale: float = 1.0, only: str | None = None, seed: int = 0
) -> int:
    """Runs the demo and returns an exit code.

    Args:
        output: folder of the report; models are below it.
        processes: how many models train at a time.
        scale: share of the training steps.
        only: "text" or "images".
        seed: of all runs.
    """
    from rich.console import Console

    from .demo_report import show_tables, write_demo_report

    console = Console(highlight=False)
    begun = time.perf_counter()
    _prepare_output(output)
    jobs = [job for job in DEMO_JOBS if only is None or job.kind == only]
    report = Report(typed_command(), seed)
    runs = [
        PlannedRun(
            job.name,
            f"{job.kind}: {job.label}",
            demo_recipe(job, str(output / MODELS / job.name), scale, seed),
        )
        for job in jobs
        if job.weights_of is None
    ]
    try:
        results = train_side_by_side(runs, processes, report.command, console)
    except TrainingFailed as error:
        console.print(f"error: {error}", markup=False)
        return 1
    for job in jobs:
        if job.weights_of is not None:
            recipe = next(run.recipe for run in runs if run.name == job.weights_of)
            folder = output / MODELS / job.weights_of
            report.measurements += measure_finished(str(folder), recipe, job.label, job.scaling)
            report.details[job.name] = {"weights_of": job.weights_of, "scaling": job.scaling}
            continue
        own = results[job.name]
        report.measurements += read_measurements(own, job.label)
        kept = {key: own["details"][key] for key in ("steps", "seconds_a_step", "parameters")}
        report.details[job.name] = {**kept, "encoding": job.encoding, "options": job.options}
    report.details["minutes"] = (time.perf_counter() - begun) / 60
    report.details["scale"] = scale
    report.write(output)
    show_tables(report, jobs, console)
    page = write_demo_report(report, jobs, output)
    console.print(f"{(time.perf_counter() - begun) / 60:.1f} minutes; report: {page}", markup=False)
    return 0


def _prepare_output(output: Path) -> None:
    """Makes the folder, and room in it where an earlier demo was.

    Raises:
        DataError: the folder holds something else.
    """
    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file; give a folder with --output")
    if output.is_dir() and any(output.iterdir()) and not (output / MODELS).is_dir():
        raise DataError(f"{output} holds other files; give another folder with --output")
    shutil.rmtree(output / MODELS, ignore_errors=True)
    (output / MODELS).mkdir(parents=True)
