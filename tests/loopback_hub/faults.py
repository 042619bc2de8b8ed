"""Faults the loopback hub commits on request: what networks and servers really do, at a named step, N times.

A fault is a JSON object; a list of them is sent to `POST /__control__/faults` or given with `--faults FILE`:

    {"step": "lfs-put", "action": "reset", "after_bytes": 1000}      connection reset in the middle of an
    upload
    {"step": "commit", "action": "lost-answer"}                      the commit happens, its answer does not
    arrive
    {"step": "*", "action": "status", "status": 503, "retry_after": 1, "times": 2}
    {"step": "resolve", "action": "corrupt", "path": "model.safetensors"}   same size, one bit flipped
    {"step": "*", "action": "html"}                                  what a wrong endpoint answers: a page,
    status 404
    {"step": "tag", "action": "delay", "seconds": 5}                 time to kill the client

`times` is 1 unless said; `skip` lets the first N matching requests pass; `path` limits a fault to one file.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

ACTIONS = ("status", "reset", "lost-answer", "corrupt", "truncate", "html", "delay")


@dataclass
class Fault:
    """One fault and how often it still happens."""

    step: str
    action: str = "status"
    times: int = 1
    skip: int = 0
    status: int = 503
    retry_after: int | None = None
    after_bytes: int = 0
    seconds: float = 0.0
    path: str | None = None
    message: str = "injected fault"

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"unknown fault action {self.action!r}; known: {', '.join(ACTIONS)}")

    def fits(self, step: str, path: str | None) -> bool:
        """Say whether a request is one this fault is meant for."""
        return self.times > 0 and self.step in ("*", step) and self.path in (None, path)


class Faults:
    """The faults still to be committed."""

    def __init__(self, faults: list[dict[str, Any]] | None = None) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.add(faults or [])

    def add(self, faults: list[dict[str, Any]]) -> None:
        """Add faults given as JSON objects; an unknown key is an error."""
        with self._lock:
            self._faults += [Fault(**fault) for fault in faults]

    def clear(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._faults = []

    def take(self, step: str, path: str | None) -> Fault | None:
        """Return the fault for this request, and count it."""
        with self._lock:
            for fault in self._faults:
                if fault.fits(step, path):
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None
