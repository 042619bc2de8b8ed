"""A process of the demo: reads jobs as lines of JSON from its input, trains them, and tells of it."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any


def tell(**event: Any) -> None:
    """Writes an event for the parent process."""
    sys.__stdout__.write(json.dumps(event) + "\n")
    sys.__stdout__.flush()


def main() -> int:
    """Works until the input ends."""
    sys.stdout = sys.stderr  # whatever libraries print must not mix with events
    from .demo_jobs import DEMO_JOBS, demo_recipe
    from .job import run_job
    from .launch import builder_of, quiet_libraries
    from .run_config import RUNS
    from .strict_config import build_config

    quiet_libraries()
    tell(event="ready")
    jobs = {job.name: job for job in DEMO_JOBS}
    for line in sys.stdin:
        order = json.loads(line)
        name = order["name"]

        def listener(step: int, total: int, logs: dict[str, Any], name: str = name) -> None:
            if step == total or step % 5 == 0:
                tell(event="step", name=name, step=step, total=total, loss=logs.get("loss"))

        recipe = demo_recipe(jobs[name], order["output"], order["scale"], order["seed"])
        job = builder_of(recipe["task"])(build_config(RUNS[recipe["task"]], recipe))
        parameters = sum(parameter.numel() for parameter in job.model.parameters())
        outcome = run_job(job, overwrite=True, listener=listener, command=order["command"])
        for checkpoint in outcome.folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)  # the finished model is in the folder itself
        measured = [
            {
                "metric": m.metric,
                "setting": dict(m.setting),
                "value": m.value,
                "dataset": dict(m.dataset),
                "task": m.task,
            }
            for m in outcome.measurements
        ]
        tell(
            event="done",
            name=name,
            steps=outcome.steps,
            seconds_a_step=outcome.seconds_a_step,
            parameters=parameters,
            measured=measured,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
