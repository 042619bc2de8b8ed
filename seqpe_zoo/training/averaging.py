"""An exponential moving average of the weights, kept beside the model and part of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

AVERAGED = "averaged.safetensors"


class WeightAverage:
    """Averages the trainable parameters of a model; buffers are those of the model.

    Args:
        model: the model at its start.
        decay: weight of the old average at a step, at most; it is smaller in the first steps, as in timm.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.values: dict[str, Tensor] = {
            name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Moves the average towards the model, after an optimizer step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in model.named_parameters():
            if name in self.values:
                value = self.values[name] = self.values[name].to(parameter.device)
                value.lerp_(parameter.detach().to(value.dtype), 1.0 - decay)

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Puts the average into the model for a while."""
        kept = {name: p.detach().clone() for name, p in model.named_parameters() if name in self.values}
        self.copy_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name in kept:
                        parameter.copy_(kept[name])

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Puts the average into the model for good."""
        for name, parameter in model.named_parameters():
            if name in self.values:
                parameter.copy_(self.values[name])

    def save(self, path: Path) -> None:
        """Writes the average."""
        save_file(
            {name: value.contiguous() for name, value in self.values.items()},
            path,
            {"updates": str(self.updates)},
        )

    def load(self, path: Path) -> None:
        """Reads the average back."""
        from safetensors import safe_open

        self.values = load_file(path)
        with safe_open(path, framework="pt") as file:
            self.updates = int((file.metadata() or {}).get("updates", "0"))
