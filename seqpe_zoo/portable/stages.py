"""What attention does with positions: the parameter-free stages that layers hold.

A stage sees queries and keys (B, H, L, D) and the terms of its layer (..., L, T), which the encoding
prepared once for the whole forward pass. Terms hold a query half and a key half for each position head; one
position head serves all attention heads by broadcasting. Stages have no parameters, so any number of layers
can hold one without adding a key to a state dict, and they may be scripted.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from .tracing import is_traced
from .training_product import can_multiply, multiply_query_key


def split_terms(terms: Tensor, num_heads: int) -> Tuple[Tensor, Tensor]:
    """Splits terms (..., L, 2 * H * D) into the query's and the key's part, each (..., H, L, D)."""
    # One unbind, whose gradient is one stack; two selects would each fill a tensor with zeros in backward.
    halves = terms.unflatten(-1, [2, num_heads, terms.shape[-1] // (2 * num_heads)]).unbind(-3)
    return halves[0].transpose(-3, -2), halves[1].transpose(-3, -2)


def align_terms(qk: Tensor, terms: Tensor) -> Tuple[Tensor, Tensor]:
    """Views queries and keys side by side (B, L, 2 * H * D), and terms, in shapes that broadcast."""
    if terms.dtype != qk.dtype:
        terms = terms.to(qk.dtype)
    if terms.shape[-1] == qk.shape[-1]:
        return qk, terms
    head = terms.shape[-1] // 2  # one position head for all heads
    return qk.unflatten(-1, [2, -1, head]), terms.unflatten(-1, [2, 1, head])


class AttentionStage(nn.Module):
    """The stage of an encoding that does nothing in attention."""

    def __init__(
        self, has_scores: bool = False, overwrites: bool = False, lowest_score: float = -float("inf")
    ) -> None:
        super().__init__()
        self.has_scores = has_scores
        """Whether `score_factors` adds to the scores; then attention must know the positions of all keys."""
        self.overwrites = overwrites
        """Whether the stage is one operation per element, which `place_in_` does where q and k lie."""
        self.folds_to_shift = False
        """Whether `fold` gives no factor: then the shift serves as the bias of the product."""
        self.takes_rows = False
        """Whether `place_in_training` can find the row of an example among terms itself."""
        self.by_distance = False
        """Whether scores depend only on how far query and key are from each other."""
        self.lowest_score = lowest_score
        """Scores, after scaling, that may be raised to this: nothing is attended to there.

        Scores that fall without end leave probabilities near the smallest of all numbers, with which Intel's
        CPUs compute far more slowly.
        """

    def on_query_key(self, q: Tensor, k: Tensor, terms: Tensor) -> Tuple[Tensor, Tensor]:
        """Changes queries and keys of the same tokens, before keys enter a cache."""
        return q, k

    @torch.jit.unused
    def place_in_(self, qk: Tensor, terms: Tensor) -> None:
        """`on_query_key` of a stage that `overwrites`, for q and k side by side that nobody else needs.

        Both change in one pass, (B, L, 2 * H * D): without gradients that costs next to nothing.
        """

    @torch.jit.unused
    def fold(self, bias: Tensor, terms: Tensor) -> Tuple[Optional[Tensor], Tensor]:
        """What a stage that `overwrites` makes of the bias of a projection to q, k and v.

        Args:
            bias: (3 * H * D), side by side.
            terms: (L, T).

        Returns:
            A factor (L, 2 * H * D) and a shift likewise: queries and keys (x W + bias), placed, are x W *
            factor + shift, and values are left to the caller. Or no factor, and a shift (L, 3 * H * D) of all
            three: a stage that `folds_to_shift`.
        """
        raise AssertionError(f"{type(self).__name__} does not overwrite")

    @torch.jit.unused
    def can_place_in_training(self, x: Tensor, columns: int, terms: Tensor, rows: Optional[Tensor]) -> bool:
        """Whether the stage has a quicker way in training, `place_in_training`.

        Args:
            x: (B, L, .), the projection or what is to be projected.
            columns: 2 * H * D, those of queries and keys.
            terms: (L, T), or (R, L, T) with `rows`.
            rows: for each example its row among R, (B,).
        """
        return False

    @torch.jit.unused
    def place_in_training(
        self,
        qkv: Tensor,
        terms: Tensor,
        rows: Optional[Tensor],
        num_heads: int,
        bias: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """Splits (B, L, 3 * H * D) and does `on_query_key`.

        Args:
            qkv: queries, keys and values, side by side.
            terms: as in `can_place_in_training`.
            rows: likewise.
            num_heads: H.
            bias: (2 * H * D), to be added to queries and keys first.

        Returns:
            q, k and v, (B, H, L, D).
        """
        raise AssertionError(f"{type(self).__name__} has no other way in training")

    def score_factors(self, terms_q: Tensor, terms_k: Tensor) -> Optional[Tuple[Tensor, Tensor]]:
        """Returns f_q (..., H, Lq, R) and f_k (..., H or 1, Lk, R) whose product is added to q k^T.

        The sum is then scaled by 1/sqrt(D) as usual. A low rank R keeps the L x L matrix out of memory:
        (q ++ f_q) (k ++ f_k)^T = q k^T + f_q f_k^T.
        """
        return None


class MultiplyStage(AttentionStage):
    """AttnMul: (q * e_q) (k * e_k)^T."""

    def __init__(self, num_heads: int) -> None:
        super().__init__(overwrites=True)
        self.takes_rows = True
        self.num_heads = num_heads

    def on_query_key(self, q: Tensor, k: Tensor, terms: Tensor) -> Tuple[Tensor, Tensor]:
        e_q, e_k = split_terms(terms.to(q.dtype), self.num_heads)
        return q * e_q, k * e_k

    @torch.jit.unused
    def place_in_(self, qk: Tensor, terms: Tensor) -> None:
        qk, terms = align_terms(qk, terms)
        qk.mul_(terms)

    @torch.jit.unused
    def can_place_in_training(self, x: Tensor, columns: int, terms: Tensor, rows: Optional[Tensor]) -> bool:
        is_ours = type(self).on_query_key is MultiplyStage.on_query_key
        return is_ours and can_multiply(x, columns, terms, rows)

    @torch.jit.unused
    def place_in_training(
        self,
        qkv: Tensor,
        terms: Tensor,
        rows: Optional[Tensor],
        num_heads: int,
        bias: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        return multiply_query_key(qkv, terms, rows, num_heads, bias)

    @torch.jit.unused
    def fold(self, bias: Tensor, terms: Tensor) -> Tuple[Optional[Tensor], Tensor]:
        of_query_key = bias[: bias.shape[0] // 3 * 2]
        factor = torch.ones_like(of_query_key).repeat(terms.shape[0], 1)
        self.place_in_(factor, terms)
        return factor, factor * of_query_key


class AddStage(AttentionStage):
    """AttnSum: (q + e_q) (k + e_k)^T."""

    def __init__(self, num_heads: int) -> None:
        super().__init__(overwrites=True)
        self.folds_to_shift = True
        self.num_heads = num_heads

    def on_query_key(self, q: Tensor, k: Tensor, terms: Tensor) -> Tuple[Tensor, Tensor]:
        e_q, e_k = split_terms(terms.to(q.dtype), self.num_heads)
        return q + e_q, k + e_k

    @torch.jit.unused
    def place_in_(self, qk: Tensor, terms: Tensor) -> None:
        qk, terms = align_terms(qk, terms)
        qk.add_(terms)

    @torch.jit.unused
    def fold(self, bias: Tensor, terms: Tensor) -> Tuple[Optional[Tensor], Tensor]:
        shift = bias.repeat(terms.shape[0], 1)
        self.place_in_(shift[:, : bias.shape[0] // 3 * 2], terms)
        return None, shift


class BiasStage(AttentionStage):
    """AttnBias: q k^T + c e_q e_k^T, inside the division by sqrt(D) as in the release."""

    def __init__(self, num_heads: int, scale: float = 1.0) -> None:
        super().__init__(has_scores=True)
        self.num_heads = num_heads
        self.scale = scale

    def score_factors(self, terms_q: Tensor, terms_k: Tensor) -> Optional[Tuple[Tensor, Tensor]]:
        e_q, _ = split_terms(terms_q, self.num_heads)
        _, e_k = split_terms(terms_k, self.num_heads)
        return (e_q * self.scale if self.scale != 1.0 else e_q), e_k


class RotateStage(AttentionStage):
    """RoPE: rotates neighbouring pairs (x0, x1), (x2, x3), ... by angles that grow with the position.

    Terms are the angles' cosines and sines. Pairs are interleaved as in RoFormer, timm and the authors'
    release; checkpoints that pair halves (GPT-NeoX, Llama) need their projections permuted. Terms are (...,
    L, H * D): for each head D / 2 cosines, D / 2 sines.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def on_query_key(self, q: Tensor, k: Tensor, terms: Tensor) -> Tuple[Tensor, Tensor]:
        cos, sin = split_rotation(terms.to(q.dtype), self.num_heads)
        if not torch.jit.is_scripting() and _pairs_are_complex(q) and _pairs_are_complex(k):
            turn = torch.complex(cos, sin)
            return _rotate_complex(q, turn), _rotate_complex(k, turn)
        return rotate_pairs(q, cos, sin), rotate_pairs(k, cos, sin)


