"""Attention with position scores, on `scaled_dot_product_attention`.

Position scores come as low-rank factors (see `stages.AttentionStage.score_factors`). There are two exact
ways to add them: as a bias matrix, or by widening queries and keys, (q ++ f_q) (k ++ f_k)^T, which never
holds an L x L matrix.
"""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .precision import without_autocast

LARGEST_BIAS = 64 * 2**20
"""Largest bias matrix, in elements, that is built; longer sequences widen queries and keys instead."""


def score_bias(factors: Tuple[Tensor, Tensor], scale: float, dtype: torch.dtype) -> Tensor:
    """Multiplies factors out to the bias (..., H, Lq, Lk) that is added to scaled scores."""
    f_q, f_k = factors
    if torch.jit.is_scripting():
        bias = torch.matmul(f_q * scale, f_k.transpose(-2, -1))
    else:
        with without_autocast(f_q.device):
            bias = torch.matmul(f_q * scale, f_k.transpose(-2, -1))
    return bias.to(dtype)


def widen_heads(
    q: Tensor, k: Tensor, v: Tensor, factors: Tuple[Tensor, Tensor]
) -> Tuple[Tensor, Tensor, Tensor]:
    """Appends the factors to queries and keys, and zeros to values.

    Values are padded, because kernels for long sequences want heads of one width. All get a multiple of 8
    columns.
    """
    batch, heads, q_length, width = q.shape
    f_q = factors[0].to(q.dtype).expand(batch, heads, q_length, -1)
    f_k = factors[1].to(q.dtype).expand(batch, heads, k.shape[2], -1)
    padding = -(width + f_q.shape[-1]) % 8
    # Written in one pass each: these are the largest tensors of a long text.
    zeros = q.new_zeros(1).expand(batch, heads, 1, f_q.shape[-1] + padding)
    q = torch.cat([q, f_q, zeros[..., :padding].expand(-1, -1, q_length, -1)], dim=-1)
    k = torch.cat([k, f_k, zeros[..., :padding].expand(-1, -1, k.shape[2], -1)], dim=-1)
    return q, k, torch.cat([v, zeros.expand(-1, -1, v.shape[2], -1)], dim=-1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Optional[Tuple[Tensor, Tensor]],
    mask: Optional[Tensor] = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    largest_bias: int = LARGEST_BIAS,
) -> Tensor:
    """Scaled dot-product attention whose scores are (q k^T + f_q f_k^T) / sqrt(D).

    Args:
        q: (B, H, Lq, D).
        k: (B, H, Lk, D).
        v: (B, H, Lk, D).
        factors: f_q (..., H, Lq, R) and f_k (..., H or 1, Lk, R), or None.
        mask: bool or additive, broadcastable to (B, H, Lq, Lk).
        is_causal: whether a query sees only keys up to its own index; not together with `mask`.
        dropout_p: dropout of the probabilities.
        largest_bias: largest bias matrix that is built. An argument, because TorchScript does not see
            globals.

    Returns:
        (B, H, Lq, D).
    """
    if factors is None:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
    scale = q.shape[-1] ** -0.5
    f_q = factors[0]
    rows = f_q.shape[0] if f_q.ndim == 4 else 1
    if rows * q.shape[1] * q.shape[2] * k.shape[2] > largest_bias:
        width = v.shape[-1]
        q, k, v = widen_heads(q, k, v, factors)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale)[..., :width]
    bias = score_bias(factors, scale, q.dtype)
    if is_causal:
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        bias = bias.masked_fill(~visible, float("-inf"))
    if mask is not None:
        bias = bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask
    if bias.ndim == 3:
        bias = bias.unsqueeze(0)
    return F.scaled_dot_product_attention(q, k, v, bias, dropout_p, False, scale=scale)
