"""Whether a graph is being made of what runs."""

from typing import Any

import torch


def is_traced(x: Any = None) -> bool:
    """Whether torch.compile, torch.jit.trace or torch.fx records what runs.

    Then nothing may be kept for later, and nothing may depend on the values of tensors.

    Args:
        x: something that the code works on; torch.fx is known by it alone.
    """
    return isinstance(x, torch.fx.Proxy) or torch.compiler.is_compiling() or torch.jit.is_tracing()
