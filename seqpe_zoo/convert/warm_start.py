"""Starts SeqPE from what a trained model knows of positions: its table, and how its layers read it.

The encoder is fitted to the table, by gradient steps and a closed-form correction of its last layer. For
integrations in attention W_PE starts near identity: "mul" with factors of 1; "sum" and "bias" with what the
layer's own query and key weights make of a position in the residual stream,

    W_q diag(gamma) (p - mean(p)) / sigma,

the part of a query that comes from p when layer norm divides by sigma. It leaves out what p does to values
and, for "bias", how content and position meet; a fine-tune learns the rest.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

RIDGE = 1e-3
"""Variance that is added to the diagonal when the last layer is corrected, whose inputs are normalised to
about 1. A smaller one fits better, with weights so large that a fine-tune's first steps destroy the fit."""


class LayerWeights(NamedTuple):
    """What W_PE of a layer starts from."""

    query: Tensor
    """(C, C), rows are outputs."""
    key: Tensor
    gamma: Tensor
    """(C,), the weight of the layer norm before attention."""
    sigma: float
    """Mean deviation of the residual stream there."""


def fit_encoder(
    encoder: Any, positions: Tensor, table: Tensor, steps: int = 500, rate: float = 3e-3, seed: int = 0
) -> float:
    """Fits a position encoder to a table, from small random weights, which come closer than larger ones.

    Args:
        encoder: a `PositionEncoder`; its weights are replaced.
        positions: (N, n).
        table: (N, W), the vectors wanted.
        steps: of the optimisation; 0 corrects the last layer alone.
        rate: largest learning rate.
        seed: of everything random; dropout is off.

    Returns:
        The relative error left: root mean square of the difference, divided by the deviation of the table.
    """
    table = table.detach().to(torch.float32)
    spread = (table - table.mean(dim=0)).pow(2).mean().clamp_min(1e-12)
    was_training = encoder.training
    encoder.eval()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        encoder.reset_parameters(0.02)
        optimizer = torch.optim.Adam(encoder.parameters(), rate)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 20) * (1 + math.cos(math.pi * step / steps)) / 2
            loss = (encoder(positions) - table).pow(2).mean() / spread
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimizer.step()
        _correct_last_layer(encoder, positions, table)
    encoder.zero_grad()
    encoder.train(was_training)
    with torch.no_grad():
        return float(((_encode(encoder, positions) - table).pow(2).mean() / spread).sqrt())


@torch.no_grad()
def _encode(encoder: Any, positions: Tensor) -> Tensor:
    was_training = encoder.training
    encoder.eval()
    encoded: Tensor = encoder(positions)
    encoder.train(was_training)
    return encoded


@torch.no_grad()
def _correct_last_layer(encoder: Any, positions: Tensor, table: Tensor) -> None:
    """Adds to the last layer the ridge regression of what is left of the table on what the layer sees."""
    seen: list[Tensor] = []
    hook = encoder.out.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].double()))
    try:
        encoded = encoder.encode_each(positions)  # in this order, so that states and vectors fit together
    finally:
        hook.remove()
    left = (table - encoded).double() / encoder.inverse_temperature
    states = torch.cat(seen)
    mean_state, mean_left = states.mean(dim=0), left.mean(dim=0)
    centred = states - mean_state
    gram = centred.T @ centred + torch.eye(states.shape[1]) * (RIDGE * len(states))
    weight = torch.linalg.solve(gram, centred.T @ (left - mean_left)).T
    encoder.out.weight.add_(weight)
    encoder.out.bias.add_(mean_left - weight @ mean_state)


@torch.no_grad()
def start_projection(encoding: Any, layers: list[LayerWeights], seed: int = 0) -> None:
    """Starts W_PE of a `SeqPE` whose vectors are those of the old table.

    Args:
        encoding: a `SeqPE` with any integration; "input" and projection "none" have no W_PE.
        layers: the weights of all layers; W_PE shared by all layers starts from their mean.
        seed: of the small random weights of "mul".
    """
    count = len(encoding.projection)
    starts = [_start(encoding, layer) for layer in layers]
    if count == 1 and len(starts) > 1:
        starts = [torch.stack(starts).mean(dim=0)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for linear, start in zip(encoding.projection, starts, strict=False):
            if encoding.integration == "mul":
                nn.init.normal_(linear.weight, std=0.02)
                nn.init.ones_(linear.bias)
            else:
                linear.weight.copy_(start)
                nn.init.zeros_(linear.bias)


def _start(encoding: Any, layer: LayerWeights) -> Tensor:
    """The part of queries and keys that comes from a position in the residual stream, (2C, C)."""
    both = torch.cat([layer.query, layer.key]) * (layer.gamma / layer.sigma)
    return both - both.mean(dim=1, keepdim=True)
