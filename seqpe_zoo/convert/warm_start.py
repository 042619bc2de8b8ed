"""Starts SeqPE from what a trained model knows of positions: its table or its rotation.

The encoder is fitted to the table, or to the sines and cosines of the rotation, by gradient steps and a
closed-form correction of its last layer. For integrations in attention W_PE then starts near what it
replaces:

- "mul": factors of 1.
- "sum" and "bias" in place of a table: what the layer's own query and key weights make of a position in the
  residual stream, W_q diag(gamma) (p - mean(p)) / sigma, where layer norm divides by sigma. It leaves out
  what p does to values and, for "bias", how content and position meet; a fine-tune learns the rest.
- "sum" and "bias" in place of a rotation R_i: rotated queries are on average R_i mean(q), which is linear in
  sines and cosines of i. Their product with those of the keys is what the rotation adds to scores on average
  over contents; what it adds for single contents is lost.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..portable.encoder import fit_encoder
from ..portable.positions import range_positions

RIDGE = 1e-3
"""Variance that is added to the diagonal of regressions, whose inputs are normalised to about 1. A smaller
one fits better, with weights so large that a fine-tune's first steps destroy the fit."""

FIT_BATCH = 1024
"""Positions a step of a fit; all where there are no more."""


class LayerWeights(NamedTuple):
    """What W_PE of a layer starts from."""

    query: Tensor
    """(C, C), rows are outputs."""
    key: Tensor
    gamma: Tensor
    """(C,), the weight of the layer norm before attention."""
    sigma: float
    """Mean deviation of the residual stream there."""


def fit_to_table(
    encoder: Any,
    positions: Tensor,
    table: Tensor,
    steps: int = 500,
    seed: int = 0,
    std: float | None = 0.02,
) -> float:
    """Fits a position encoder to a table.

    Args:
        encoder: a `PositionEncoder`; its weights are replaced.
        positions: (N, n).
        table: (N, W), the vectors wanted.
        steps: of the optimisation; 0 corrects the last layer alone.
        seed: of everything random; dropout is off.
        std: of the weights at the start, None for 1 / sqrt(fan in). Small ones come closer to a learned
            table, larger ones to sines and cosines (relative error 0.04 instead of 0.09).

    Returns:
        The relative error left: root mean square of the difference, divided by the deviation of the table.
    """
    table = table.detach().to(torch.float32)
    center, spread = table.mean(dim=0), (table - table.mean(dim=0)).std().clamp_min(1e-6)
    scaled = (table - center) / spread

    def draw() -> tuple[Tensor, Tensor]:
        if len(positions) <= FIT_BATCH:
            return positions, scaled
        rows = torch.randint(len(positions), (FIT_BATCH,))
        return positions[rows], scaled[rows]

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        encoder.reset_parameters(std)
        fit_encoder(encoder, draw, steps)
        encoder.out.weight.mul_(spread)
        encoder.out.bias.mul_(spread).add_(center * encoder.temperature)
        _correct_last_layer(encoder, positions, table)
        left = _encode(encoder, positions) - table
    return float(left.pow(2).mean().sqrt() / spread)


@torch.no_grad()
def _encode(encoder: Any, positions: Tensor) -> Tensor:
    was_training = encoder.training
    encoded: Tensor = encoder.eval().encode_each(positions)
    encoder.train(was_training)
    return encoded


def _correct_last_layer(encoder: Any, positions: Tensor, table: Tensor) -> None:
    """Adds to the last layer the regression of what is left of the table on what the layer sees."""
    seen: list[Tensor] = []
    hook = encoder.out.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        left = (table - _encode(encoder, positions)) * encoder.temperature
    finally:
        hook.remove()
    weight, bias = regress(torch.cat(seen), left)
    encoder.out.weight.add_(weight)
    encoder.out.bias.add_(bias)


