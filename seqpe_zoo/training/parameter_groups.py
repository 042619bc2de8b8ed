"""Which parameters the optimizer treats alike, as in the release.

The position encoding is a group of its own, without weight decay; W_PE inside it is decayed as the host's
matrices are; norms, biases and tokens are never decayed. With layer decay, rates fall towards the input; the
position encoding feeds every layer directly and keeps the full rate.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from ..evaluation.model_loading import find_position_encoding
from .run_config import TrainingConfig

_LAYER = re.compile(r"(?:^|\.)(?:h|blocks|layers?)\.(\d+)\.")
_FIRST = (
    "wte embed_tokens embed_in embeddings pos_embed patch_embed cls_token reg_token dist_token mask_token"
).split()


def position_parameter_names(model: nn.Module) -> set[str]:
    """Returns the names of the parameters of the model's position encoding; empty for models of others."""
    encoding = find_position_encoding(model)
    if encoding is None:
        return set()
    mine = {id(parameter) for parameter in encoding.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in mine}


def build_parameter_groups(model: nn.Module, config: TrainingConfig) -> list[dict[str, Any]]:
    """Sorts the trainable parameters into groups with `name`, `params`, `lr` and `weight_decay`."""
    positions = position_parameter_names(model)
    rate_of_positions = config.position_learning_rate
    if rate_of_positions is None:
        rate_of_positions = config.learning_rate
    of_host = [name for name, _ in model.named_parameters() if name not in positions]
    depth = max((int(match[1]) + 1 for match in map(_LAYER.search, of_host) if match), default=0)
    groups: dict[tuple[str, float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_matrix = parameter.ndim >= 2 and not name.endswith(("_token", "pos_embed"))
        if name not in positions:
            kind, decayed = "host", is_matrix
            rate = config.learning_rate * config.layer_decay ** (depth + 1 - layer_of(name, depth))
        elif ".projection." in name:
            kind, rate = "position projection", rate_of_positions
            decayed = is_matrix and config.decay_position_projection
        else:
            kind, rate, decayed = "position encoder", rate_of_positions, False
        groups.setdefault((kind, rate, config.weight_decay if decayed else 0.0), []).append(parameter)
    return [
        {"name": kind, "params": members, "lr": rate, "weight_decay": decay}
        for (kind, rate, decay), members in groups.items()
    ]


def layer_of(name: str, depth: int) -> int:
    """Returns 0 for what comes before the layers, 1..depth for layers, depth + 1 for what comes after."""
    match = _LAYER.search(name)
    if match:
        return int(match[1]) + 1
    return 0 if any(part in _FIRST for part in name.split(".")) else depth + 1
