"""What a run needs of its machine: packages, a GPU, several processes. Asked before any data is read."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

from .run_config import TrainingConfig
from .strict_config import ConfigError

LOGGERS = ("tensorboard", "wandb", "trackio")


def check_machine(config: TrainingConfig) -> None:
    """Refuses a run that this machine cannot carry out.

    Raises:
        ConfigError: a package is not installed, there is no GPU, or too few processes.
    """
    import torch

    if config.precision == "fp16" and not torch.cuda.is_available():
        raise ConfigError("training.precision=fp16 needs a GPU, and there is none; bf16 and fp32 do not")
    if config.fsdp and int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise ConfigError(
            "training.fsdp shards the model over several processes, and there is one: start with accelerate "
            "launch --num_processes N, or leave it out"
        )
    if config.deepspeed is not None:
        _check_deepspeed(Path(config.deepspeed))
    for name in config.report_to:
        if name not in LOGGERS:
            raise ConfigError(f"training.report_to: {name!r} must be one of {', '.join(LOGGERS)}")
        if find_spec(name) is None:
            raise ConfigError(f"training.report_to: {name} is not installed: pip install {name}")


def _check_deepspeed(path: Path) -> None:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"training.deepspeed: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"training.deepspeed: {path} is not JSON: {error}") from error
    if find_spec("deepspeed") is None:
        raise ConfigError(
            "training.deepspeed needs the package deepspeed, which is not installed: pip install deepspeed"
        )
