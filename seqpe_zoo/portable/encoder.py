"""The position encoder of the paper (section 3.2): positions in, vectors out.

Digit, digit-place and dimension embeddings are summed, [CLS] is appended last, a small pre-norm transformer
reads the sequence, and the state of [CLS] is normalised and projected. Equal positions are encoded once.
Under causal attention the state of a digit depends on the digits before it alone, so positions that share
leading digits share those states: 0..19999 with five digits are 120,000 tokens but 22,222 different prefixes
and 20,000 [CLS]. In the first layer inputs come from a vocabulary of n * k * b + 1 vectors, so its scores are
a table.
"""

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .position_encoding import is_traced
from .positions import positions_to_digits, ravel_positions, real_digit_mask, unravel_positions

logger = logging.getLogger(__name__)

CHUNK_SIZE = 2048
"""Positions encoded at a time in inference, which bounds memory."""

MAX_SCORE_TABLE = 512
"""Vocabularies above this size get no table of all first-layer scores, which is quadratic in their size."""


class PrefixTree(NamedTuple):
    """The M different prefixes of U sequences of T tokens, numbered place by place."""

    place: Tensor
    """(M,) place of the last token of each prefix, ascending."""
    leaf: Tensor
    """(M,) one sequence that starts with each prefix."""
    paths: Tensor
    """(U, T) prefix of each sequence at each place."""


