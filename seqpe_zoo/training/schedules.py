"""Learning rate by step: linear warm-up, then linear, cosine or constant, as a factor of the peak rate."""

from __future__ import annotations

import math


def schedule_factor(
    step: int, total: int, warmup: int, shape: str = "linear", start: float = 0.0, end: float = 0.0
) -> float:
    """Returns the share of the peak learning rate at a step.

    Args:
        step: counted from 0.
        total: steps of the run.
        warmup: steps of warm-up.
        shape: "linear", "cosine" or "constant".
        start: share at which warm-up begins.
        end: share at which the schedule ends.
    """
    if step < warmup:
        return start + (1.0 - start) * step / warmup
    if shape == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    falling = 1.0 - progress if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return end + (1.0 - end) * falling
