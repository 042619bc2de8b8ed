"""`seqpe-zoo demo`: train tiny models for real, measure them beyond their training context, write a report.

Models are trained in processes of one thread each, two at a time by default: for models this small that is
several times faster than two threads in one process.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from ..data.errors import DataError
from ..evaluation.report import Measurement, Report, typed_command
from .demo_jobs import DEMO_JOBS, DemoJob

MODELS = "models"


class DemoFailed(RuntimeError):
    """A process of the demo ended with an error; holds its last words."""


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
    try:
        results = _train_all(
            jobs, output, max(1, min(processes, len(jobs))), scale, seed, report.command, console
        )
    except DemoFailed as error:
        console.print(f"error: {error}", markup=False)
        return 1
    for job in jobs:
        done = results[job.name]
        for m in done.pop("measured"):
            report.measurements.append(
                Measurement(job.label, m["task"], m["dataset"], m["metric"], m["setting"], m["value"])
            )
        report.details[job.name] = {**done, "encoding": job.encoding, "options": job.options}
    report.details["minutes"] = (time.perf_counter() - begun) / 60
    report.details["scale"] = scale
    report.write(output)
    show_tables(report, console)
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


class _Worker:
    """A process that trains one job after the other; its words arrive in a queue."""

    def __init__(self, number: int, events: queue.Queue[tuple[int, dict[str, Any] | None]]) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        # The package that runs now, also when it is a source tree that was never installed.
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
        self.number = number
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seqpe_zoo.training.demo_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
        )
        self.last_words: deque[str] = deque(maxlen=15)
        self._readers = [
            threading.Thread(target=self._read_events, args=(events,), daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_events(self, events: queue.Queue[tuple[int, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            events.put((self.number, json.loads(line)))
        events.put((self.number, None))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.last_words.extend(self.process.stderr)

    def order(self, **job: Any) -> None:
        """Sends a job."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Lets the process end after its last job."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        """Ends the process at once."""
        self.process.kill()
        self.process.wait()

    def farewell(self) -> str:
        """Returns the last words of a process that has ended."""
        self.process.wait()
        self._readers[1].join(timeout=5)
        return "".join(self.last_words).strip()


def _train_all(
    jobs: list[DemoJob], output: Path, processes: int, scale: float, seed: int, command: str, console: Any
) -> dict[str, dict[str, Any]]:
    """Trains all jobs and returns what each told at its end.

    Raises:
        DemoFailed: a process ended before its work was done.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    workers = [_Worker(number, events) for number in range(processes)]
    waiting, results = deque(jobs), {}
    columns = (TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as bar:
            tasks = {
                job.name: bar.add_task(f"{job.kind}: {job.label}", total=None, start=False) for job in jobs
            }

            def give(worker: _Worker) -> None:
                if not waiting:
                    worker.end()
                    return
                job = waiting.popleft()
                bar.start_task(tasks[job.name])
                folder = str(output / MODELS / job.name)
                worker.order(name=job.name, output=folder, scale=scale, seed=seed, command=command)

            while len(results) < len(jobs):
                number, event = events.get()
                worker = workers[number]
                if event is None:
                    if worker.process.wait() != 0 or len(waiting) > 0:
                        raise DemoFailed(f"a training process ended unexpectedly:\n{worker.farewell()}")
                elif event["event"] == "ready":
                    give(worker)
                elif event["event"] == "step":
                    bar.update(tasks[event["name"]], completed=event["step"], total=event["total"])
                elif event["event"] == "done":
                    results[event.pop("name")] = {
                        key: value for key, value in event.items() if key != "event"
                    }
                    give(worker)
    finally:
        for worker in workers:
            if worker.process.poll() is None and len(results) < len(jobs):
                worker.kill()
    return results
