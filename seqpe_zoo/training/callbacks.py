"""What happens beside the steps: a polite stop, epochs, the averaged weights, progress and speed."""

from __future__ import annotations

import json
import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel
from transformers import TrainerCallback, TrainerControl

from .checkpoints import is_complete

logger = logging.getLogger(__name__)
Listener = Callable[[int, int, dict[str, Any]], None]
"""Is told the step, the number of steps, and what was logged last."""
_WARM = 5
"""Steps that are left out of speed: the first ones allocate and compile."""


class AlreadyTrained(Exception):
    """The checkpoint that a run continues from is that of its last step."""


class EndTrained(TrainerCallback):
    """Ends the continuation of a run whose last step is done; transformers would do one more.

    It also finds the best checkpoint again, though the run folder may have moved.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
        if is_complete(folder):
            state.best_model_checkpoint = str(folder)
        if state.global_step >= state.max_steps:
            raise AlreadyTrained


class StopOnSignal(TrainerCallback):
    """Saves and stops after the current step when the process is asked to end (SIGTERM, or Ctrl-C).

    Asked twice, Ctrl-C ends the process at once.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._before: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        if args.world_size > 1:
            # The signal reaches processes at different steps; they must stop at the same one.
            asked = torch.tensor(self.asked or 0, device=args.device)
            torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
            self.asked = int(asked) or None
        if self.asked is not None:
            control.should_save = control.should_training_stop = True
        return control

    def restore(self) -> None:
        """Gives signals back to who had them before."""
        while self._before:
            signal.signal(*self._before.popitem())


class TellEpoch(TrainerCallback):
    """Tells the data set and the sampler which epoch begins.

    accelerate does so for one process that starts at the beginning of an epoch. With several processes the
    data set would not hear of it and show the same views in every epoch; after a resume inside of an epoch,
    views and order would be those of the first.
    """

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        steps = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
        epoch = state.global_step // steps
        part, parts = train_dataloader.batch_sampler, [train_dataloader.dataset]
        while part is not None:  # shards and batches around the sampler
            parts.append(part)
            part = getattr(part, "batch_sampler", None) or getattr(part, "sampler", None)
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)


class AverageWeights(TrainerCallback):
    """Updates the averaged weights after every optimizer step."""

    def __init__(self, average: AveragedModel) -> None:
        self.average = average

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.average.update_parameters(model)


class Progress(TrainerCallback):
    """Measures speed, and tells how far a run is: lines of a log, or a function of the caller.

    Args:
        units_a_step: tokens or images of a step, all processes together.
        unit: "tokens" or "images".
        listener: is told instead of the log.
    """

    def __init__(self, units_a_step: float, unit: str, listener: Listener | None = None) -> None:
        self.units_a_step, self.unit, self.listener = units_a_step, unit, listener
        self.step_times: list[float] = []
        self._logged: dict[str, Any] = {}
        self._last = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last = self._last or time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.perf_counter()
        self.step_times.append(now - self._last)
        self._last = now
        if self.listener is not None:
            self.listener(state.global_step, state.max_steps, self._logged)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._logged.update(logs or {})
        if args.disable_tqdm and self.listener is None and state.is_world_process_zero and logs:
            left = format_seconds((state.max_steps - state.global_step) * self.seconds_a_step())
            shown = {
                key: round(entry, 5) if isinstance(entry, float) else entry for key, entry in logs.items()
            }
            where = f"step {state.global_step} of {state.max_steps}, {self.speed()}, {left} left"
            logger.info("%s: %s", where, json.dumps(shown))

    def _forget_time(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last = 0.0  # evaluations and checkpoints are not part of the next step's time

    on_evaluate = on_save = _forget_time

    def seconds_a_step(self) -> float:
        """Returns the mean time of a step after the first ones; NaN before any."""
        times = self.step_times[_WARM:] or self.step_times[1:] or self.step_times
        recent = times[-200:]
        return sum(recent) / len(recent) if recent else math.nan

    def speed(self) -> str:
        """Returns tokens or images a second, in words."""
        seconds = self.seconds_a_step()
        if math.isnan(seconds):
            return "speed not known yet"
        rate = self.units_a_step / seconds
        return f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2g} {self.unit}/s"


def format_seconds(seconds: float) -> str:
    """Writes a time span in the unit that fits: 42 s, 12 min, 3.1 h, 4.2 days."""
    if math.isnan(seconds):
        return "unknown time"
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
