"""Random numbers that depend on what they are drawn for, not on what was drawn before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded_randomness(*numbers: int) -> Iterator[None]:
    """Seeds Python, NumPy and torch for a block and restores them after it.

    Augmentation draws from all three. Seeding it by what it works on makes a picture's view independent of
    how many processes load data and of what was drawn before, so that an interrupted run continues with the
    same pictures.
    """
    mixed = int(np.random.SeedSequence([number % 2**32 for number in numbers]).generate_state(1)[0])
    python, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    random.seed(mixed)
    np.random.seed(mixed)
    torch.random.default_generator.manual_seed(mixed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.random.set_rng_state(torch_state)
