"""What FSDP and DeepSpeed must be told, where each process holds a part of the weights."""

from __future__ import annotations

import os

from torch import nn

from ..evaluation.model_loading import find_position_encoding
from .run_config import TrainingConfig


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
