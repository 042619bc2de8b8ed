"""Trains several tiny models side by side: processes of one thread each, with a progress bar.

For models this small, two processes of one thread are several times faster than one process of two threads.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class TrainingFailed(RuntimeError):
    """A training process ended with an error; holds its last words."""


@dataclass(frozen=True)
class PlannedRun:
    """One run.

    Attributes:
        name: unique among those run together.
        title: beside its progress bar.
        recipe: as a YAML recipe would hold it; names its run folder.
    """

    name: str
    title: str
    recipe: dict[str, Any]


class _Worker:
    """A process that trains one run after the other; its words arrive in a queue."""

    def __init__(self, number: int, events: queue.Queue[tuple[int, dict[str, Any] | None]]) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        # The package that runs now, also when it is a source tree that was never installed.
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
        self.number = number
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seqpe_zoo.training.worker"],
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

    def order(self, **run: Any) -> None:
        """Sends a run."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(run) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Lets the process end after its last run."""
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


def train_side_by_side(
    runs: Sequence[PlannedRun], processes: int, command: str, console: Any, resume: bool = False
) -> dict[str, dict[str, Any]]:
    """Carries runs out and returns the content of each one's results.json by name.

    Args:
        runs: in the order in which they are begun.
        processes: how many at a time.
        command: how results say that they were made.
        console: of rich.
        resume: keep what is finished and continue what was begun; else begin anew.

    Raises:
        TrainingFailed: a process ended before its work was done.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    workers = [_Worker(number, events) for number in range(max(1, min(processes, len(runs))))]
    waiting, results = deque(runs), {}
    titles = {run.name: run.title for run in runs}
    columns = (TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as bar:
            tasks = {run.name: bar.add_task(run.title, total=None, start=False) for run in runs}

            def give(worker: _Worker) -> None:
                if not waiting:
                    worker.end()
                    return
                run = waiting.popleft()
                bar.start_task(tasks[run.name])
                worker.order(name=run.name, recipe=run.recipe, command=command, resume=resume)

            while len(results) < len(runs):
                number, event = events.get()
                worker = workers[number]
                if event is None:
                    if worker.process.wait() != 0 or len(waiting) > 0:
                        raise TrainingFailed(f"a training process ended unexpectedly:\n{worker.farewell()}")
                elif event["event"] == "ready":
                    give(worker)
                elif event["event"] == "step":
                    bar.update(tasks[event["name"]], completed=event["step"], total=event["total"])
                elif event["event"] == "done":
                    results[event["name"]] = event["report"]
                    bar.update(tasks[event["name"]], completed=1, total=1)
                    if not console.is_terminal:  # bars do not move in a log
                        console.print(f"{len(results)} of {len(runs)} done: {titles[event['name']]}")
                    give(worker)
    finally:
        for worker in workers:
            if worker.process.poll() is None and len(results) < len(runs):
                worker.kill()
    return results
