"""`transformers.Trainer` with what the runs of the paper need, and nothing that only our models could use.

Own parameter groups and separate clipping of the position encoder; exact validation figures whatever the
number of processes; both position objectives in the log; checkpoints that are complete or do not count; an
averaged copy of the weights. Models are trained by their own `forward`: it returns the loss.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import DistributedType
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel
from transformers import EvalPrediction, Trainer, TrainingArguments, set_seed

from ..evaluation.model_loading import find_position_encoding
from .checkpoints import (
    DiskFullError,
    check_room,
    is_disk_full,
    list_checkpoints,
    mark_complete,
    rotate,
    step_of,
)
from .parameter_groups import build_parameter_groups, position_parameter_names
from .run_config import TrainingConfig
from .strict_config import ConfigError

PARTS = ("position_distance_loss", "position_ood_loss")
LOGGERS = ("tensorboard", "wandb", "trackio")
AVERAGED = "averaged.safetensors"
RowStatistics = Callable[[nn.Module, dict[str, Tensor]], Tensor]
"""Maps a model and a batch to sums for each row (B, 3): negative log-likelihood, right answers, targets."""


def text_statistics(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Row statistics of a language model; targets are `shift_labels` or the shifted `labels`."""
    targets = inputs.get("shift_labels")
    if targets is None:
        targets = F.pad(inputs["labels"], (0, 1), value=-100)[:, 1:]
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    logits = model(input_ids=inputs["input_ids"], attention_mask=mask, use_cache=False).logits
    nll = F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
    right = (logits.argmax(-1) == targets).sum(1)
    return torch.stack([nll.double().sum(1), right.double(), (targets != -100).double().sum(1)], dim=1)


