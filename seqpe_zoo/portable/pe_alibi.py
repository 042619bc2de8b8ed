"""Attention with linear biases (Press et al. 2021), for causal language models.

A score loses slope * distance. As softmax ignores what is equal for all keys of a query, adding slope * key
position is the same, and this has rank one, so no L x L matrix is built. Positions enter as 256 * high +
low: both parts are exact in bfloat16 up to position 65,535, where the position itself would not be.
"""

import math
from dataclasses import dataclass
from typing import List, Optional, Tuple

import torch
from torch import Tensor

from .pe_base import PositionEncoding
from .stages import AttentionStage


@dataclass(frozen=True)
class ALiBiOptions:
    """Options of `alibi`.

    Attributes:
        scaled: whether the bias is divided by sqrt(D) together with the scores, as in the SeqPE paper and its
            release, whose slopes are therefore 8 times weaker at D = 64. The original ALiBi, the default, is
            not.
    """

    scaled: bool = False


class ALiBi(PositionEncoding):
    """Lowers attention scores in proportion to distance; extends to any length."""

    name = "alibi"
    supported_dims = frozenset({1})
    needs_causal = True
    Options = ALiBiOptions

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        low = positions % 256
        return torch.cat([positions - low, low], dim=-1).to(torch.float32)  # (..., L, 2)

    def make_stage(self) -> AttentionStage:
        scale = 1.0 if self.options.scaled else math.sqrt(self.head_dim)
        return LinearBiasStage([slope * scale for slope in alibi_slopes(self.num_heads)])


class LinearBiasStage(AttentionStage):
    """Adds slope * (key position - query position) to the scores of each head."""

    def __init__(self, slopes: List[float]) -> None:
        super().__init__(has_scores=True, lowest_score=-80.0)
        self.by_distance = True
        self.slopes = slopes

    def score_factors(self, terms_q: Tensor, terms_k: Tensor) -> Optional[Tuple[Tensor, Tensor]]:
        slopes = torch.tensor(self.slopes, dtype=terms_q.dtype, device=terms_q.device)
        own = terms_q.sum(dim=-1, keepdim=True)
        f_q = torch.cat([torch.ones_like(terms_q), -own], dim=-1).unsqueeze(-3)  # (..., 1, Lq, 3)
        f_k = torch.cat([terms_k, torch.ones_like(terms_k[..., :1])], dim=-1)
        return f_q * slopes[:, None, None], f_k.unsqueeze(-3)


def alibi_slopes(num_heads: int) -> List[float]:
    """Returns the slopes of Press et al.: a geometric series, or two interleaved unless H is 2 ** x."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8.0 * (head + 1) / power) for head in range(power)]
    if power < num_heads:
        between = [2 ** (-8.0 * (head + 1) / (2 * power)) for head in range(2 * power)]
        slopes += between[0::2][: num_heads - power]
    return slopes
