"""How we measure: every timing stands between two of the baseline, because the machine may be shared.

A candidate's ratio in a round is its time over the mean of the baseline's times just before and just after.
Seconds that the host of a virtual machine gave to others, which Linux counts as steal, are taken off first.
Where the two times of the baseline differ by more than `STABLE` something else used the machine meanwhile,
and the round is left out. What is reported is the median of the ratios that count.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SHORTEST = 0.5
"""Seconds that a timing should last at least: faster functions are called several times in it."""

SHORTEST_CORRECTED = 0.25
"""Seconds from which on steal is taken off; Linux counts it in hundredths of a second."""

STABLE = 0.10
"""By how much the two baseline timings around a candidate's may differ, as a share of the smaller."""


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
    """Rounds that count."""
    stable: bool = True
    """Whether the machine was quiet in them."""


def compare(
    candidates: Mapping[str, Callable[[], object]],
    baseline: str,
    rounds: int = 5,
    warmup: int = 1,
    shortest: float = SHORTEST,
) -> list[Ratio]:
    """Times functions against one of them.

    Args:
        candidates: functions by name, the baseline among them.
        baseline: name of the function that the others are divided by.
        rounds: timings of each candidate; up to two more for one that had too few quiet rounds.
        warmup: untimed calls of each.
        shortest: seconds that a timing should last at least; with 0 it is one call.
    """
    for function in candidates.values():
        for _ in range(warmup):
            function()
    names = [name for name in candidates if name != baseline]
    timings: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    gc.collect()
    gc.freeze()  # what the libraries and models hold need not be searched again before every timing
    calls = max(1, round(shortest / _seconds(candidates[baseline], 1))) if shortest else 1
    before = _seconds(candidates[baseline], calls)
    for number in range(rounds + min(2, rounds - 1)):
        wanted = [name for name in names if number < rounds or len(_quiet(timings[name])) < min(3, rounds)]
        for name in wanted if number % 2 == 0 else reversed(wanted):
            own = _seconds(candidates[name], calls)
            after = _seconds(candidates[baseline], calls)
            timings[name].append((before, own, after))
            before = after
    gc.unfreeze()
    return [_ratio(name, baseline, timings[name]) for name in names]


def _seconds(function: Callable[[], object], calls: int) -> float:
    """Seconds of one call, the mean of several."""
    gc.collect()
    stolen, begin = stolen_seconds(), time.perf_counter()
    for _ in range(calls):
        function()
    elapsed = time.perf_counter() - begin
    if elapsed >= SHORTEST_CORRECTED:
        elapsed -= min(stolen_seconds() - stolen, elapsed / 2)
    return elapsed / calls


def stolen_seconds() -> float:
    """Seconds since the start in which this machine's host gave its processors to others.

    All processors together: threads wait for each other, so what one loses all lose.
    """
    counters = Path("/proc/stat")
    if not counters.exists():
        return 0.0
    fields = counters.read_text().split(maxsplit=9)
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def _quiet(timings: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    return [
        (before, own, after)
        for before, own, after in timings
        if abs(before - after) <= STABLE * min(before, after)
    ]


def _ratio(name: str, baseline: str, timings: Sequence[tuple[float, float, float]]) -> Ratio:
    stable = _quiet(timings)
    counted = stable or timings
    ratios = sorted(2 * own / (before + after) for before, own, after in counted)
    return Ratio(
        name,
        baseline,
        median=statistics.median(ratios),
        lowest=ratios[0],
        highest=ratios[-1],
        seconds=statistics.median(own for _, own, _ in counted),
        rounds=len(ratios),
        stable=bool(stable),
    )
