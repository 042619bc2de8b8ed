"""Carries runs out: one after the other, or several tiny ones side by side in processes of one thread each.

For models this small, two processes of one thread are several times faster than one process of two threads.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import shutil
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.errors import DataError

_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_events: Any = None
"""In a training process: the queue to the process that shows progress."""


class TrainingFailed(RuntimeError):
    """A training process ended with an error; holds its last words."""

    exit_code = 1


@dataclass(frozen=True)
class PlannedRun:
    """One run."""

    name: str  # unique among those run together
    title: str  # beside its progress bar
    recipe: dict[str, Any]  # as a YAML recipe would hold it; names its run folder


def carry_out(run: PlannedRun, command: str, resume: bool, keep_checkpoints: bool = False) -> dict[str, Any]:
    """Trains and measures one run; returns what its results.json holds."""
    from .job import run_job
    from .launch import build_job
    from .run_config import build_run

    def listener(step: int, total: int, logs: dict[str, Any]) -> None:
        if step == total or step % 5 == 0:
            _events.put((run.name, step, total))

    outcome = run_job(
        build_job(build_run(run.recipe)),
        resume=resume,
        overwrite=not resume,
        listener=None if _events is None else listener,
        command=command,
    )
    if outcome.stopped is not None:
        raise KeyboardInterrupt
    for checkpoint in () if keep_checkpoints else outcome.folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)  # the finished model is in the folder itself
    return read_results(run)


def read_results(run: PlannedRun) -> dict[str, Any]:
    """Returns what the results.json of a run holds; empty where it is missing or half-written."""
    try:
        results = Path(run.recipe["training"]["output"]) / "results.json"
        return json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def train_side_by_side(
    runs: Sequence[PlannedRun],
    processes: int,
    command: str,
    console: Any,
    resume: bool = False,
    keep_checkpoints: bool = False,
) -> dict[str, dict[str, Any]]:
    """Carries runs out and returns the content of each one's results.json by name.

    Args:
        runs: in the order in which they are begun.
        processes: how many at a time; 1 works in this process and shows its log.
        command: how results say that they were made.
        console: of rich.
        resume: keep what is finished and continue what was begun; else begin anew.
        keep_checkpoints: of finished runs.

    Raises:
        TrainingFailed: a process ended before its work was done.
    """
    results = {run.name: read_results(run) for run in runs} if resume else {}
    results = {name: content for name, content in results.items() if content}
    runs = [run for run in runs if run.name not in results]
    if processes <= 1 or not runs:
        for run in runs:
            console.print(f"{run.title}:", markup=False)
            results[run.name] = carry_out(run, command, resume, keep_checkpoints)
        return results
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(_THREADS, TOKENIZERS_PARALLELISM="false")  # of the processes, which start here
    executor = ProcessPoolExecutor(min(processes, len(runs)), context, _begin, (events,))
    try:
        futures = {executor.submit(carry_out, run, command, resume, keep_checkpoints): run for run in runs}
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        return results | _watch(futures, events, console)
    except BrokenProcessPool as error:
        raise TrainingFailed(f"a training process ended unexpectedly: {error}") from error
    finally:
        executor.shutdown(cancel_futures=True)


def _begin(events: Any) -> None:
    """Begins a training process, which speaks through the queue only."""
    global _events
    from .launch import quiet_libraries

    _events = events
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    quiet_libraries()


def _watch(
    futures: dict[Future[dict[str, Any]], PlannedRun], events: Any, console: Any
) -> dict[str, dict[str, Any]]:
    """Shows progress until all runs are done; returns their results."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results: dict[str, dict[str, Any]] = {}
    with Progress(*columns, console=console) as bar:
        bars = {run.name: bar.add_task(run.title, total=None, start=False) for run in futures.values()}
        open_ones = set(futures)
        while open_ones:
            done, open_ones = wait(open_ones, timeout=0.2, return_when=FIRST_COMPLETED)
            while True:
                try:
                    name, step, total = events.get_nowait()
                except queue.Empty:
                    break
                bar.start_task(bars[name])
                bar.update(bars[name], completed=step, total=total)
            for future in done:
                run = futures[future]
                try:
                    results[run.name] = future.result()
                except (DataError, BrokenProcessPool):
                    raise
                except Exception as error:
                    words = "".join(traceback.format_exception(error)).strip()[-2000:]
                    raise TrainingFailed(f"{run.title} failed:\n{words}") from error
                bar.update(bars[run.name], completed=1, total=1)
                if not console.is_terminal:  # bars do not move in a log
                    console.print(f"{len(results)} of {len(futures)} done: {run.title}", markup=False)
    return results
