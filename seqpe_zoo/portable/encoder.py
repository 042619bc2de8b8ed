"""The position encoder of the paper (section 3.2): positions in, vectors out.

Digit, digit-place and dimension embeddings are summed, [CLS] is appended last, a small pre-norm transformer
reads the sequence, and the state of [CLS] is normalised and projected. Equal positions are encoded once.
Under causal attention the state of a digit depends on the digits before it alone, so positions that share
leading digits share those states: 0..19999 with five digits are 120,000 tokens but 22,222 different prefixes.
In the first layer inputs come from a vocabulary of n * k * b vectors, so its scores are a table. What is done
with the vectors is the business of `seqpe.py`.
"""

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .position_encoding import is_traced
from .positions import positions_to_digits, real_digit_mask, unravel_positions

logger = logging.getLogger(__name__)

CHUNK_SIZE = 2048
"""Positions encoded at a time in inference, which bounds memory."""

MAX_SCORE_TABLE = 512
"""Vocabularies above this size get no table of all first-layer scores, which is quadratic in their size."""


class PrefixTree(NamedTuple):
    """The different prefixes of U digit sequences of T digits, numbered place by place; M of them."""

    place: Tensor
    """(M,) place of the last digit of each prefix, ascending."""
    leaf: Tensor
    """(M,) one sequence that starts with each prefix."""
    paths: Tensor
    """(U, T) prefix of each sequence at each place."""


