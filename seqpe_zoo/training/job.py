"""A job: everything that a run needs, built and checked, and how it is carried out.

Builders in `text_jobs.py` and `image_jobs.py` make jobs from run configurations; `run_job` trains, resumes,
saves and measures, the same for all of them.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from ..evaluation.model_loading import find_position_encoding
from ..evaluation.report import Measurement, Report, typed_command
from .callbacks import (
    AlreadyTrained,
    AverageWeights,
    EndTrained,
    Listener,
    Progress,
    StopOnSignal,
    TellEpoch,
    format_seconds,
)
from .checkpoints import (
    DiskFullError,
    damaged_files,
    free_bytes,
    is_disk_full,
    list_checkpoints,
    lock_run,
    remove_incomplete,
    step_of,
    write_atomically,
)
from .parameter_groups import position_parameter_names
from .run_config import Run, TrainingConfig
from .strict_config import ConfigError, read_yaml
from .trainer import RowStatistics, ZooTrainer, check_machine, is_sharded, training_arguments

logger = logging.getLogger(__name__)
RUN_FILE, RESULTS = "run.yaml", "results.json"
_CHANGEABLE = {"output", "report_to", "log_every", "keep_checkpoints", "threads", "workers"}
"""Fields of the training section that may differ when a run is continued."""
_DRY_STEPS, _DRY_EVALUATIONS = 2, 4


@dataclass
class Job:
    """A run, ready to start."""

    run: Run  # its configuration
    model: nn.Module  # to be trained
    train: Any  # data set
    validation: Any | None  # data set, None for none
    collate: Callable[..., Any]  # joins items to batches
    statistics: RowStatistics  # how validation rows are measured
    metric: str  # which figure selects the best model
    units_an_example: float  # tokens of a block, or 1 for pictures
    unit: str  # "tokens" or "images"
    save: Callable[[Path], None]  # writes the finished model to a folder, loadable by its libraries
    measure: Callable[[], list[Measurement]]  # as the run's evaluation section says
    validation_collate: Callable[..., Any] | None = None  # joins validation items, by default as `collate`

    @property
    def config(self) -> TrainingConfig:
        """The training section."""
        return self.run.training

    def examples_a_step(self, processes: int) -> int:
        """Returns how many examples all processes see in an optimizer step."""
        return self.config.batch_size * self.config.accumulate * processes

    def total_steps(self, processes: int = 1) -> int:
        """Returns how many optimizer steps the run has."""
        if self.config.steps is not None:
            return self.config.steps
        batches = math.ceil(len(self.train) / (self.config.batch_size * processes))
        return math.ceil(self.config.epochs * math.ceil(batches / self.config.accumulate))


@dataclass(frozen=True)
class Outcome:
    """How a job ended: `stopped` by which signal, None for finished."""

    folder: Path
    steps: int
    stopped: int | None
    seconds_a_step: float | None
    measurements: list[Measurement]


def is_main_process() -> bool:
    """Tells whether this process speaks for all."""
    return int(os.environ.get("RANK", "0")) == 0


def build_trainer(
    job: Job, total_steps: int | None = None, listener: Listener | None = None, show_bar: bool = False
) -> tuple[ZooTrainer, Progress, StopOnSignal]:
    """Makes the trainer of a job with its callbacks.

    Args:
        job: what to train.
        total_steps: end after so many steps, whatever the configuration says (a dry run).
        listener: is told about steps instead of the log.
        show_bar: show transformers' progress bar instead of the log.

    Raises:
        ConfigError: the model or the machine cannot do what the configuration asks for.
    """
    from transformers import PrinterCallback

    check_machine(job.config)
    if job.config.threads is not None:
        torch.set_num_threads(job.config.threads)
    if job.config.freeze_position_encoder:
        encoding = find_position_encoding(job.model)
        if encoding is None:
            raise ConfigError(
                "training.freeze_position_encoder: this model has no position encoding of seqpe_zoo"
            )
        encoding.requires_grad_(False)
    trainer = ZooTrainer(
        job.config,
        training_arguments(job.config, job.metric, total_steps, show_bar),
        job.statistics,
        job.validation_collate,
        # Sharding takes a model apart for good; the job's own gets the finished weights in the end.
        model=copy.deepcopy(job.model) if is_sharded(job.config) else job.model,
        train_dataset=job.train,
        eval_dataset=job.validation,
        data_collator=job.collate,
    )
    trainer.remove_callback(PrinterCallback)
    units = job.examples_a_step(trainer.args.world_size) * job.units_an_example
    progress, stop = Progress(units, job.unit, listener), StopOnSignal()
    if trainer.average is not None:
        trainer.add_callback(AverageWeights(trainer.average))
    for callback in (EndTrained(), TellEpoch(), progress, stop):
        trainer.add_callback(callback)
    return trainer, progress, stop


def prepare_folder(job: Job, resume: bool, overwrite: bool) -> Path | None:
    """Checks the run folder; returns the checkpoint to continue from, None for a fresh start.

    Raises:
        ConfigError: the folder holds another run, one that was not to be continued, or one that cannot be.
    """
    import yaml

    folder = Path(job.config.output)
    if overwrite and not resume:
        for path in list_checkpoints(folder):
            shutil.rmtree(path)
        # What is left of the earlier run must not stand beside the new one's configuration.
        for path in [folder / RUN_FILE, folder / RESULTS, *folder.glob("model*.safetensors*")]:
            path.unlink(missing_ok=True)
    for name in remove_incomplete(folder):
        logger.warning("%s was not finished and is ignored", name)
    checkpoints = list_checkpoints(folder)
    if not resume and (checkpoints or (folder / RESULTS).is_file()):
        where = f"at step {step_of(checkpoints[-1])}" if checkpoints else "that is finished"
        raise ConfigError(
            f"{folder} holds a run {where}: continue it with --resume, start again with --overwrite, or give "
            "another training.output"
        )
    if not checkpoints and (folder / RESULTS).is_file():
        raise ConfigError(
            f"{folder} holds a finished run without checkpoints, which cannot be continued: start again with "
            "--overwrite, or give another training.output"
        )
    stored = folder / RUN_FILE
    ours = json.loads(json.dumps(asdict(job.run)))
    if checkpoints and stored.is_file():
        _refuse_other_run(read_yaml(stored), ours, folder)
    checkpoint = _last_intact(checkpoints)
    write_atomically(stored, yaml.safe_dump(ours, sort_keys=False))
    return checkpoint


def _last_intact(checkpoints: list[Path]) -> Path | None:
    """Returns the last checkpoint whose files are as they were written, and removes later ones."""
    damage = []
    for path in reversed(checkpoints):
        files = damaged_files(path)
        if not files:
            for later in checkpoints[checkpoints.index(path) + 1 :]:
                shutil.rmtree(later)
            return path
        damage.append(f"{path.name} is damaged ({', '.join(files)} not as written)")
        logger.warning("%s and is not used", damage[-1])
    if damage:
        raise ConfigError(
            f"no checkpoint can be continued: {'; '.join(damage)}. Start again with --overwrite"
        )
    return None


def _refuse_other_run(stored: dict[str, Any], ours: dict[str, Any], folder: Path) -> None:
    """Refuses to continue a run under another configuration; where it is written may differ."""
    changed = []
    for section in ("task", "model", "data", "augmentation", "training"):
        old, new = stored.get(section), ours.get(section)
        if isinstance(old, dict) and isinstance(new, dict):
            keys = [key for key in {*old, *new} - _CHANGEABLE if old.get(key) != new.get(key)]
            changed += [f"{section}.{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in sorted(keys)]
        elif old != new:
            changed.append(f"{section} was {old!r}, is {new!r}")
    if changed:
        raise ConfigError(f"{folder} holds a run of another configuration: {'; '.join(changed)}")


def run_job(
    job: Job,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener | None = None,
    command: str | None = None,
    show_bar: bool = False,
) -> Outcome:
    """Carries a job out: train, save the model to the run folder, measure it.

    Args:
        job: what to do.
        resume: continue from the last complete checkpoint, or start where there is none.
        overwrite: remove the checkpoints of an earlier run.
        listener: is told about steps instead of the log.
        command: how results say that they were made.
        show_bar: show transformers' progress bar instead of the log.

    Raises:
        ConfigError: the run folder does not allow it.
        DiskFullError: there is no room for a checkpoint.
    """
    if not is_main_process():
        return _run_job(job, resume, None, listener, command, show_bar)
    with lock_run(Path(job.config.output)):
        checkpoint = prepare_folder(job, resume, overwrite)
        return _run_job(job, resume, checkpoint, listener, command, show_bar)


def _run_job(
    job: Job,
    resume: bool,
    checkpoint: Path | None,
    listener: Listener | None,
    command: str | None,
    show_bar: bool,
) -> Outcome:
    folder = Path(job.config.output)
    trainer, progress, stop = build_trainer(job, listener=listener, show_bar=show_bar)
    trainer.accelerator.wait_for_everyone()
    if not is_main_process() and resume:  # the main process has removed all others
        checkpoint = next(reversed(list_checkpoints(folder, complete=True)), None)
    for line in describe_job(job, trainer):
        logger.info(line)
    if checkpoint is not None:
        logger.info("continuing from %s", checkpoint.name)
    details: dict[str, Any] = {}
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        details = {"seconds_a_step": progress.seconds_a_step(), "speed": progress.speed()}
    except AlreadyTrained:
        logger.info("all %d steps are done; the model is saved and measured", trainer.state.global_step)
        details = {"seconds_a_step": None, "speed": progress.speed(), **_details_before(folder)}
    finally:
        stop.restore()
    steps = trainer.state.global_step
    if stop.asked is not None and steps < trainer.state.max_steps:
        logger.info("stopped at step %d as asked; continue with --resume", steps)
        return Outcome(folder, steps, stop.asked, details["seconds_a_step"], [])
    if trainer.state.best_model_checkpoint is not None and job.config.select_best:
        best = Path(trainer.state.best_model_checkpoint).name
        logger.info("the best model is that of %s, %s", best, trainer.state.best_metric)
    trainer.put_final_weights(job.model)
    measurements: list[Measurement] = []
    if trainer.is_world_process_zero():
        _save_finished(job, folder)
        job.model.eval()
        measurements = job.measure()
        report = Report(command or typed_command(), job.config.seed, measurements)
        report.details = {
            "steps": steps,
            **details,
            "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
            "log": trainer.state.log_history[-200:],
            "best_step": trainer.state.best_global_step,
            "best_metric": trainer.state.best_metric,
        }
        report.write(folder)
    # The other processes do not wait: measuring may take longer than they may wait for each other.
    return Outcome(folder, steps, None, details["seconds_a_step"], measurements)


def _details_before(folder: Path) -> dict[str, Any]:
    """Returns how fast a run was, as its results say when they were written before."""
    try:
        details = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["details"]
        return {key: details[key] for key in ("seconds_a_step", "speed")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _save_finished(job: Job, folder: Path) -> None:
    """Writes the model beside the run folder's other files, each file appearing whole.

    Raises:
        DiskFullError: there is no room; the last checkpoint holds the same weights.
    """
    scratch = folder / ".finished"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir()
        job.save(scratch)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if not is_disk_full(error):
            raise
        raise DiskFullError(
            f"the disk of {folder} is full: training has ended, but the model could not be written. Make "
            "room and start again with --resume, which goes on from the last checkpoint"
        ) from error
    for path in sorted(scratch.iterdir()):
        target = folder / path.name
        if path.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        path.replace(target)
    scratch.rmdir()


def describe_job(job: Job, trainer: ZooTrainer) -> list[str]:
    """Returns what will be done, in sentences."""
    parameters = sum(p.numel() for p in job.model.parameters())
    names = position_parameter_names(job.model)
    of_positions = sum(p.numel() for name, p in job.model.named_parameters() if name in names)
    trained = sum(p.numel() for p in job.model.parameters() if p.requires_grad)
    examples = job.examples_a_step(trainer.args.world_size)
    steps, units = job.total_steps(trainer.args.world_size), examples * job.units_an_example
    return [
        f"{parameters:,} parameters, {of_positions:,} of them of the position encoding, {trained:,} trained",
        f"{steps:,} steps of {examples:,} examples ({units:,.0f} {job.unit}), {steps * units:,.0f} "
        f"{job.unit} in all",
    ]


def dry_run(job: Job) -> list[str]:
    """Runs two steps and part of an evaluation, writes nothing, and says what the whole run will cost."""
    asked = job.config
    with tempfile.TemporaryDirectory() as scratch:
        quiet = replace(asked, output=scratch, evaluate_every=0, select_best=False)
        job.run = replace(job.run, training=quiet)
        trainer, progress, stop = build_trainer(job, _DRY_STEPS, listener=lambda *_: None)
        trainer.args.save_strategy = "no"
        trainer.train()
        stop.restore()
        if stop.asked == signal.SIGINT:
            raise KeyboardInterrupt
        evaluation = math.nan if job.validation is None else _time_of_evaluation(trainer, job.validation)
    steps, seconds = job.total_steps(trainer.args.world_size), progress.seconds_a_step()
    lines = describe_job(job, trainer)
    lines.append(
        f"{seconds:.3f} s a step ({progress.speed()}): {format_seconds(steps * seconds)} for training"
    )
    if not math.isnan(evaluation):
        times = steps // asked.evaluate_every if asked.evaluate_every else 0
        whole = format_seconds(steps * seconds + times * evaluation)
        lines.append(
            f"{format_seconds(evaluation)} for an evaluation, {times:,} of them: {whole} in all, without "
            "what is measured at the end"
        )
    size, free = trainer.checkpoint_bytes() / 2**20, free_bytes(Path(asked.output)) / 2**20
    kept = asked.keep_checkpoints + 2  # the best, and the new one before the oldest goes
    lines.append(
        f"{size:,.0f} MiB a checkpoint, at most {kept * size:,.0f} MiB on the disk, where {free:,.0f} MiB "
        "are free"
    )
    return lines


def _time_of_evaluation(trainer: ZooTrainer, validation: Any) -> float:
    """Evaluates a few batches and returns how long all of them would take."""
    count = min(_DRY_EVALUATIONS * trainer.args.eval_batch_size * trainer.args.world_size, len(validation))
    if isinstance(validation, torch.utils.data.IterableDataset):
        part: Any = list(itertools.islice(iter(validation), count))
    else:
        part = torch.utils.data.Subset(validation, range(count))
    begun = time.perf_counter()
    trainer.evaluate(part)
    return (time.perf_counter() - begun) * len(validation) / count