def regress(inputs: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of the ridge regression of rows (N, W) on rows (N, d)."""
    inputs, wanted = inputs.double(), wanted.double()
    mean, offset = inputs.mean(dim=0), wanted.mean(dim=0)
    centred = inputs - mean
    gram = centred.T @ centred + torch.eye(inputs.shape[1]) * (RIDGE * len(inputs))
    weight = torch.linalg.solve(gram, centred.T @ (wanted - offset)).T
    return weight.float(), (offset - weight @ mean).float()


@torch.no_grad()
def start_projection(encoding: Any, layers: list[LayerWeights], seed: int = 0) -> None:
    """Starts W_PE of a `SeqPE` whose vectors are those of the old table.

    Args:
        encoding: a `SeqPE` with any integration; "input" and projection "none" have no W_PE.
        layers: the weights of all layers; W_PE shared by all layers starts from their mean.
        seed: of the small random weights of "mul".
    """
    starts = [_start(layer) for layer in layers]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for linear, start in zip(encoding.projection, _for_each(encoding, starts), strict=True):
            if encoding.integration == "mul":
                nn.init.normal_(linear.weight, std=0.02)
                nn.init.ones_(linear.bias)
            else:
                linear.weight.copy_(start)
                nn.init.zeros_(linear.bias)
    encoding.clear_cache()


def _start(layer: LayerWeights) -> Tensor:
    """The part of queries and keys that comes from a position in the residual stream, (2C, C)."""
    both = torch.cat([layer.query, layer.key]) * (layer.gamma / layer.sigma)
    return both - both.mean(dim=1, keepdim=True)


def _for_each(encoding: Any, layers: list[Tensor]) -> list[Tensor]:
    """What each W_PE starts from; one that layers share from their mean."""
    return layers if len(encoding.projection) == len(layers) else [torch.stack(layers).mean(dim=0)]


# Models with a rotation.


def rotary_frequencies(model: nn.Module) -> Tensor:
    """Returns the angles a position that a model's rotary embeddings turn by, (F,); empty without them."""
    found = [
        buffer.flatten()
        for name, buffer in model.named_buffers()
        if name.endswith("inv_freq") and not name.endswith("original_inv_freq")
    ]
    return torch.cat(found).double().unique() if found else torch.empty(0)


@torch.no_grad()
def mean_queries_and_keys(model: Any, run: Callable[[], object]) -> list[tuple[Tensor, Tensor]]:
    """Returns for each attention layer its rotated queries and keys (H, L, D), averaged over rows.

    Args:
        model: a decoder of transformers.
        run: runs it on rows of tokens without padding.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name, seen = model.config._attn_implementation, []
    known = ALL_ATTENTION_FUNCTIONS.get(name)

    def record(module: Any, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append((query.mean(dim=0).float(), key.mean(dim=0).float()))
        attend = known or sys.modules[type(module).__module__].eager_attention_forward
        return attend(module, query, key, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS[name] = record  # for this process, until it is deleted
    try:
        run()
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
    return seen


@torch.no_grad()
def start_from_rotation(
    encoding: Any,
    frequencies: Tensor,
    layers: list[tuple[Tensor, Tensor]],
    length: int,
    steps: int = 500,
    seed: int = 0,
) -> float:
    """Starts a `SeqPE` with integration "sum" or "bias" from the rotation that it takes the place of.

    Args:
        encoding: a `SeqPE` with W_PE.
        frequencies: of `rotary_frequencies`.
        layers: of `mean_queries_and_keys`.
        length: of the fit: positions below it.
        steps: of the fit.
        seed: of everything random.

    Returns:
        The relative error of the fit.
    """
    positions, width = range_positions(length), encoding.width
    angles = positions.double() * frequencies.flip(0)  # the fastest first: they are kept where width is short
    waves = torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1).float()
    table = nn.functional.pad(waves, (0, max(0, width - waves.shape[1])))[:, :width]
    error = fit_to_table(encoding.encoder, positions, table, steps, seed, std=None)
    encoded, starts = _encode(encoding.encoder, positions), []
    for means in layers:
        # One vector serves all queries of a key head, (L, W) for queries and for keys.
        halves = [mean.unflatten(0, (encoding.position_heads, -1)).mean(dim=1) for mean in means]
        wanted = torch.cat([half.transpose(0, 1).flatten(1) for half in halves], dim=-1)
        weight, bias = regress(encoded[: len(wanted)], wanted)
        if encoding.integration == "sum":
            bias = -weight @ encoded[0]  # what the rotation changes: nothing at position 0
        else:
            weight[:width] /= encoding.options.bias_scale
            bias[:width] /= encoding.options.bias_scale
        starts.append(torch.cat([weight, bias.unsqueeze(1)], dim=1))
    for linear, start in zip(encoding.projection, _for_each(encoding, starts), strict=True):
        linear.weight.copy_(start[:, :-1])
        linear.bias.copy_(start[:, -1])
    encoding.clear_cache()
    return error
