"""Whether a graph is being made of what runs, or what runs is being transformed."""

from typing import Any

import torch
from torch import Tensor


def is_traced(x: Any = None) -> bool:
    """Whether torch.compile, torch.jit.trace or torch.fx records what runs.

    Then nothing may be kept for later, and nothing may depend on the values of tensors.

    Args:
        x: something that the code works on; torch.fx is known by it alone.
    """
    return isinstance(x, torch.fx.Proxy) or torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_transformed() -> bool:
    """Whether a transform of torch.func, or forward-mode differentiation, looks at every operation.

    Then operations must be those that PyTorch knows the transforms of. It has no public way to ask.
    """
    in_forward_mode: int = torch.autograd.forward_ad._current_level
    return in_forward_mode >= 0 or bool(torch._C._are_functorch_transforms_active())


def is_plain_cpu(*tensors: Tensor) -> bool:
    """Whether all are float32 on a CPU and nobody looks on, so that a faster way may replace operations."""
    for x in tensors:
        if type(x) is not Tensor or x.device.type != "cpu" or x.dtype != torch.float32:
            return False
    return not is_traced() and not is_transformed()