def image_statistics(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Row statistics of a classifier."""
    logits = model(pixel_values=inputs["pixel_values"])["logits"].float()
    labels = inputs["labels"]
    nll = F.cross_entropy(logits, labels, reduction="none")
    right = logits.argmax(-1) == labels
    return torch.stack([nll.double(), right.double(), torch.ones_like(nll).double()], dim=1)


def summarise_rows(prediction: EvalPrediction) -> dict[str, float]:
    """Turns row statistics into the metrics of an evaluation."""
    nll, right, targets = prediction.predictions.sum(axis=0)
    mean = float(nll / targets)
    return {
        "nll": mean,
        "perplexity": math.exp(min(mean, 700.0)),
        "accuracy": float(100.0 * right / targets),
    }


def schedule_factor(
    step: int, total: int, warmup: int, shape: str = "linear", start: float = 0.0, end: float = 0.0
) -> float:
    """Returns the share of the peak learning rate at a step, counted from 0.

    The schedules of transformers have no rate at which warm-up starts, and a lowest rate for cosine only.
    """
    if step < warmup:
        return start + (1.0 - start) * step / warmup
    if shape == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    falling = 1.0 - progress if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return end + (1.0 - end) * falling


def check_machine(config: TrainingConfig) -> None:
    """Refuses a run that this machine cannot carry out, before any data is read.

    Raises:
        ConfigError: a package is not installed, there is no GPU, or too few processes.
    """
    if config.precision == "fp16" and not torch.cuda.is_available():
        raise ConfigError("training.precision=fp16 needs a GPU, and there is none; bf16 and fp32 do not")
    if config.fsdp and int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise ConfigError(
            "training.fsdp shards the model over several processes, and there is one: start with accelerate "
            "launch --num_processes N, or leave it out"
        )
    packages = {f"report_to: {name}": name for name in config.report_to}
    if config.deepspeed is not None:
        packages["deepspeed"] = "deepspeed"
        try:
            json.loads(Path(config.deepspeed).read_text(encoding="utf-8"))
        except OSError as error:
            reason = f"{config.deepspeed} cannot be read: {error.strerror}"
            raise ConfigError(f"training.deepspeed: {reason}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"training.deepspeed: {config.deepspeed} is not JSON: {error}") from error
    for option, name in packages.items():
        if name not in (*LOGGERS, "deepspeed"):
            raise ConfigError(f"training.report_to: {name!r} must be one of {', '.join(LOGGERS)}")
        if find_spec(name) is None:
            raise ConfigError(f"training.{option} is not installed: pip install {name}")


def is_sharded(config: TrainingConfig) -> bool:
    """Tells whether processes hold parts of the weights, by the recipe or by the settings of accelerate."""
    asked = [os.environ.get(f"ACCELERATE_USE_{name}", "").lower() for name in ("FSDP", "DEEPSPEED")]
    return config.fsdp or config.deepspeed is not None or "true" in asked


def layers_to_shard(model: nn.Module) -> list[str]:
    """Returns the class names of the layers that are gathered one at a time.

    These are the parts that a model declares indivisible and really has, without its position encoding: that
    is called by other methods than `forward`, before which FSDP gathers, and stays with the whole model.
    """
    there = {type(module).__name__ for module in model.modules()}
    encoding = find_position_encoding(model)
    apart = set() if encoding is None else {type(module).__name__ for module in encoding.modules()}
    declared = getattr(model, "_no_split_modules", None) or ()
    return sorted((set(declared) & there) - apart)


def average_weights(model: nn.Module, decay: float) -> AveragedModel:
    """Returns an exponential moving average of a model's weights; its decay is smaller in the first steps."""

    def moved(average: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
        count = int(updates)
        return average.lerp(current.to(average.dtype), 1.0 - min(decay, (1 + count) / (10 + count)))

    return AveragedModel(model, avg_fn=moved).requires_grad_(False).eval()


def training_arguments(
    config: TrainingConfig, metric: str, total_steps: int | None = None, show_bar: bool = False
) -> TrainingArguments:
    """Translates a run configuration for transformers; schedule, groups and rotation are our own."""
    evaluates = config.evaluate_every > 0
    return TrainingArguments(
        output_dir=config.output,
        max_steps=total_steps if total_steps is not None else config.steps or -1,
        num_train_epochs=config.epochs or 1.0,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.evaluation_batch_size or config.batch_size,
        gradient_accumulation_steps=config.accumulate,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_epsilon=config.epsilon,
        # Without a limit of the host the position encoder's own must still be reached.
        max_grad_norm=config.clip or (math.inf if config.position_clip > 0 else 0.0),
        bf16=config.precision == "bf16",
        fp16=config.precision == "fp16",
        seed=config.seed,
        data_seed=config.seed,
        logging_steps=config.log_every,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=config.evaluate_every if evaluates else None,
        save_strategy="steps",
        save_steps=config.save_every,
        save_total_limit=None,
        metric_for_best_model=metric,
        greater_is_better=metric == "accuracy",
        dataloader_num_workers=config.workers,
        gradient_checkpointing=config.gradient_checkpointing,
        torch_compile=config.compile,
        report_to=list(config.report_to) or "none",
        deepspeed=config.deepspeed,
        fsdp=True if config.fsdp else None,
        fsdp_config=dict(config.fsdp_config) if config.fsdp else None,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        label_names=["labels"],
        disable_tqdm=not show_bar,
        logging_nan_inf_filter=False,
    )


class ZooTrainer(Trainer):
    """Trains a model under a `TrainingConfig`.

    Args:
        config: the run.
        arguments: its translation for transformers.
        statistics: how validation rows are measured.
        validation_collate: joins validation items, by default as training items.
        **kwargs: of `transformers.Trainer`: model, train_dataset, eval_dataset, data_collator, ...
    """

    def __init__(
        self,
        config: TrainingConfig,
        arguments: TrainingArguments,
        statistics: RowStatistics,
        validation_collate: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.run_config, self.row_statistics = config, statistics
        self.validation_collate = validation_collate
        self._parts: dict[str, list[Tensor]] = {}
        super().__init__(args=arguments, compute_metrics=summarise_rows, **kwargs)
        if config.fsdp and not self.is_fsdp_enabled:
            raise ConfigError("training.fsdp: accelerate shards over GPUs, and these processes have none")
        if self.is_fsdp_enabled and self.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap is None:
            layers = layers_to_shard(self.model)
            self.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = layers
        self.position_names = position_parameter_names(self.model)
        encoding = find_position_encoding(self.model)
        is_frozen = encoding is not None and not any(p.requires_grad for p in encoding.parameters())
        self.frozen_encoding = encoding if is_frozen else None
        self.average = None if config.ema_decay is None else average_weights(self.model, config.ema_decay)
        if self.args.process_index > 0:  # as the release; else all processes would drop out the same units
            set_seed(config.seed + self.args.process_index)

    # Optimizer.

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            groups = build_parameter_groups(self.model if model is None else model, self.run_config)
            self.optimizer = kind(groups, **options)
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        if self.lr_scheduler is None:
            config = self.run_config
            warmup = config.warmup_steps or 0
            if config.warmup_epochs:
                warmup = round(config.warmup_epochs * num_training_steps / config.epochs)
            start, end = (rate / config.learning_rate for rate in (config.warmup_start, config.minimum_rate))

            def factor(step: int) -> float:
                return schedule_factor(step, num_training_steps, warmup, config.schedule, start, end)

            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        if self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            return super()._clip_grad_norm(model)  # its engine clips all gradients together
        self.accelerator.unscale_gradients()
        position, host = [], []
        for name, parameter in self.accelerator.unwrap_model(model).named_parameters():
            (position if name in self.position_names else host).append(parameter)
        if position and self.run_config.position_clip > 0:
            nn.utils.clip_grad_norm_(position, self.run_config.position_clip)
        norm = nn.utils.clip_grad_norm_(host, self.run_config.clip or math.inf)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    # Loss and log.

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        if self.frozen_encoding is not None:
            self.frozen_encoding.eval()  # no dropout in it, no objectives, and its tables serve all steps
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        for name in PARTS:
            part = outputs.get(name) if hasattr(outputs, "get") else None
            if part is not None:
                self._parts.setdefault(name, []).append(part.detach())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            for name, parts in self._parts.items():
                logs[name] = float(torch.stack(parts).mean())
            self._parts = {}
        super().log(logs, start_time)

    # Validation.

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        kept = self.data_collator
        self.data_collator = self.validation_collate or kept
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = kept

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            rows = self.row_statistics(model if self.average is None else self.average.module, inputs)
        loss = rows[:, 0].sum() / rows[:, 2].sum().clamp(min=1)
        return loss.float(), rows, rows[:, 2]

    # Checkpoints.

    def checkpoint_bytes(self) -> int:
        """Estimates the size of a checkpoint: weights, and two moments of those that train."""
        size = trained = 0
        for parameter in self.model.parameters():
            size += parameter.numel() * parameter.element_size()
            trained += parameter.numel() * 8 if parameter.requires_grad else 0
        # FSDP writes its own copy of the weights beside the one that others can load.
        copies = 2 if self.average is not None or self.is_fsdp_enabled else 1
        return copies * size + trained

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        run = Path(self._get_output_dir(trial=trial))
        folder = run / f"checkpoint-{self.state.global_step}"
        try:
            if self.args.should_save:
                check_room(run, self.checkpoint_bytes() + 2**20)
                if folder.exists():
                    shutil.rmtree(folder)
            super()._save_checkpoint(model, trial)
            if self.average is not None and self.args.should_save:
                save_model(self.average.module, str(folder / AVERAGED))
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                mark_complete(folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            if isinstance(error, DiskFullError) or not is_disk_full(error):
                raise
            shutil.rmtree(folder, ignore_errors=True)
            kept = [path.name for path in list_checkpoints(run)]
            raise DiskFullError(
                f"the disk of {run} is full: checkpoint-{self.state.global_step} could not be written and "
                f"was removed; kept: {', '.join(kept) or 'none'}. Make room and start again with --resume"
            ) from error
        if self.args.should_save:
            rotate(run, self.run_config.keep_checkpoints, [self.state.best_model_checkpoint])

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Does not call missing what shares its memory with loaded weights, as tied embeddings do."""
        weights = self.model.state_dict()
        missing = set(load_result.missing_keys)
        loaded = {value.data_ptr() for name, value in weights.items() if name not in missing}
        lost = [name for name in missing if weights[name].data_ptr() not in loaded]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=lost))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.average is not None:
            folder = Path(resume_from_checkpoint)
            load_model(self.average.module, folder / AVERAGED)
            self.average.n_averaged.fill_(step_of(folder))

    def put_final_weights(self, model: nn.Module) -> None:
        """Leaves in a model what the run is to give: the best, averaged or last weights.

        The weights of a sharded model are put together on the main process; all processes must ask for them.
        """
        if self.run_config.select_best and self.state.best_model_checkpoint is not None:
            self._load_best_model()
            if self.average is not None:
                load_model(self.average.module, Path(self.state.best_model_checkpoint) / AVERAGED)
        if self.average is not None:
            model.load_state_dict(self.average.module.state_dict())
        elif is_sharded(self.run_config):
            weights = self.accelerator.get_state_dict(self.model_wrapped)
            if self.is_world_process_zero():
                model.load_state_dict(weights)
                model.to(self.args.device)


def stack_items(items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Joins items of equal shapes to a batch."""
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}
