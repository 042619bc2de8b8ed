"""The paper's sequence model: a small pre-norm transformer over digits, [CLS] last (section 3.2).

Two ways to the same numbers. `forward` runs every full sequence: it has static shapes and serves compilation,
export and bidirectional attention. `forward_shared` runs each different prefix once. Both leave out what no
one reads: in the last layer only [CLS] asks, and in the first layer inputs come from a vocabulary of n * k *
b vectors, so their queries, keys, values and scores are computed once for the vocabulary.

Residual dropout is drawn once for each row that is computed: for each sequence in `forward`, for each
different prefix in `forward_shared`, where all positions below a prefix then share its draw.
"""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dropout import add_dropped
from .gelu import gelu_tanh
from .prefix_tree import PrefixTree

LARGEST_SCORE_TABLE = 512
"""Vocabularies above this size get no table of all first-layer scores, which is quadratic in their size."""


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

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Adds the projected attention output and the feed-forward part to the residual stream."""
        x = self._add(x, self.proj(attended))
        return self._add(x, self.fc2(gelu_tanh(self.fc1(self.norm2(x)))))

    def _add(self, x: Tensor, hidden: Tensor) -> Tensor:
        if torch.jit.is_scripting() or not self.training:
            return x + F.dropout(hidden, self.dropout, self.training)
        return add_dropped(x, hidden, self.dropout)

    def query(self, normed: Tensor) -> Tensor:
        """Queries (..., d) alone, for rows whose keys and values are not needed."""
        dim = normed.shape[-1]
        return F.linear(normed, self.qkv.weight[:dim], self.qkv.bias[:dim])

    def key_value(self, normed: Tensor) -> Tensor:
        """Keys and values (..., 2d) alone, for rows that do not ask."""
        dim = normed.shape[-1]
        return F.linear(normed, self.qkv.weight[dim:], self.qkv.bias[dim:])

    def forward(self, x: Tensor, mask: Optional[Tensor], last_only: bool) -> Tensor:
        """Runs whole sequences.

        Args:
            x: (N, S, d).
            mask: bool, broadcastable to (N, 1, S, S), true where attention is allowed; None for everywhere.
            last_only: compute the last token of each sequence alone.

        Returns:
            (N, S, d), or (N, 1, d) with `last_only`.
        """
        normed = self.norm1(x)
        if last_only:
            x = x[:, -1:]
            q = self.query(normed[:, -1:])
            k, v = self.key_value(normed).chunk(2, dim=-1)
            if mask is not None:
                mask = mask[..., -1:, :]
        else:
            q, k, v = self.qkv(normed).chunk(3, dim=-1)
        attended = F.scaled_dot_product_attention(
            self._split_heads(q),
            self._split_heads(k),
            self._split_heads(v),
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        return self.finish(x, attended.transpose(1, 2).flatten(2))

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, [self.num_heads, x.shape[-1] // self.num_heads]).transpose(
            1, 2
        )  # (N, H, S, D)


class SequenceTransformer(nn.Module):
    """Maps token sequences to the final state of [CLS].

    Args:
        dim: width d.
        num_heads: heads of each layer.
        num_layers: N of the paper.
        causal: causal or bidirectional attention.
        dropout: residual dropout.
        attention_dropout: dropout of attention probabilities.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_layers: int,
        causal: bool = True,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.shares_prefixes = causal
        self.num_heads = num_heads
        self.layers = nn.ModuleList(
            [TransformerLayer(dim, num_heads, dropout, attention_dropout) for _ in range(num_layers)]
        )

    def forward(self, vocabulary: Tensor, final: Tensor, tokens: Tensor, visible: Optional[Tensor]) -> Tensor:
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
        mask: Optional[Tensor] = None
        if self.causal:
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        if visible is not None:
            # A token always sees itself, so that no row of the softmax is empty; hidden tokens are read by
            # nobody.
            keys = F.pad(visible, (0, 1), value=True)[:, None, None, :]
            keys = keys | torch.eye(length, dtype=torch.bool, device=x.device)
            mask = keys if mask is None else keys & mask
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(x, mask, index == last)
        return x[:, -1]

    @torch.jit.unused
    def forward_shared(
        self, vocabulary: Tensor, final: Tensor, tokens: Tensor, visible: Optional[Tensor], tree: PrefixTree
    ) -> Tensor:
        """Runs each different prefix once; causal attention only. Arguments as for `forward`.

        The rows are the M prefixes, then the U [CLS] tokens. Each row attends to T + 1 slots: the prefixes
        of its path, of which those up to its own place are valid, and (for [CLS]) itself.
        """
        num_nodes, num_leaves = tree.place.shape[0], tokens.shape[0]
        slots, valid = self._slots(tree, visible)
        inputs = torch.cat([vocabulary, final.unsqueeze(0)])  # (V + 1, d)
        cls_token = vocabulary.shape[0]
        own = torch.cat(
            [tokens[tree.leaf, tree.place], tokens.new_full((num_leaves,), cls_token)]
        )  # (M + U,)
        last = len(self.layers) - 1
        x = torch.empty(0)
        for index, layer in enumerate(self.layers):
            asking = slice(num_nodes if index == last else 0, num_nodes + num_leaves)
            if index == 0 and inputs.shape[0] <= LARGEST_SCORE_TABLE:
                rows = torch.cat([tokens[tree.leaf], tokens])[asking]
                keys = F.pad(rows, (0, 1), value=cls_token)  # (Q, T + 1)
                x = self._first_layer(layer, inputs, own[asking], keys, valid[asking])
                continue
            if index == 0:
                x = inputs[own]
            x = self._shared_layer(layer, x, asking, slots[asking], valid[asking])
        return x

    def _slots(self, tree: PrefixTree, visible: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Returns the rows of each row's slots and which it may attend to, both (M + U, T + 1)."""
        num_nodes, (num_leaves, length) = tree.place.shape[0], tree.paths.shape
        device = tree.place.device
        cls_rows = torch.arange(num_nodes, num_nodes + num_leaves, device=device)
        slots = torch.cat(
            [
                F.pad(tree.paths[tree.leaf], (0, 1)),
                torch.cat([tree.paths, cls_rows.unsqueeze(1)], dim=1),
            ]
        )
        places = torch.arange(length + 1, device=device)
        reached = places <= tree.place.unsqueeze(1)
        if visible is not None:
            reached = reached & F.pad(visible[tree.leaf], (0, 1)) | (places == tree.place.unsqueeze(1))
            reads = F.pad(visible, (0, 1), value=True)
        else:
            reads = torch.ones(num_leaves, length + 1, dtype=torch.bool, device=device)
        return slots, torch.cat([reached, reads])

    def _first_layer(
        self, layer: nn.Module, inputs: Tensor, own: Tensor, keys: Tensor, valid: Tensor
    ) -> Tensor:
        """The layer over raw inputs: scores are looked up in a table of all pairs of vocabulary entries."""
        assert isinstance(layer, TransformerLayer)
        size, dim = inputs.shape
        qkv = layer.qkv(layer.norm1(inputs)).view(size, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(1, 2, 0, 3)  # (H, V + 1, D)
        table = torch.matmul(q * (dim // self.num_heads) ** -0.5, k.transpose(1, 2))  # (H, V + 1, V + 1)
        pairs = own.unsqueeze(1) * size + keys
        scores = F.embedding(pairs, table.flatten(1).t())  # (Q, T + 1, H)
        probabilities = self._softmax(scores, valid, layer).permute(2, 0, 1)  # (H, Q, T + 1)
        # The T + 1 keys of a row are different vocabulary entries, so weights can be laid out over the
        # vocabulary and the mixture of values becomes one matrix product, forwards and backwards.
        weights = probabilities.new_zeros(self.num_heads, keys.shape[0], size)
        weights = weights.scatter(2, keys.expand(self.num_heads, -1, -1), probabilities)
        mixed = torch.matmul(weights, v).transpose(0, 1).flatten(1)  # (Q, d)
        return layer.finish(F.embedding(own, inputs), mixed)

    def _shared_layer(
        self, layer: nn.Module, x: Tensor, asking: slice, slots: Tensor, valid: Tensor
    ) -> Tensor:
        """A later layer: rows gather the keys and values of their slots."""
        assert isinstance(layer, TransformerLayer)
        normed = layer.norm1(x)
        heads = (self.num_heads, x.shape[-1] // self.num_heads)
        q = layer.query(normed[asking]) * heads[1] ** -0.5
        key_value = F.embedding(slots, layer.key_value(normed))  # (Q, T + 1, 2d)
        k, v = (part.unflatten(-1, heads) for part in key_value.chunk(2, dim=-1))  # (Q, T + 1, H, D)
        scores = (q.unflatten(-1, heads).unsqueeze(1) * k).sum(-1)  # (Q, T + 1, H)
        probabilities = self._softmax(scores, valid, layer)
        mixed = (probabilities.unsqueeze(-1) * v).sum(1).flatten(1)
        return layer.finish(x[asking], mixed)

    def _softmax(self, scores: Tensor, valid: Tensor, layer: TransformerLayer) -> Tensor:
        scores = scores.masked_fill(~valid.unsqueeze(-1), float("-inf"))
        return F.dropout(scores.softmax(dim=1), layer.attention_dropout, self.training)