def sort_unique_positions(positions: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Sorts positions (N, n) lexicographically and drops repetitions; coordinates are -1 to capacity - 1.

    Returns the unique positions (U, n) and, for each input position, its number among them (N,).
    """
    sides = [capacity + 1] * positions.shape[-1]
    if (capacity + 1) ** len(sides) >= 2**63:  # a single integer cannot number all positions
        return torch.unique(positions, dim=0, return_inverse=True)
    codes, inverse = torch.unique(ravel_positions(positions + 1, sides), return_inverse=True)
    return unravel_positions(codes, sides) - 1, inverse


def build_prefix_tree(symbols: Tensor) -> PrefixTree:
    """Finds the different prefixes of sequences (U, T), whose rows are different and sorted."""
    starts_prefix = torch.ones_like(symbols, dtype=torch.bool)
    # Whether a row differs from the row above at this place or before it.
    starts_prefix[1:] = (symbols[1:] != symbols[:-1]).long().cumsum(dim=1) > 0
    counts = starts_prefix.sum(dim=0)
    paths = starts_prefix.long().cumsum(dim=0) - 1 + (counts.cumsum(dim=0) - counts)
    place, leaf = starts_prefix.t().nonzero(as_tuple=True)
    return PrefixTree(place, leaf, paths)


class TransformerLayer(nn.Module):
    """One pre-norm layer in the manner of GPT-2: tanh-approximated GELU, LayerNorm with eps 1e-5."""

    def __init__(self, dim: int, num_heads: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.dropout = dropout
        self.attention_dropout = attention_dropout

    def forward(self, x: Tensor, allowed: Tensor, last_only: bool) -> Tensor:
        """Runs whole sequences (N, T, d), or with `last_only` their last token alone, (N, 1, d).

        `allowed` is bool (N, 1, T, T), true where attention is allowed.
        """
        projected = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in projected)
        if last_only:
            x, q, allowed = x[:, -1:], q[:, :, -1:], allowed[:, :, -1:]
        drop = self.attention_dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, allowed, drop)  # (N, H, T, D)
        return self.finish(x, attended.transpose(1, 2).flatten(2))

    def attend(self, scores: Tensor, valid: Tensor) -> Tensor:
        """Probabilities of scores (R, T, H) over the slots that are valid (R, T)."""
        scores = scores.masked_fill(~valid.unsqueeze(-1), float("-inf"))
        return F.dropout(scores.softmax(dim=1), self.attention_dropout, self.training)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Adds the projected attention output and the feed-forward part to the residual stream."""
        x = x + F.dropout(self.proj(attended), self.dropout, self.training)
        hidden = self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(hidden, self.dropout, self.training)


class SequenceTransformer(nn.Module):
    """Maps sequences of tokens, the last of which is [CLS], to its final state.

    Two ways to the same numbers. `forward` runs every full sequence: it has static shapes and serves
    compilation, export and bidirectional attention. `forward_shared` runs each different prefix once; there
    positions below a prefix share its draw of dropout.
    """

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.causal, self.num_heads = options.encoder_causal, options.encoder_heads
        sizes = (options.encoder_dim, options.encoder_heads, options.dropout, options.attention_dropout)
        self.layers = nn.ModuleList([TransformerLayer(*sizes) for _ in range(options.encoder_layers)])

    def forward(self, inputs: Tensor, tokens: Tensor, visible: Tensor) -> Tensor:
        """Runs every full sequence.

        Args:
            inputs: (V, d), input vectors of all tokens.
            tokens: (N, T), rows of `inputs`.
            visible: bool (N, T), false for tokens that others may not attend to.

        Returns:
            (N, d).
        """
        # A token always sees itself, so that no row of the softmax is empty; nobody reads hidden tokens.
        allowed = torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device) | visible[:, None, None]
        if self.causal:
            allowed = allowed.tril()
        x = F.embedding(tokens, inputs)
        for layer in self.layers:
            x = layer(x, allowed, layer is self.layers[-1])
        return x[:, -1]

    def forward_shared(self, inputs: Tensor, tokens: Tensor, visible: Tensor, tree: PrefixTree) -> Tensor:
        """Runs each prefix of the tree once; causal attention only. Otherwise as `forward`.

        There is a row for each prefix. It attends to its path, the prefixes of which it is the last.
        """
        place, leaf, paths = tree
        own, slots = tokens[leaf, place], paths[leaf]  # (M,), (M, T)
        places = torch.arange(paths.shape[1], device=tokens.device)
        valid = (places <= place.unsqueeze(1)) & visible[leaf] | (places == place.unsqueeze(1))
        layers = list(self.layers)
        if inputs.shape[0] <= MAX_SCORE_TABLE:
            x = self._first_layer(layers.pop(0), inputs, own, tokens[leaf], valid)
        else:
            x = F.embedding(own, inputs)
        final = slice(place.shape[0] - tokens.shape[0], None)  # [CLS], the last token of each sequence
        for layer in layers:
            rows = final if layer is self.layers[-1] else slice(None)
            x = self._shared_layer(layer, x, rows, slots[rows], valid[rows])
        return x[-tokens.shape[0] :]

    def _first_layer(self, layer: Any, inputs: Tensor, own: Tensor, keys: Tensor, valid: Tensor) -> Tensor:
        """The layer over raw inputs: scores are looked up in a table of all pairs of vocabulary entries."""
        size, dim = inputs.shape
        projected = layer.qkv(layer.norm1(inputs)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(0, 1) for part in projected)
        table = torch.matmul(q * (dim // self.num_heads) ** -0.5, k.transpose(1, 2))  # (H, V, V)
        scores = F.embedding(own.unsqueeze(1) * size + keys, table.flatten(1).t())  # (M, T, H)
        probabilities = layer.attend(scores, valid).permute(2, 0, 1)  # (H, M, T)
        # The keys of a row are different vocabulary entries, so weights can be laid out over the vocabulary
        # and the mixture of values becomes one matrix product, forwards and backwards.
        weights = probabilities.new_zeros(self.num_heads, keys.shape[0], size)
        weights = weights.scatter(2, keys.expand(self.num_heads, -1, -1), probabilities)
        mixed = torch.matmul(weights, v).transpose(0, 1).flatten(1)  # (M, d)
        return layer.finish(F.embedding(own, inputs), mixed)

    def _shared_layer(self, layer: Any, x: Tensor, rows: slice, slots: Tensor, valid: Tensor) -> Tensor:
        """A later layer, for some rows: they gather the keys and values of their slots."""
        heads = (self.num_heads, x.shape[-1] // self.num_heads)
        q, key_value = layer.qkv(layer.norm1(x)).tensor_split([x.shape[-1]], dim=-1)
        q = (q[rows] * heads[1] ** -0.5).unflatten(-1, heads).unsqueeze(1)
        k, v = (part.unflatten(-1, heads) for part in F.embedding(slots, key_value).chunk(2, dim=-1))
        probabilities = layer.attend((q * k).sum(-1), valid)  # k, v (R, T, H, D), probabilities (R, T, H)
        return layer.finish(x[rows], (probabilities.unsqueeze(-1) * v).sum(1).flatten(1))


class PositionEncoder(nn.Module):
    """Encodes positions of `num_dims` coordinates as vectors of width `out_dim`, as `SeqPEOptions` say."""

    def __init__(self, out_dim: int, num_dims: int, options: Any) -> None:
        super().__init__()
        self.base, self.num_digits, self.num_dims = options.base, options.num_digits, num_dims
        self.capacity, self.out_dim = self.base**self.num_digits, out_dim
        self.mask_padding, self.temperature = options.mask_padding, options.temperature
        dim = options.encoder_dim
        self.digit_embedding = nn.Parameter(torch.empty(self.base, dim))  # T
        # O has a row for each place of the whole sequence, as in the release; the paper says k rows, shared
        # by the dimensions. With n * k rows the authors' checkpoints load.
        self.place_embedding = nn.Parameter(torch.empty(num_dims * self.num_digits, dim))
        # With one dimension D is a constant, and the paper fixes it at zero.
        self.dimension_embedding = nn.Parameter(torch.empty(num_dims, dim)) if num_dims > 1 else None
        self.cls_embedding = nn.Parameter(torch.empty(dim))
        self.model = SequenceTransformer(options)
        self.norm = nn.LayerNorm(dim) if options.final_norm else nn.Identity()
        self.out = nn.Linear(dim, out_dim)
        self.reset_parameters()

    def reset_parameters(self, std: float | None = 0.02) -> None:
        """Initialises with normal weights of `std`, as the release; None for 1 / sqrt(fan in)."""
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std or module.in_features**-0.5)
                nn.init.zeros_(module.bias)
        for embedding in self._parameters.values():
            if embedding is not None:
                nn.init.normal_(embedding, std=std or 0.5)

    def forward(self, positions: Tensor) -> Tensor:
        """Encodes positions (..., n) to vectors (..., out_dim). Positions are not checked here."""
        flat = positions.reshape(-1, self.num_dims)
        if is_traced() or flat.is_meta:
            encoded = self.encode_each(flat)
        else:
            encode = self._encode_sorted if self.model.causal else self.encode_each
            unique, inverse = sort_unique_positions(flat, self.capacity)
            chunks = [unique] if torch.is_grad_enabled() else unique.split(CHUNK_SIZE)
            encoded = F.embedding(inverse, torch.cat([encode(chunk) for chunk in chunks]))
        return encoded.reshape(*positions.shape[:-1], self.out_dim)

    def encode_each(self, positions: Tensor) -> Tensor:
        """Encodes (N, n) positions one by one, with static shapes and nothing shared; returns (N, P)."""
        return self._project(self.model(self._inputs(), *self._tokens(positions)))

    def _encode_sorted(self, positions: Tensor) -> Tensor:
        """Encodes sorted, different positions, sharing their prefixes."""
        tokens, visible = self._tokens(positions)
        # Absent coordinates have the token of a zero; what tells prefixes apart is that it is not visible.
        tree = build_prefix_tree(tokens * 2 + visible)
        return self._project(self.model.forward_shared(self._inputs(), tokens, visible, tree))

    def _inputs(self) -> Tensor:
        """Input vectors (n * k * b + 1, d) of all tokens: T[digit] + O[place] + D[dimension], then [CLS]."""
        places: Tensor = self.place_embedding
        if self.dimension_embedding is not None:
            places = places + self.dimension_embedding.repeat_interleave(self.num_digits, dim=0)
        digits = (places.unsqueeze(1) + self.digit_embedding).flatten(0, 1)
        return torch.cat([digits, self.cls_embedding.unsqueeze(0)])

    def _tokens(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Turns positions (N, n) into rows of `_inputs` (N, n * k + 1) and tells which may be attended to."""
        digits = positions_to_digits(positions.clamp(min=0), self.base, self.num_digits)
        visible = (positions >= 0).repeat_interleave(self.num_digits, dim=-1)
        if self.mask_padding:
            visible = visible & real_digit_mask(digits, self.num_digits)
        tokens = digits + torch.arange(digits.shape[-1], device=digits.device) * self.base
        # In a graph positions are not checked: those too large get an index that no input has.
        cls_token = digits.shape[-1] * self.base
        fits = (positions < self.capacity).repeat_interleave(self.num_digits, dim=-1)
        tokens = torch.where(fits, tokens, cls_token + 1)
        return F.pad(tokens, (0, 1), value=cls_token), F.pad(visible, (0, 1), value=True)

    def _project(self, states: Tensor) -> Tensor:
        return self.out(self.norm(states)) * (1.0 / self.temperature)


def sinusoids(positions: Tensor, width: int, max_position: int) -> Tensor:
    """Sines and cosines of positions (..., n), (..., width): an equal share of columns for each coordinate.

    Frequencies fall from 1 to 1 / max_position. Columns that no coordinate gets are zero.
    """
    count = max(1, width // (2 * positions.shape[-1]))
    exponents = torch.arange(count, device=positions.device) / max(1, count - 1)
    angles = positions.float().unsqueeze(-1) * max_position**-exponents  # (..., n, count)
    waves = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return F.pad(waves, (0, width - waves.shape[-1]))[..., :width]


def fit_to_sinusoids(
    encoder: PositionEncoder, max_position: int, steps: int, generator: torch.Generator
) -> float:
    """Fits an encoder to sines and cosines of its positions, and returns the last mean squared error.

    It needs no data. Afterwards near positions have similar vectors and all positions different ones, which a
    fresh encoder would have to learn from the loss of the host. Positions below `max_position` are drawn with
    the generator, on the CPU.
    """

    def draw() -> tuple[Tensor, Tensor]:
        positions = torch.randint(max_position, (256, encoder.num_dims), generator=generator)
        return positions, sinusoids(positions, encoder.out_dim, max_position)

    return fit_encoder(encoder, draw, steps)


@torch.inference_mode(False)
@torch.enable_grad()
def fit_encoder(encoder: PositionEncoder, draw: Callable[[], tuple[Tensor, Tensor]], steps: int) -> float:
    """Fits an encoder to given vectors, and returns the last mean squared error.

    Args:
        encoder: on any device but "meta".
        draw: gives the positions (N, n) of a step and the vectors (N, out_dim) wanted for them.
        steps: of Adam, at a rate that falls to zero.
    """
    device, was_training, error = encoder.cls_embedding.device, encoder.training, math.inf
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, max(1, steps))
    encoder.eval()  # without dropout
    for step in range(1, steps + 1):
        positions, wanted = draw()
        loss = F.mse_loss(encoder(positions.to(device)), wanted.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step == steps or step % max(1, steps // 5) == 0:
            error = loss.item()
            logger.info("fitting the position encoder: step %d of %d, error %.5f", step, steps, error)
    encoder.zero_grad()
    encoder.train(was_training)
    return error
