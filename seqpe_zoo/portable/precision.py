"""Computing in the precision of the numbers at hand, whatever autocast is on."""

import contextlib
from typing import ContextManager

import torch


def without_autocast(device: torch.device) -> ContextManager[object]:
    """Switches autocast off, where it is on: positions are large numbers, which half precision rounds."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