def join_rotation(angles: Tensor) -> Tensor:
    """Turns angles (..., L, H, D/2) into terms (..., L, H * D)."""
    return torch.cat([angles.cos(), angles.sin()], dim=-1).flatten(-2)


def split_rotation(terms: Tensor, num_heads: int) -> Tuple[Tensor, Tensor]:
    """Inverse of `join_rotation`: cosines and sines, each (..., H, L, D/2)."""
    pairs = terms.shape[-1] // (2 * num_heads)
    by_head = terms.unflatten(-1, [num_heads, 2, pairs]).transpose(-4, -3)  # (..., H, L, 2, D/2)
    return by_head.select(-2, 0), by_head.select(-2, 1)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs of x (..., L, D) counter-clockwise."""
    pairs = x.unflatten(-1, [x.shape[-1] // 2, 2])
    even, odd = pairs.select(-1, 0), pairs.select(-1, 1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


@torch.jit.unused
def _pairs_are_complex(x: Any) -> bool:
    """Whether pairs can be read as complex numbers: outside of graphs, in full precision, side by side."""
    if is_traced(x) or x.dtype != torch.float32:
        return False
    steps = [x.storage_offset(), *x.stride()[:-1]]
    return bool(x.stride(-1) == 1 and all(step % 2 == 0 for step in steps))


@torch.jit.unused
def _rotate_complex(x: Tensor, turn: Tensor) -> Tensor:
    """The same numbers as `rotate_pairs` in one pass over memory, on a CPU seven times as fast."""
    pairs = torch.view_as_complex(x.unflatten(-1, [x.shape[-1] // 2, 2]))
    return torch.view_as_real(pairs * turn).flatten(-2)
