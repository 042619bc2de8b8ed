"""The `results.json` of a model that was trained several times, from the `results.json` of its runs.

    python -m seqpe_zoo.hub.seed_results model_cards/NAME/results.json RUN_0/results.json RUN_1/results.json

The first run is the one whose weights are published: its numbers stay the values. Each gets the seeds, the
mean and the standard deviation (n - 1) over all runs. A number that a run lacks is an error, so that no mean
is taken over fewer runs than it says.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from .errors import HubError, UsageError


def merge_seeds(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first run's content with seeds, mean and spread of all runs at every number.

    Args:
        runs: contents of `results.json`, as `evaluation.report.Report` writes them.
    """
    if len(runs) < 2:
        raise UsageError("a mean needs the results of at least two runs")
    tables = [{_key(result): result for result in run["results"]} for run in runs]
    seeds = [run.get("seed") for run in runs]
    if None in seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"the runs must have different seeds; they have {seeds}")
    merged = []
    for key, result in tables[0].items():
        values = [table[key]["value"] if key in table else None for table in tables]
        if None in values:
            raise UsageError(f"not every run has a number for {' '.join(map(str, key))}")
        spread = {"seeds": seeds, "mean": statistics.fmean(values), "spread": statistics.stdev(values)}
        merged.append({**result, **spread})
    return {**runs[0], "results": merged}


def _key(result: dict[str, Any]) -> tuple[str, ...]:
    dataset, setting = result["dataset"], result.get("setting") or {}
    where = [str(dataset[name]) for name in ("name", "split") if name in dataset]
    return (result["metric"], *where, *(f"{name}={value}" for name, value in setting.items()))


def main(arguments: list[str]) -> int:
    """Write the file named first from the others."""
    if len(arguments) < 3:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    target, *sources = map(Path, arguments)
    try:
        merged = merge_seeds([json.loads(path.read_text(encoding="utf-8")) for path in sources])
    except HubError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    target.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
