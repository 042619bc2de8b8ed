"""GELU by its tanh approximation, as GPT-2 has it, in few passes over memory.

With z = sqrt(2 / pi) * (x + 0.044715 * x ** 3) it is x / 2 * (1 + tanh(z)), which transformers' `gelu_new`
computes as written, in eight passes. It is x * sigmoid(2 * z) too, and on a CPU PyTorch has a faster sigmoid
than tanh.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .tracing import is_plain_cpu

LINEAR = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715 * LINEAR
"""Factors of x and of its third power in 2 * z."""

TANH_GELU_NAME = "gelu_pytorch_tanh"
"""What transformers calls it where PyTorch computes it; what is computed here differs by rounding.

Its `gelu_new`, the same function, is left to it, so that models with GPT-2's weights give GPT-2's logits to
the last bit.
"""


def gelu_tanh(x: Tensor) -> Tensor:
    """Returns the tanh approximation of GELU, elementwise."""
    if torch.jit.is_scripting():
        return F.gelu(x, approximate="tanh")
    return _gelu_eager(x)


@torch.jit.unused
def _gelu_eager(x: Tensor) -> Tensor:
    # With gradients PyTorch's kernel, which rounds a little differently, is the better one: it keeps x alone.
    # For a few thousand elements it is quicker by microseconds too, but what a chunk of positions gives must
    # not depend on its size.
    if not is_plain_cpu(x) or (torch.is_grad_enabled() and x.requires_grad):
        return F.gelu(x, approximate="tanh")
    linear = x.new_full((), LINEAR)
    return torch.addcmul(linear, x, x, value=CUBIC).mul_(x).sigmoid_().mul_(x)


class TanhGELU(nn.Module):
    """`gelu_tanh` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Applies it."""
        return gelu_tanh(x)
