"""What happens beside the steps: a polite stop, progress with speed and time left, the averaged weights."""

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
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .averaging import WeightAverage
from .checkpoints import is_complete

logger = logging.getLogger(__name__)
_WARM = 5
"""Steps that are left out of speed: the first ones allocate and compile."""


class StopOnSignal(TrainerCallback):
    """Saves and stops after the current step when the process is asked to end (SIGTERM)."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if args.world_size > 1:
            # The signal reaches processes at different steps; they must stop at the same one.
            asked = torch.tensor(int(self.asked), device=args.device)
            torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
            self.asked = bool(asked)
        if self.asked:
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)


class TellEpoch(TrainerCallback):
    """Tells the data set and the sampler which epoch begins.

    accelerate does so for one process that starts at the beginning of an epoch. With several processes the
    data set would not hear of it and show the same views in every epoch; after a resume inside of an epoch,
    views and order would be those of the first.
    """

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: Any = None,
        **kwargs: Any,
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


class FindBest(TrainerCallback):
    """Finds the best checkpoint of a continued run again, though the run folder may have moved."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
        if is_complete(folder):
            state.best_model_checkpoint = str(folder)


class AverageWeights(TrainerCallback):
    """Updates the averaged weights after every optimizer step."""

    def __init__(self, average: WeightAverage) -> None:
        self.average = average

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.average.update(kwargs["model"])


class Progress(TrainerCallback):
    """Tells how far a run is: a bar on a terminal, lines in a log file, or a function of the caller.

    Args:
        units_a_step: tokens or images of a step, all processes together.
        unit: "tokens" or "images".
        listener: gets step, total and the newest log instead of any display.
    """

    def __init__(
        self,
        units_a_step: float,
        unit: str,
        listener: Callable[[int, int, dict[str, Any]], None] | None = None,
    ) -> None:
        self.units_a_step, self.unit, self.listener = units_a_step, unit, listener
        self.step_times: list[float] = []
        self._bar: Any = None
        self._task: Any = None
        self._logged: dict[str, Any] = {}
        self._last = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._last = time.perf_counter()
        console = Console(stderr=True)
        if self.listener is None and state.is_world_process_zero and console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=console)
            self._bar.start()
            self._task = self._bar.add_task("training", total=state.max_steps, completed=state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        now = time.perf_counter()
        self.step_times.append(now - self._last)
        self._last = now
        if self.listener is not None:
            self.listener(state.global_step, state.max_steps, self._logged)
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step, description=self._words())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._logged.update(logs or {})
        if self._bar is None and self.listener is None and state.is_world_process_zero and logs:
            left = (state.max_steps - state.global_step) * self.seconds_a_step()
            shown = {
                key: round(value, 5) if isinstance(value, float) else value for key, value in logs.items()
            }
            logger.info(
                "step %d of %d, %s, %s left: %s",
                state.global_step,
                state.max_steps,
                self.speed(),
                format_seconds(left),
                json.dumps(shown),
            )

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._last = time.perf_counter()  # an evaluation is not part of the next step's time

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._last = time.perf_counter()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

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

    def _words(self) -> str:
        loss = self._logged.get("loss")
        return f"training, {self.speed()}" + ("" if loss is None else f", loss {loss:.3f}")


def format_seconds(seconds: float) -> str:
    """Writes a time span in the unit that fits: 42 s, 12 min, 3.1 h, 4.2 days."""
    if math.isnan(seconds):
        return "unknown time"
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
