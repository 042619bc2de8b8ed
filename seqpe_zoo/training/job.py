"""A job: everything that a run needs, built and checked, and how it is carried out.

Builders in `text_jobs.py` and `image_jobs.py` make jobs from run configurations; `run_job` trains, resumes,
saves and measures, the same for all of them.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from ..evaluation.model_loading import find_position_encoding
from ..evaluation.report import Measurement, Report, typed_command
from .callbacks import AverageWeights, FindBest, Progress, StopOnSignal, TellEpoch, format_seconds
from .checkpoints import (
    DiskFullError,
    is_disk_full,
    last_complete_checkpoint,
    list_checkpoints,
    remove_incomplete,
)
from .machine_checks import check_machine
from .parameter_groups import freeze_position_encoding, position_parameter_names
from .run_config import TrainingConfig
from .sharding import is_sharded
from .strict_config import ConfigError, config_to_dict, read_yaml
from .trainer import RowStatistics, ZooTrainer

logger = logging.getLogger(__name__)
RUN_FILE = "run.yaml"
_DRY_STEPS = 2
_DRY_EVALUATIONS = 4


@dataclass
class Job:
    """A run, ready to start.

    Attributes:
        run: its configuration.
        model: to be trained.
        train: data set.
        validation: data set, None for none.
        collate: joins items to batches.
        statistics: how validation rows are measured.
        metric: which figure selects the best model.
        units_an_example: tokens of a block, or 1 for pictures.
        unit: "tokens" or "images".
        save: writes the finished model to a folder, loadable by its libraries.
        measure: measures the finished model as the run's evaluation section says.
        validation_collate: joins validation items, by default as `collate`.
    """

    run: Any
    model: nn.Module
    train: Any
    validation: Any | None
    collate: Callable[..., Any]
    statistics: RowStatistics
    metric: str
    units_an_example: float
    unit: str
    save: Callable[[Path], None]
    measure: Callable[[], list[Measurement]]
    validation_collate: Callable[..., Any] | None = None

    @property
    def config(self) -> TrainingConfig:
        """The training section."""
        return self.run.training


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    folder: Path
    steps: int
    stopped: bool
    seconds_a_step: float
    measurements: list[Measurement]


class JobTrainer(ZooTrainer):
    """A trainer whose validation items may be joined otherwise than its training items."""

    validation_collate: Callable[..., Any] | None = None

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        if self.validation_collate is None:
            return super().get_eval_dataloader(eval_dataset)
        kept, self.data_collator = self.data_collator, self.validation_collate
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = kept


def build_trainer(
    job: Job, total_steps: int | None = None, **kwargs: Any
) -> tuple[JobTrainer, Progress, StopOnSignal]:
    """Makes the trainer of a job with its callbacks.

    Raises:
        ConfigError: the model or the machine cannot do what the configuration asks for.
    """
    from transformers import PrinterCallback

    listener = kwargs.pop("listener", None)
    check_machine(job.config)
    if job.config.freeze_position_encoder:
        if find_position_encoding(job.model) is None:
            raise ConfigError(
                "training.freeze_position_encoder: this model has no position encoding of seqpe_zoo"
            )
        freeze_position_encoding(job.model)
    trainer = JobTrainer(
        job.config,
        job.statistics,
        job.metric,
        total_steps,
        # Sharding takes a model apart for good; the job's own gets the finished weights (_put_final_weights).
        model=copy.deepcopy(job.model) if is_sharded(job.config) else job.model,
        train_dataset=job.train,
        eval_dataset=job.validation,
        data_collator=job.collate,
        **kwargs,
    )
    if job.config.fsdp and not trainer.is_fsdp_enabled:
        raise ConfigError("training.fsdp: accelerate shards over GPUs, and these processes have none")
    trainer.validation_collate = job.validation_collate
    trainer.remove_callback(PrinterCallback)
    examples = job.config.batch_size * job.config.accumulate * trainer.args.world_size
    progress = Progress(examples * job.units_an_example, job.unit, listener)
    stop = StopOnSignal()
    if trainer.average is not None:
        trainer.add_callback(AverageWeights(trainer.average))
    trainer.add_callback(TellEpoch())
    trainer.add_callback(FindBest())
    trainer.add_callback(progress)
    trainer.add_callback(stop)
    return trainer, progress, stop


def prepare_folder(job: Job, resume: bool, overwrite: bool) -> Path | None:
    """Checks the run folder; returns the checkpoint to continue from, None for a fresh start.

    Raises:
        ConfigError: the folder holds another run, or a run that was not to be continued.
    """
    import yaml

    folder = Path(job.config.output)
    if folder.is_file():
        raise ConfigError(f"training.output={folder} is a file; give a folder")
    if overwrite and not resume:
        for path in list_checkpoints(folder):
            shutil.rmtree(path)
    checkpoint = last_complete_checkpoint(folder)
    if checkpoint is not None and not resume:
        raise ConfigError(
            f"{folder} holds a run at step {checkpoint.name.split('-')[1]}: continue it with --resume, "
            "start again with --overwrite, or give another training.output"
        )
    stored = folder / RUN_FILE
    ours = yaml.safe_load(yaml.safe_dump(_plain(config_to_dict(job.run))))
    if checkpoint is not None and stored.is_file():
        _refuse_other_run(read_yaml(stored), ours, folder)
    for name in remove_incomplete(folder):
        logger.warning("%s was not finished and is ignored", name)
    folder.mkdir(parents=True, exist_ok=True)
    stored.write_text(yaml.safe_dump(ours, sort_keys=False), encoding="utf-8")
    return checkpoint


def run_job(
    job: Job,
    resume: bool = False,
    overwrite: bool = False,
    listener: Callable[[int, int, dict[str, Any]], None] | None = None,
    command: str | None = None,
) -> Outcome:
    """Carries a job out: train, save the model to the run folder, measure it.

    Args:
        job: what to do.
        resume: continue from the last complete checkpoint, or start where there is none.
        overwrite: remove the checkpoints of an earlier run.
        listener: is told about steps instead of the terminal.
        command: how results say that they were made.

    Raises:
        ConfigError: the run folder does not allow it.
        DiskFullError: there is no room for a checkpoint.
    """
    if job.config.threads is not None:
        torch.set_num_threads(job.config.threads)
    is_main = int(os.environ.get("RANK", "0")) == 0
    checkpoint = prepare_folder(job, resume, overwrite) if is_main else None
    trainer, progress, stop = build_trainer(job, listener=listener)
    trainer.accelerator.wait_for_everyone()
    if not is_main and resume:
        checkpoint = last_complete_checkpoint(Path(job.config.output))
    for line in describe_job(job, trainer):
        logger.info(line)
    if checkpoint is not None:
        logger.info("continuing from %s", checkpoint.name)
    result = trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    folder = Path(job.config.output)
    stopped = stop.asked and result.global_step < trainer.state.max_steps
    if stopped:
        logger.info("stopped at step %d as asked; continue with --resume", result.global_step)
        return Outcome(folder, result.global_step, True, progress.seconds_a_step(), [])
    _put_final_weights(trainer, job)
    measurements: list[Measurement] = []
    if trainer.is_world_process_zero():
        _save_finished(job, folder)
        job.model.eval()
        measurements = job.measure()
        report = Report(command or typed_command(), job.config.seed, measurements)
        report.details = {
            "steps": result.global_step,
            "seconds_a_step": progress.seconds_a_step(),
            "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
            "speed": progress.speed(),
            "log": trainer.state.log_history[-200:],
            "best_step": trainer.state.best_global_step,
            "best_metric": trainer.state.best_metric,
        }
        report.write(folder)
    # The other processes do not wait: measuring may take longer than they may wait for each other.
    return Outcome(folder, result.global_step, False, progress.seconds_a_step(), measurements)


def describe_job(job: Job, trainer: ZooTrainer) -> list[str]:
    """Returns what will be done, in sentences."""
    parameters = sum(p.numel() for p in job.model.parameters())
    names = position_parameter_names(job.model)
    of_positions = sum(p.numel() for name, p in job.model.named_parameters() if name in names)
    trained = sum(p.numel() for p in job.model.parameters() if p.requires_grad)
    examples = job.config.batch_size * job.config.accumulate * trainer.args.world_size
    steps = total_steps(job, trainer.args.world_size)
    return [
        f"{parameters:,} parameters, {of_positions:,} of them of the position encoding, {trained:,} trained",
        f"{steps:,} steps of {examples:,} examples ({examples * job.units_an_example:,.0f} {job.unit}), "
        f"{steps * examples * job.units_an_example:,.0f} {job.unit} in all",
    ]


def total_steps(job: Job, processes: int = 1) -> int:
    """Returns how many optimizer steps the run has."""
    if job.config.steps is not None:
        return job.config.steps
    batches = math.ceil(len(job.train) / (job.config.batch_size * processes))
    return math.ceil(job.config.epochs * math.ceil(batches / job.config.accumulate))


def dry_run(job: Job) -> list[str]:
    """Runs two steps and part of an evaluation, writes nothing, and says what the whole run will cost."""
    import tempfile

    if job.config.threads is not None:
        torch.set_num_threads(job.config.threads)
    asked = job.config
    with tempfile.TemporaryDirectory() as scratch:
        quiet = replace(asked, output=scratch, evaluate_every=0, select_best=False, save_every=10**9)
        job.run = replace(job.run, training=quiet)
        trainer, progress, _ = build_trainer(job, _DRY_STEPS, listener=lambda *_: None)
        trainer.args.save_strategy = "no"
        trainer.train()
        evaluation = math.nan if job.validation is None else _time_of_evaluation(trainer, job.validation)
    steps = total_steps(job, trainer.args.world_size)
    seconds = progress.seconds_a_step()
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
    lines.append(_disk_cost(trainer, Path(asked.output), asked.keep_checkpoints))
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


def _disk_cost(trainer: ZooTrainer, folder: Path, keep: int) -> str:
    size = trainer.checkpoint_bytes()
    kept = keep + 2  # the best, and the new one before the oldest goes
    while not folder.exists():
        folder = folder.absolute().parent
    free = shutil.disk_usage(folder).free
    return (
        f"{size / 2**20:,.0f} MiB a checkpoint, at most {kept * size / 2**20:,.0f} MiB on the disk, where "
        f"{free / 2**20:,.0f} MiB are free"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _refuse_other_run(stored: dict[str, Any], ours: dict[str, Any], folder: Path) -> None:
    """Refuses to continue a run under another configuration; where it is written may differ."""
    changed = []
    for section in ("task", "model", "data", "augmentation", "training"):
        old, new = stored.get(section), ours.get(section)
        if isinstance(old, dict) and isinstance(new, dict):
            free = {"output", "report_to", "log_every", "keep_checkpoints", "threads", "workers"}
            keys = [key for key in {*old, *new} if old.get(key) != new.get(key) and key not in free]
            changed += [f"{section}.{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in sorted(keys)]
        elif old != new:
            changed.append(f"{section} was {old!r}, is {new!r}")
    if changed:
        raise ConfigError(f"{folder} holds a run of another configuration: {'; '.join(changed)}")


def _put_final_weights(trainer: ZooTrainer, job: Job) -> None:
    """Leaves in the model what the run is to give: the best, averaged or last weights."""
    best = trainer.state.best_model_checkpoint
    if job.config.select_best and best is not None:
        logger.info("the best model is that of %s, %s", Path(best).name, trainer.state.best_metric)
        trainer.load_best_weights()
    if trainer.average is not None:
        trainer.average.copy_to(job.model)
    if is_sharded(job.config):
        weights = trainer.full_weights()
        if trainer.is_world_process_zero():
            job.model.load_state_dict(weights)
            job.model.to(trainer.args.device)


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
