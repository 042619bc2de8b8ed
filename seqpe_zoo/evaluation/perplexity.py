"""Perplexity on non-overlapping chunks of any length (paper, Table 1 and appendix).

Chunks of a stream are predicted each from its own first token on; the target of a chunk's last token is the
next token of the stream, and the shorter tail counts, so that every length is measured on the same targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.errors import DataError
from .model_loading import find_position_encoding

TABLE_NAMES = ("wpe", "embed_positions", "position_embeddings")
"""What transformers calls learned tables of positions, in GPT-2, OPT and others."""
_SLICE = 2048


@dataclass(frozen=True)
class Perplexity:
    """Result at one length."""

    length: int
    perplexity: float
    mean_nll: float
    targets: int


def check_lengths(model: nn.Module, lengths: Sequence[int]) -> None:
    """Refuses lengths that the model cannot read, before anything is computed.

    Raises:
        DataError: a length is not positive, or beyond what the model's positions can write.
    """
    if not lengths or min(lengths) < 1:
        raise DataError(f"lengths {list(lengths)} must be positive numbers of tokens")
    encoding = find_position_encoding(model)
    if encoding is not None:
        try:
            encoding.check_limit([max(lengths)])
        except ValueError as error:
            raise DataError(f"length {max(lengths)}: {error}") from error
        return
    for name, table in model.named_modules():
        if name.rpartition(".")[2] in TABLE_NAMES and isinstance(table, nn.Embedding):
            rows = table.num_embeddings - getattr(table, "offset", 0)  # OPT's first two are for padding
            if max(lengths) > rows:
                raise DataError(
                    f"length {max(lengths)} is beyond the {rows} positions that this model has learned; "
                    "measure "
                    "shorter lengths"
                )


@torch.inference_mode()
def evaluate_perplexity(
    model: nn.Module,
    stream: Tensor,
    lengths: Sequence[int],
    tokens_at_once: int = 8192,
) -> list[Perplexity]:
    """Measures a language model at each length.

    Args:
        model: any causal language model of transformers; it is put into evaluation mode and back.
        stream: (N,) token numbers.
        lengths: chunk lengths.
        tokens_at_once: batches hold about so many tokens.

    Raises:
        DataError: the stream is too short, a length is impossible, or tokens are beyond the vocabulary.
    """
    check_lengths(model, lengths)
    if stream.numel() < 2:
        raise DataError(f"a stream of {stream.numel()} tokens has nothing to predict")
    vocabulary = model.get_input_embeddings().num_embeddings
    if int(stream.max()) >= vocabulary:
        raise DataError(
            f"token {int(stream.max())} is beyond the model's vocabulary of {vocabulary}: the text was cut "
            "with another tokenizer than the model's"
        )
    was_training = model.training
    model.eval()
    is_plain = has_plain_head(model)
    results = [_at_length(model, stream, length, tokens_at_once, is_plain) for length in lengths]
    model.train(was_training)
    return results


def _at_length(
    model: nn.Module, stream: Tensor, length: int, tokens_at_once: int, is_plain: bool
) -> Perplexity:
    device = next(model.parameters()).device
    total, targets_seen = 0.0, 0
    for inputs, targets in _batches(stream, length, max(1, tokens_at_once // length)):
        nll = token_losses(model, *(part.to(device, torch.int64) for part in (inputs, targets)), is_plain)
        total += float(nll.double().sum())
        targets_seen += targets.numel()
    mean = total / targets_seen
    return Perplexity(length, math.exp(min(mean, 700.0)), mean, targets_seen)


def _batches(stream: Tensor, length: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields inputs and targets (R, length), at last those of the tail (1, rest)."""
    whole = (stream.numel() - 1) // length
    inputs = stream[: whole * length].view(whole, length)
    targets = stream[1 : whole * length + 1].view(whole, length)
    yield from zip(inputs.split(rows), targets.split(rows), strict=True) if whole else ()
    if whole * length < stream.numel() - 1:
        yield stream[None, whole * length : -1], stream[None, whole * length + 1 :]


@torch.inference_mode()
def has_plain_head(model: nn.Module) -> bool:
    """Tells whether logits are the output embeddings times the last hidden state and nothing else."""
    last = model.get_input_embeddings().num_embeddings - 1  # the first may be padding, embedded as zeros
    inputs = torch.tensor([[last, last - 1]], device=next(model.parameters()).device)
    head = model.get_output_embeddings()
    hidden = model.base_model(input_ids=inputs, use_cache=False)[0]
    return head is not None and torch.equal(head(hidden), model(input_ids=inputs, use_cache=False).logits)


def token_losses(model: nn.Module, inputs: Tensor, targets: Tensor, is_plain: bool = False) -> Tensor:
    """Returns the negative log-likelihood of each target (R, L), in float32.

    Logits of long chunks with a large vocabulary do not fit into memory at once: where the head is a plain
    product (`has_plain_head`), they are made in slices.
    """
    # Without an all-ones mask transformers may take rows for packed sequences; with it nothing is guessed.
    given = {"input_ids": inputs, "attention_mask": torch.ones_like(inputs), "use_cache": False}
    if not is_plain:
        return F.cross_entropy(model(**given).logits.float().transpose(1, 2), targets, reduction="none")
    hidden, head = model.base_model(**given)[0], model.get_output_embeddings()
    rows = max(1, _SLICE // inputs.shape[0])
    parts = [
        F.cross_entropy(head(part).float().transpose(1, 2), wanted, reduction="none")
        for part, wanted in zip(hidden.split(rows, dim=1), targets.split(rows, dim=1), strict=True)
    ]
    return torch.cat(parts, dim=1)
