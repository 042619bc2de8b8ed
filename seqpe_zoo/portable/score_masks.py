"""Position scores in the mask of causal attention.

A mask with scores is a matrix of all queries and keys for each head, and the CPU's kernel visits all of it,
hidden or not. So queries attend in chunks, each of which gets the keys up to its last query: half of the
matrix. Where scores depend on distances alone, the last chunk holds those of all others.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .attention import score_bias
from .stages import AttentionStage
from .tracing import is_traced

LARGEST_SCORE_MASK = 12 * 2048 * 2048
"""Largest matrix of position scores, in elements, that sdpa gets as its mask; above it heads are widened.

For factors as wide as a head: measured on a CPU, 12 heads of 64, attention over 1,024 tokens takes 1.1 times
as long with scores in the mask (see `QUERY_CHUNK`) and 1.6 times in wider heads; over 2,048 tokens 1.3 and
1.6 times, over 4,096 tokens 1.4 and 1.5 times. At 2,048 the visible half of the matrix takes 100 MB, once for
all layers that share their projection; at 16,384 tokens it would take 6.5 GB.
"""

QUERY_CHUNK = 256
"""Queries that attend at a time where scores are in a causal mask: at 2,048 tokens 1.3 times the time without
scores instead of 1.9 times."""


class ScorePlan(NamedTuple):
    """How a forward pass adds position scores; without any, all is as in GPT-2."""

    keys: list[Tensor | None]
    """Terms of all keys for each layer; None where the layer has nothing to add."""
    widen: bool = False
    """Whether layers add scores by wider heads and not in the mask."""
    shared: tuple[Tensor, Tensor] | None = None
    """Factors that all layers share; they are merged into the mask before the first layer."""
    keys_before: int | None = None
    """Keys before the first query, where the mask is causal and queries attend in chunks."""
    by_distance: bool = False
    """Whether the shared scores depend on distances alone, and nothing but the order of tokens hides keys."""


def fits_in_mask(elements: int, share: float = 1.0) -> bool:
    """Whether a mask of so many scores costs less than wider heads do.

    Args:
        elements: of the whole mask.
        share: width of the factors as a part of a head's; narrow ones cost less in heads.
    """
    return elements <= LARGEST_SCORE_MASK * min(1.0, share)


def keys_before_chunks(
    length: int, past_length: int | Tensor, key_length: int, attention_mask: Tensor | None
) -> int | None:
    """Returns the number of keys before the first query where queries may attend in chunks, else None.

    Chunks are measured without gradients. A mask of four dimensions is the caller's own and need not be
    causal, and a sliding cache has forgotten its first keys.
    """
    if length <= QUERY_CHUNK or is_traced() or torch.is_grad_enabled() or not isinstance(past_length, int):
        return None
    is_causal = attention_mask is None or attention_mask.ndim == 2
    return past_length if is_causal and key_length >= past_length + length else None


def one_chunk(length: int) -> int:
    """Queries of the largest of `causal_chunks`."""
    return min(QUERY_CHUNK, length)


def add_scores_to_mask(
    factors: tuple[Tensor, Tensor],
    scaling: float,
    mask: Tensor | None,
    dtype: torch.dtype,
    lowest_score: float = -math.inf,
) -> Tensor:
    """Multiplies position scores out and hides what the mask hides; returns (1 or B, H, Lq, Lk), additive."""
    bias = score_bias(factors, scaling, factors[0].dtype)
    bias = bias if bias.ndim == 4 else bias.unsqueeze(0)
    is_ours = not torch.is_grad_enabled() and not is_traced()  # the matrix is large, and nobody else has it
    if lowest_score > -math.inf:
        bias = bias.clamp_(min=lowest_score) if is_ours else bias.clamp(min=lowest_score)
    if torch.finfo(dtype).eps > torch.finfo(bias.dtype).eps:
        bias = _relative_to_largest(bias, mask)
    bias = bias.to(dtype)
    if mask is None:
        return bias
    if mask.dtype != torch.bool:
        return bias + mask
    lowest = torch.finfo(dtype).min  # not minus infinity: the rows of padding would become NaN
    if is_ours and mask.shape[0] <= bias.shape[0]:
        return bias.masked_fill_(~mask, lowest)
    return torch.where(mask, bias, lowest)


def causal_chunks(length: int, before: int) -> Iterator[tuple[slice, int]]:
    """Divides queries into chunks, each with the number of keys up to its last query.

    Args:
        length: number of queries.
        before: number of keys before the first of them.
    """
    for start in range(0, length, QUERY_CHUNK):
        stop = min(start + QUERY_CHUNK, length)
        yield slice(start, stop), before + stop


def add_scores(
    stage: AttentionStage,
    factors: tuple[Tensor, Tensor],
    scaling: float,
    mask: Tensor | None,
    dtype: torch.dtype,
    before: int | None,
) -> Tensor | list[Tensor]:
    """`add_scores_to_mask`; where `before` is known, for each of `causal_chunks`."""
    if before is None:
        return add_scores_to_mask(factors, scaling, mask, dtype, stage.lowest_score)
    f_q, f_k = factors
    masks = []
    for asking, keys in causal_chunks(f_q.shape[-2], before):
        visible = None if mask is None else mask[..., asking, :keys]
        part = (f_q[..., asking, :], f_k[..., :keys, :])
        masks.append(add_scores_to_mask(part, scaling, visible, dtype, stage.lowest_score))
    return masks


def scores_by_distance(
    stage: AttentionStage, factors: tuple[Tensor, Tensor], scaling: float, dtype: torch.dtype, before: int
) -> list[Tensor]:
    """Causal masks for each of `causal_chunks`, of scores that depend on distances alone.

    All are parts of the last one, which is as small as one chunk and stays in the cache.
    """
    f_q, f_k = factors
    length, all_keys = f_q.shape[-2], f_k.shape[-2]
    rows = one_chunk(length)
    visible = torch.ones(1, 1, rows, all_keys, dtype=torch.bool, device=f_q.device).tril(all_keys - rows)
    last = add_scores_to_mask((f_q[..., -rows:, :], f_k), scaling, visible, dtype, stage.lowest_score)
    return [
        last[..., rows - (asking.stop - asking.start) :, all_keys - keys :]
        for asking, keys in causal_chunks(length, before)
    ]


def attend_in_chunks(
    attend: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masks: list[Tensor],
    before: int,
) -> Tensor:
    """Calls an attention function of transformers, without its module, for each of `causal_chunks`.

    Returns:
        (B, L, H, D), as such functions do.
    """
    attended = [
        attend(q[:, :, asking], k[:, :, :keys], v[:, :, :keys], visible)[0]
        for (asking, keys), visible in zip(causal_chunks(q.shape[2], before), masks, strict=True)
    ]
    return torch.cat(attended, dim=1)


def _relative_to_largest(bias: Tensor, mask: Tensor | None) -> Tensor:
    """Subtracts from each row its largest visible score, which attention does not notice.

    ALiBi's scores grow with the position of the key. Far into a text half precision rounds neighbours to one
    number; relative to the nearest key they are small where they matter.
    """
    lowest = torch.finfo(bias.dtype).min
    visible = bias
    if mask is not None:
        visible = torch.where(mask, bias, lowest) if mask.dtype == torch.bool else bias + mask
    largest = visible.amax(dim=-1, keepdim=True)
    return bias - largest.masked_fill(largest < lowest / 2, 0.0)  # but not where all is hidden
