"""Which parameters the optimizer treats alike, as in the release.

The position encoding is a group of its own, without weight decay; W_PE inside it is decayed as the host's
matrices are; norms, biases and tokens are never decayed. With layer decay, rates fall towards the input; the
position encoding feeds every layer directly and keeps the full rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from ..evaluation.model_loading import find_position_encoding

_LAYER = re.compile(r"(?:^|\.)(?:h|blocks|layers?)\.(\d+)\.")
_FIRST = ("wte", "wpe", "patch_embed", "cls_token", "reg_token", "dist_token", "embeddings")


def position_parameter_names(model: nn.Module) -> set[str]:
    """Returns the names of the parameters of the model's position encoding; empty for models of others."""
    encoding = find_position_encoding(model)
    if encoding is None:
        return set()
    mine = {id(parameter) for parameter in encoding.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in mine}


def build_parameter_groups(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float,
    position_learning_rate: float | None = None,
    decay_position_projection: bool = True,
    layer_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """Sorts the trainable parameters into groups.

    Returns:
        Groups with `name`, `params`, `lr` and `weight_decay`, without empty ones; all parameters are in one
        group.
    """
    positions = position_parameter_names(model)
    depth = number_of_layers(name for name, _ in model.named_parameters())
    groups: dict[tuple[str, float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_matrix = parameter.ndim >= 2 and not name.endswith(("_token", "pos_embed"))
        if name in positions:
            is_projection = ".projection." in f".{name}"
            decayed = is_projection and is_matrix and decay_position_projection
            rate = learning_rate if position_learning_rate is None else position_learning_rate
            kind = "position projection" if is_projection else "position encoder"
        else:
            decayed, kind = is_matrix, "host"
            rate = learning_rate * layer_decay ** (depth + 1 - layer_of(name, depth))
        decay = weight_decay if decayed else 0.0
        groups.setdefault((kind, rate, decay), []).append(parameter)
    return [
        {"name": kind, "params": members, "lr": rate, "weight_decay": decay}
        for (kind, rate, decay), members in groups.items()
    ]


def number_of_layers(names: Iterable[str]) -> int:
    """Returns how many numbered layers parameter names speak of, encoder layers of positions aside."""
    found = [int(match[1]) for name in names if "wpe" not in name for match in [_LAYER.search(name)] if match]
    return max(found) + 1 if found else 0


def layer_of(name: str, depth: int) -> int:
    """Returns 0 for what comes before the layers, 1..depth for layers, depth + 1 for what comes after."""
    match = _LAYER.search(name)
    if match:
        return int(match[1]) + 1
    return 0 if any(part in _FIRST for part in name.split(".")) else depth + 1


def freeze_position_encoding(model: nn.Module) -> int:
    """Stops training of the position encoding; returns how many numbers it has."""
    encoding = find_position_encoding(model)
    if encoding is None:
        return 0
    for parameter in encoding.parameters():
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in encoding.parameters())
