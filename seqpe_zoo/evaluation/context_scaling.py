"""The usual remedies for contexts longer than those of training, applied to a trained model for one size.

Rotary encodings are rescaled as their users do before they train longer: "linear" divides all positions by
the factor (position interpolation, Chen et al. 2023), "ntk" slows low frequencies only, as if the base were
larger (the dynamic NTK scaling of transformers). "stretch" makes SeqPE interpolate the vectors of its
training context. Nothing is trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data.errors import DataError
from .model_loading import find_position_encoding


def scale_context(model: nn.Module, scaling: str, factor: float) -> None:
    """Changes in place how a model reads positions, for contexts `factor` times as long as those of training.

    The model is then for measuring, not for saving: its weights do not tell of the change.

    Args:
        model: with a rotary encoding, its own or one of ours, or with SeqPE.
        scaling: "linear", "ntk" or "stretch".
        factor: 1 and less change nothing.

    Raises:
        DataError: the model has no encoding that could be scaled so.
    """
    encoding = find_position_encoding(model)
    rotary = next((part for part in model.modules() if hasattr(part, "inv_freq")), None)
    kind = "" if encoding is None else encoding.name
    if scaling == "stretch" and kind == "seqpe":
        encoding.interpolates, encoding.has_table = factor > 1, encoding.has_table and factor <= 1
        encoding.clear_cache()
    elif scaling in ("linear", "ntk") and kind.startswith("rope"):
        _scale_rotation(encoding, scaling, max(1.0, factor))
    elif scaling in ("linear", "ntk") and encoding is None and rotary is not None:
        rotary.inv_freq = rotary.inv_freq * rotary_factors(scaling, max(1.0, factor), rotary.inv_freq.numel())
    else:
        what = f"position encoding {kind!r}" if kind else "no rotary embedding"
        raise DataError(
            f"scaling={scaling!r} does not suit a model with {what}: 'linear' and 'ntk' are for rotary "
            "encodings, 'stretch' is for seqpe"
        )


def rotary_factors(scaling: str, factor: float, count: int) -> Tensor:
    """What the frequencies of `count` pairs, the fastest first, are multiplied by.

    "ntk" leaves the fastest pair as it is and slows the slowest by the factor. For frequencies
    base ** (-i / count) this is a base of base * factor ** (count / (count - 1)).
    """
    if scaling == "linear":
        return torch.full((count,), 1 / factor)
    return factor ** -(torch.arange(count) / max(1, count - 1))


def _scale_rotation(encoding: Any, scaling: str, factor: float) -> None:
    """`scale_context` for our own rotary encodings."""
    pairs = encoding.host.head_dim // (2 if encoding.name == "rope" else 4)
    if scaling == "linear":
        encode = encoding.encode
        encoding.encode = lambda positions, limit=None: encode(positions.float() / factor, limit)
    elif hasattr(encoding, "freqs"):  # learned, in two halves whose magnitudes start alike
        with torch.no_grad():
            encoding.freqs.mul_(rotary_factors("ntk", factor, pairs).repeat(2).to(encoding.freqs.device))
    else:
        base = float(encoding.options.base * factor ** (pairs / max(1, pairs - 1)))
        encoding.options = replace(encoding.options, base=base)
    encoding.clear_cache()
