"""A process that trains: reads runs as lines of JSON from its input, carries them out, and tells of it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any


def tell(**event: Any) -> None:
    """Writes an event for the parent process."""
    sys.__stdout__.write(json.dumps(event) + "\n")
    sys.__stdout__.flush()


def carry_out(order: dict[str, Any]) -> dict[str, Any]:
    """Trains and measures one run, or reads what it gave when it was finished before."""
    from .job import run_job
    from .launch import builder_of
    from .run_config import RUNS
    from .strict_config import build_config

    name, recipe = order["name"], order["recipe"]
    results = Path(recipe["training"]["output"]) / "results.json"
    if order["resume"] and results.is_file():
        return json.loads(results.read_text(encoding="utf-8"))

    def listener(step: int, total: int, logs: dict[str, Any]) -> None:
        if step == total or step % 5 == 0:
            tell(event="step", name=name, step=step, total=total, loss=logs.get("loss"))

    job = builder_of(recipe["task"])(build_config(RUNS[recipe["task"]], recipe))
    outcome = run_job(
        job,
        resume=order["resume"],
        overwrite=not order["resume"],
        listener=listener,
        command=order["command"],
    )
    for checkpoint in outcome.folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)  # the finished model is in the folder itself
    return json.loads(results.read_text(encoding="utf-8"))


def main() -> int:
    """Works until the input ends."""
    sys.stdout = sys.stderr  # whatever libraries print must not mix with events
    from .launch import quiet_libraries

    quiet_libraries()
    tell(event="ready")
    for line in sys.stdin:
        order = json.loads(line)
        tell(event="done", name=order["name"], report=carry_out(order))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
