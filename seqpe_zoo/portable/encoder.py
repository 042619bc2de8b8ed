"""The position encoder of the paper (section 3.2): positions in, vectors out.

Digit, digit-place and dimension embeddings are summed, [CLS] is appended last, a named sequence model reads
the sequence, and the state of [CLS] is normalised and projected. Equal positions are encoded once, and
positions that share leading digits share that computation wherever it is exact (see `prefix_tree.py`).
Memory in inference is bounded by `chunk_size`. What is done with the vectors is the business of
`pe_seqpe.py`.
"""

from typing import Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from .digits import positions_to_digits, real_digit_mask
from .prefix_tree import build_prefix_tree, sort_unique_positions
from .sequence_gru import SequenceGRU
from .sequence_transformer import SequenceTransformer
from .tracing import is_traced

SEQUENCE_MODELS: Dict[str, type] = {
    "transformer": SequenceTransformer,
    "gru": SequenceGRU,
}


class PositionEncoder(nn.Module):
    """Encodes n-dimensional positions as vectors.

    Letters of the paper: b is `base`, k is `num_digits`, n is `num_dims`, d is `dim`, N is `num_layers`.

    Args:
        out_dim: width of the vectors.
        num_dims: coordinates of a position.
        num_digits: digits per coordinate; positions go up to base ** num_digits - 1.
        base: base of the number system.
        dim: width of the encoder.
        num_heads: attention heads of the encoder.
        num_layers: layers of the encoder.
        sequence_model: a key of `SEQUENCE_MODELS`.
        causal: causal (the paper) or bidirectional attention; a recurrent model is always causal.
        dropout: residual dropout.
        attention_dropout: dropout of the encoder's attention probabilities.
        final_norm: whether the state of [CLS] is normalised before the projection.
        temperature: the output is divided by it.
        mask_padding: whether the zeros that pad a coordinate are hidden from attention. The release leaves
            them visible in all its runs, and so does the default.
        allow_absent: whether a coordinate may be -1, "not there", and is then hidden: for batches that mix
            text and images.
        chunk_size: positions encoded at a time in inference.
    """

    def __init__(
        self,
        out_dim: int,
        num_dims: int,
        num_digits: int,
        base: int = 10,
        dim: int = 384,
        num_heads: int = 6,
        num_layers: int = 2,
        sequence_model: str = "transformer",
        causal: bool = True,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        final_norm: bool = True,
        temperature: float = 1.0,
        mask_padding: bool = False,
        allow_absent: bool = False,
        chunk_size: int = 2048,
    ) -> None:
        super().__init__()
        self.base, self.num_digits, self.num_dims = base, num_digits, num_dims
        self.capacity = base**num_digits
        self.out_dim = out_dim
        self.mask_padding, self.allow_absent = mask_padding, allow_absent
        self.chunk_size = chunk_size
        self.inverse_temperature = 1.0 / temperature

        self.digit_embedding = nn.Parameter(torch.empty(base, dim))  # T
        # O has a row for each place of the whole sequence, as in the release; the paper says k rows, shared
        # by the dimensions. With n * k rows the authors' checkpoints load.
        self.place_embedding = nn.Parameter(torch.empty(num_dims * num_digits, dim))
        # With one dimension D is a constant, and the paper fixes it at zero.
        self.dimension_embedding = nn.Parameter(torch.empty(num_dims, dim)) if num_dims > 1 else None
        self.cls_embedding = nn.Parameter(torch.empty(dim))
        if sequence_model == "gru":
            self.model: nn.Module = SequenceGRU(dim, num_layers, dropout)
        else:
            self.model = SequenceTransformer(dim, num_heads, num_layers, causal, dropout, attention_dropout)
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.out = nn.Linear(dim, out_dim)
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        """Initialises as the release does: normal weights of `std`, zero biases, unit norms."""
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.GRUCell):
                module.reset_parameters()
        for embedding in (self.digit_embedding, self.place_embedding, self.cls_embedding):
            nn.init.normal_(embedding, std=std)
        if self.dimension_embedding is not None:
            nn.init.normal_(self.dimension_embedding, std=std)

    def forward(self, positions: Tensor) -> Tensor:
        """Encodes positions (..., n) to vectors (..., out_dim). Positions are not checked here."""
        flat = positions.reshape(-1, self.num_dims)
        if torch.jit.is_scripting():
            encoded = self.encode_each(flat)
        else:
            encoded = self._encode_flat(flat)
        shape = list(positions.shape)
        return encoded.reshape(shape[:-1] + [self.out_dim])

    def encode_each(self, positions: Tensor) -> Tensor:
        """Encodes (N, n) positions one by one, with static shapes and nothing shared; returns (N, P)."""
        tokens, visible = self._tokens(positions)
        return self._project(self.model(self._vocabulary(), self.cls_embedding, tokens, visible))

    @torch.jit.unused
    def _encode_flat(self, positions: Tensor) -> Tensor:
        if is_traced():
            return self.encode_each(positions)
        unique, inverse = sort_unique_positions(positions, self.capacity)
        count = unique.shape[0]
        if torch.is_grad_enabled() or count <= self.chunk_size:
            encoded = self._encode_sorted(unique)
        else:
            encoded = self._project(self.cls_embedding[None]).new_empty(count, self.out_dim)
            for start in range(0, count, self.chunk_size):
                stop = start + self.chunk_size
                encoded[start:stop] = self._encode_sorted(unique[start:stop])
        return encoded if inverse is None else nn.functional.embedding(inverse, encoded)

    def _encode_sorted(self, positions: Tensor) -> Tensor:
        """Encodes sorted, different positions."""
        tokens, visible = self._tokens(positions)
        vocabulary = self._vocabulary()
        if self.model.shares_prefixes and positions.shape[0] > 0:
            # Absent coordinates have a token of no meaning; what tells prefixes apart is the position itself.
            symbols = tokens if not self.allow_absent else tokens * 2 + self._present(positions)
            tree = build_prefix_tree(symbols)
            states = self.model.forward_shared(vocabulary, self.cls_embedding, tokens, visible, tree)  # type: ignore[operator]
        else:
            states = self.model(vocabulary, self.cls_embedding, tokens, visible)
        return self._project(states)

    def _vocabulary(self) -> Tensor:
        """Input vectors of all (place, digit) pairs, (n * k * b, d): T[digit] + O[place] + D[dimension]."""
        places: Tensor = self.place_embedding
        if self.dimension_embedding is not None:
            places = places + self.dimension_embedding.repeat_interleave(self.num_digits, dim=0)
        return (places.unsqueeze(1) + self.digit_embedding).flatten(0, 1)

    def _tokens(self, positions: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """Turns positions (N, n) into vocabulary entries (N, n * k) and tells which may be attended to."""
        visible: Optional[Tensor] = None
        if self.allow_absent:
            visible = self._present(positions)
            positions = positions.clamp(min=0)
        digits = positions_to_digits(positions, self.base, self.num_digits)
        if self.mask_padding:
            real = real_digit_mask(digits, self.num_digits)
            visible = real if visible is None else visible & real
        places = torch.arange(digits.shape[-1], device=digits.device)
        return digits + places * self.base, visible

    def _present(self, positions: Tensor) -> Tensor:
        """Marks the digits of coordinates that are there, bool (N, n * k)."""
        return (positions >= 0).repeat_interleave(self.num_digits, dim=-1)

    def _project(self, states: Tensor) -> Tensor:
        return self.out(self.norm(states)) * self.inverse_temperature
