"""How we measure: interleaved repetitions and medians of ratios, because the machine is shared.

A and B are run in turn, once each a round, the order reversed every other round; the ratio is taken within
a round, so that a slow minute slows both. Absolute times are only context.
"""

import gc
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ratio:
    """How many times the baseline's time something took."""

    name: str
    baseline: str
    median: float
    lowest: float
    highest: float
    seconds: float
    """Median time of the thing itself, for context."""
    rounds: int


def compare(
    candidates: Mapping[str, Callable[[], object]], baseline: str, rounds: int = 5, warmup: int = 1
) -> list[Ratio]:
    """Times functions against one of them.

    Args:
        candidates: functions by name, the baseline among them.
        baseline: name of the function that the others are divided by.
        rounds: repetitions.
        warmup: untimed calls of each.
    """
    for function in candidates.values():
        for _ in range(warmup):
            function()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            gc.collect()
            begin = time.perf_counter()
            candidates[name]()
            times[name].append(time.perf_counter() - begin)
    ratios = []
    for name in names:
        if name == baseline:
            continue
        per_round = [own / base for own, base in zip(times[name], times[baseline])]
        ratios.append(
            Ratio(
                name,
                baseline,
                statistics.median(per_round),
                min(per_round),
                max(per_round),
                statistics.median(times[name]),
                rounds,
            )
        )
    return ratios


def peak_memory_of(function: Callable[[], object]) -> int:
    """Bytes by which the process's peak memory rose during a call; call it in a fresh process."""
    before = peak_memory()
    function()
    return peak_memory() - before


def peak_memory() -> int:
    """Peak memory of this process in bytes.

    Linux's own high-water mark, not `ru_maxrss`, which is inherited from the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        marks = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        if marks:
            return int(marks[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