def sort_unique_positions(positions: Tensor, capacity: int) -> tuple[Tensor, Tensor | None]:
    """Sorts positions lexicographically and drops repetitions.

    Args:
        positions: (N, n), coordinates from -1 (absent) to capacity - 1.
        capacity: coordinates are below it.

    Returns:
        The unique positions (U, n) and, for each input position, its number among them (N,); None instead
        when the input was sorted and unique already, which saves the copy.
    """
    sides = [capacity + 1] * positions.shape[-1]
    if (capacity + 1) ** len(sides) >= 2**63:  # a single integer cannot number all positions
        return torch.unique(positions, dim=0, return_inverse=True)
    codes = positions[:, 0].long() + 1
    for dimension in range(1, len(sides)):
        codes = codes * (capacity + 1) + (positions[:, dimension] + 1)
    if bool((codes[1:] > codes[:-1]).all()):
        return positions, None
    codes, inverse = torch.unique(codes, return_inverse=True)
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

    def forward(self, x: Tensor, mask: Tensor | None, last_only: bool) -> Tensor:
        """Runs whole sequences (N, S, d), or with `last_only` their last token alone, (N, 1, d).

        Args:
            x: (N, S, d).
            mask: bool, broadcastable to (N, 1, S, S), true where attention is allowed; None for everywhere.
            last_only: whether nobody reads the other tokens.
        """
        projected = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in projected)
        if last_only:
            x, q = x[:, -1:], q[:, :, -1:]
            mask = mask[..., -1:, :] if mask is not None else None
        drop = self.attention_dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop)  # (N, H, S, D)
        return self.finish(x, attended.transpose(1, 2).flatten(2))

    def attend(self, scores: Tensor, valid: Tensor) -> Tensor:
        """Probabilities of (Q, T + 1, H) scores over the slots that are valid (Q, T + 1)."""
        scores = scores.masked_fill(~valid.unsqueeze(-1), float("-inf"))
        return F.dropout(scores.softmax(dim=1), self.attention_dropout, self.training)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Adds the projected attention output and the feed-forward part to the residual stream."""
        x = x + F.dropout(self.proj(attended), self.dropout, self.training)
        hidden = self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(hidden, self.dropout, self.training)


class SequenceTransformer(nn.Module):
    """Maps digit sequences to the final state of [CLS].

    Two ways to the same numbers. `forward` runs every full sequence: it has static shapes and serves
    compilation, export and bidirectional attention. `forward_shared` runs each different prefix once.
    Residual dropout is drawn once for each row that is computed, so in `forward_shared` positions below a
    prefix share its draw.

    Args:
        options: `SeqPEOptions` without open defaults.
    """

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.causal, self.num_heads = options.encoder_causal, options.encoder_heads
        sizes = (options.encoder_dim, options.encoder_heads, options.dropout, options.attention_dropout)
        self.layers = nn.ModuleList([TransformerLayer(*sizes) for _ in range(options.encoder_layers)])

    def forward(self, vocabulary: Tensor, final: Tensor, tokens: Tensor, visible: Tensor | None) -> Tensor:
        """Runs every full sequence.

        Args:
            vocabulary: (V, d), input vectors of all tokens.
            final: (d,), input vector of [CLS].
            tokens: (N, T), rows of `vocabulary`.
            visible: bool (N, T), false for tokens that others may not attend to; None when all are visible.

        Returns:
            (N, d).
        """
        x = torch.cat([vocabulary[tokens], final.expand(tokens.shape[0], 1, -1)], dim=1)  # (N, T + 1, d)
        length = tokens.shape[1] + 1
        mask = None
        if self.causal:
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        if visible is not None:
            # A token always sees itself, so that no row of the softmax is empty; nobody reads hidden tokens.
            keys = F.pad(visible, (0, 1), value=True)[:, None, None, :]
            keys = keys | torch.eye(length, dtype=torch.bool, device=x.device)
            mask = keys if mask is None else keys & mask
        for index, layer in enumerate(self.layers):
            x = layer(x, mask, index == len(self.layers) - 1)
        return x[:, -1]

    def forward_shared(
        self, vocabulary: Tensor, final: Tensor, tokens: Tensor, visible: Tensor | None, tree: PrefixTree
    ) -> Tensor:
        """Runs each different prefix once; causal attention only. Arguments as for `forward`.

        The rows are the M prefixes, then the U [CLS] tokens. Each row attends to T + 1 slots: the prefixes
        of its path, of which those up to its own place are valid, and (for [CLS]) itself.
        """
        num_prefixes, num_leaves = tree.place.shape[0], tokens.shape[0]
        slots, valid = self._slots(tree, visible)
        inputs = torch.cat([vocabulary, final.unsqueeze(0)])  # (V + 1, d)
        cls_token = vocabulary.shape[0]
        own = torch.cat(
            [tokens[tree.leaf, tree.place], tokens.new_full((num_leaves,), cls_token)]
        )  # (M + U,)
        x = inputs
        for index, layer in enumerate(self.layers):
            # Nobody reads the prefixes after the last layer.
            is_last = index == len(self.layers) - 1
            queries = slice(num_prefixes if is_last else 0, num_prefixes + num_leaves)
            if index == 0 and inputs.shape[0] <= MAX_SCORE_TABLE:
                rows = torch.cat([tokens[tree.leaf], tokens])[queries]
                keys = F.pad(rows, (0, 1), value=cls_token)  # (Q, T + 1)
                x = self._first_layer(layer, inputs, own[queries], keys, valid[queries])
            else:
                x = inputs[own] if index == 0 else x
                x = self._shared_layer(layer, x, queries, slots[queries], valid[queries])
        return x

    def _slots(self, tree: PrefixTree, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the rows of each row's slots and which it may attend to, both (M + U, T + 1)."""
        num_prefixes, (num_leaves, length) = tree.place.shape[0], tree.paths.shape
        device = tree.place.device
        cls_rows = torch.arange(num_prefixes, num_prefixes + num_leaves, device=device)
        of_cls = torch.cat([tree.paths, cls_rows.unsqueeze(1)], dim=1)
        slots = torch.cat([F.pad(tree.paths[tree.leaf], (0, 1)), of_cls])
        places = torch.arange(length + 1, device=device)
        reached = places <= tree.place.unsqueeze(1)
        reads = torch.ones(num_leaves, length + 1, dtype=torch.bool, device=device)
        if visible is not None:
            reached = reached & F.pad(visible[tree.leaf], (0, 1)) | (places == tree.place.unsqueeze(1))
            reads = F.pad(visible, (0, 1), value=True)
        return slots, torch.cat([reached, reads])

    def _first_layer(self, layer: Any, inputs: Tensor, own: Tensor, keys: Tensor, valid: Tensor) -> Tensor:
        """The layer over raw inputs: scores are looked up in a table of all pairs of vocabulary entries."""
        size, dim = inputs.shape
        projected = layer.qkv(layer.norm1(inputs)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(0, 1) for part in projected)
        table = torch.matmul(q * (dim // self.num_heads) ** -0.5, k.transpose(1, 2))  # (H, V + 1, V + 1)
        scores = F.embedding(own.unsqueeze(1) * size + keys, table.flatten(1).t())  # (Q, T + 1, H)
        probabilities = layer.attend(scores, valid).permute(2, 0, 1)  # (H, Q, T + 1)
        # The T + 1 keys of a row are different vocabulary entries, so weights can be laid out over the
        # vocabulary and the mixture of values becomes one matrix product, forwards and backwards.
        weights = probabilities.new_zeros(self.num_heads, keys.shape[0], size)
        weights = weights.scatter(2, keys.expand(self.num_heads, -1, -1), probabilities)
        mixed = torch.matmul(weights, v).transpose(0, 1).flatten(1)  # (Q, d)
        return layer.finish(F.embedding(own, inputs), mixed)

    def _shared_layer(self, layer: Any, x: Tensor, queries: slice, slots: Tensor, valid: Tensor) -> Tensor:
        """A later layer: rows gather the keys and values of their slots."""
        heads = (self.num_heads, x.shape[-1] // self.num_heads)
        q, key_value = layer.qkv(layer.norm1(x)).tensor_split([x.shape[-1]], dim=-1)
        q = q[queries] * heads[1] ** -0.5
        k, v = (part.unflatten(-1, heads) for part in F.embedding(slots, key_value).chunk(2, dim=-1))
        scores = (q.unflatten(-1, heads).unsqueeze(1) * k).sum(
            -1
        )  # k, v (Q, T + 1, H, D); scores (Q, T + 1, H)
        mixed = (layer.attend(scores, valid).unsqueeze(-1) * v).sum(1).flatten(1)
        return layer.finish(x[queries], mixed)


class PositionEncoder(nn.Module):
    """Encodes n-dimensional positions as vectors.

    Args:
        out_dim: width of the vectors.
        num_dims: n, coordinates of a position.
        options: `SeqPEOptions` without open defaults; they are explained there.
    """

    def __init__(self, out_dim: int, num_dims: int, options: Any) -> None:
        super().__init__()
        self.base, self.num_digits, self.num_dims = options.base, options.num_digits, num_dims
        self.capacity, self.out_dim = self.base**self.num_digits, out_dim
        self.mask_padding, self.allow_absent = options.mask_padding, options.allow_absent
        self.temperature = options.temperature
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
        encoded = self.encode_each(flat) if is_traced() or flat.is_meta else self._encode_unique(flat)
        return encoded.reshape(*positions.shape[:-1], self.out_dim)

    def encode_each(self, positions: Tensor) -> Tensor:
        """Encodes (N, n) positions one by one, with static shapes and nothing shared; returns (N, P)."""
        tokens, visible = self._tokens(positions)
        return self._project(self.model(self._vocabulary(), self.cls_embedding, tokens, visible))

    def _encode_unique(self, positions: Tensor) -> Tensor:
        """Encodes each different position once, in inference some at a time."""
        unique, inverse = sort_unique_positions(positions, self.capacity)
        chunks = [unique] if torch.is_grad_enabled() else unique.split(CHUNK_SIZE)
        shares = self.model.causal and unique.shape[0] > 0
        encoded = torch.cat([self._encode_sorted(c) if shares else self.encode_each(c) for c in chunks])
        return encoded if inverse is None else F.embedding(inverse, encoded)

    def _encode_sorted(self, positions: Tensor) -> Tensor:
        """Encodes sorted, different positions, sharing their prefixes."""
        tokens, visible = self._tokens(positions)
        # Absent coordinates have a token of no meaning; what tells prefixes apart is the position itself.
        symbols = tokens * 2 + self._present(positions) if self.allow_absent else tokens
        tree = build_prefix_tree(symbols)
        states = self.model.forward_shared(self._vocabulary(), self.cls_embedding, tokens, visible, tree)
        return self._project(states)

    def _vocabulary(self) -> Tensor:
        """Input vectors of all (place, digit) pairs, (n * k * b, d): T[digit] + O[place] + D[dimension]."""
        places: Tensor = self.place_embedding
        if self.dimension_embedding is not None:
            places = places + self.dimension_embedding.repeat_interleave(self.num_digits, dim=0)
        return (places.unsqueeze(1) + self.digit_embedding).flatten(0, 1)

    def _tokens(self, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Turns positions (N, n) into vocabulary entries (N, n * k) and tells which may be attended to."""
        visible = self._present(positions) if self.allow_absent else None
        digits = positions_to_digits(positions.clamp(min=0), self.base, self.num_digits)
        if self.mask_padding:
            real = real_digit_mask(digits, self.num_digits)
            visible = real if visible is None else visible & real
        places = torch.arange(digits.shape[-1], device=digits.device)
        # In a graph positions are not checked: those too large get an index that the vocabulary does not
        # have.
        fits = (positions < self.capacity).repeat_interleave(self.num_digits, dim=-1)
        return torch.where(fits, digits + places * self.base, digits.shape[-1] * self.base), visible

    def _present(self, positions: Tensor) -> Tensor:
        """Marks the digits of coordinates that are there, bool (N, n * k)."""
        return (positions >= 0).repeat_interleave(self.num_digits, dim=-1)

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
    encoder: PositionEncoder,
    max_position: int,
    steps: int,
    generator: torch.Generator,
    batch_size: int = 256,
    learning_rate: float = 3e-3,
) -> float:
    """Fits an encoder to sines and cosines of its positions, and returns the last mean squared error.

    It needs no data. Afterwards near positions have similar vectors and all positions different ones, which a
    fresh encoder would have to learn from the loss of the host.

    Args:
        encoder: on any device but "meta".
        max_position: positions are drawn below it.
        steps: of Adam, at a rate that falls to zero.
        generator: draws the positions; on the CPU.
        batch_size: positions a step.
        learning_rate: of the first step.
    """

    def draw() -> tuple[Tensor, Tensor]:
        positions = torch.randint(max_position, (batch_size, encoder.num_dims), generator=generator)
        return positions, sinusoids(positions, encoder.out_dim, max_position)

    return fit_encoder(encoder, draw, steps, learning_rate)


@torch.inference_mode(False)
@torch.enable_grad()
def fit_encoder(
    encoder: PositionEncoder,
    draw: Callable[[], tuple[Tensor, Tensor]],
    steps: int,
    learning_rate: float = 3e-3,
) -> float:
    """Fits an encoder to given vectors, and returns the last mean squared error.

    Args:
        encoder: on any device but "meta".
        draw: gives the positions (N, n) of a step and the vectors (N, out_dim) wanted for them.
        steps: of Adam, at a rate that falls to zero.
        learning_rate: of the first step.
    """
    device, was_training, error = encoder.cls_embedding.device, encoder.training, math.inf
    optimizer = torch.optim.Adam(encoder.parameters(), learning_rate)
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
