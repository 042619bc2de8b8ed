"""A recurrent sequence model for digits: the second one, proving that "any sequential model can be used".

Recurrent states depend on what came before by construction, so prefixes are always shared: `forward_shared`
walks down the prefix tree, one step for all prefixes of a place.
"""

from typing import Optional

import torch
from torch import Tensor, nn

from .prefix_tree import PrefixTree


class SequenceGRU(nn.Module):
    """Maps token sequences to the top state after [CLS].

    Arguments of the methods are those of `SequenceTransformer`.
    Hidden tokens (`visible` false) leave the state as it is. Dropout is applied between layers.
    """

    def __init__(self, dim: int, num_layers: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.shares_prefixes = True
        self.dropout = nn.Dropout(dropout)
        self.cells = nn.ModuleList([nn.GRUCell(dim, dim) for _ in range(num_layers)])

    def forward(self, vocabulary: Tensor, final: Tensor, tokens: Tensor, visible: Optional[Tensor]) -> Tensor:
        """Runs every full sequence, token by token, all sequences at once; returns (N, d)."""
        count = tokens.shape[0]
        state = torch.zeros(count, len(self.cells), final.shape[0], dtype=final.dtype, device=final.device)
        for place in range(tokens.shape[1]):
            advanced = self._step(vocabulary[tokens[:, place]], state)
            if visible is None:
                state = advanced
            else:
                state = torch.where(visible[:, place, None, None], advanced, state)
        return self._step(final.expand(count, -1), state)[:, -1]

    @torch.jit.unused
    def forward_shared(
        self, vocabulary: Tensor, final: Tensor, tokens: Tensor, visible: Optional[Tensor], tree: PrefixTree
    ) -> Tensor:
        """Runs each different prefix once; returns (U, d)."""
        state = final.new_zeros(1, len(self.cells), final.shape[0])
        for place in range(tokens.shape[1]):
            nodes = slice(tree.first[place], tree.first[place + 1])
            leaf = tree.leaf[nodes]
            if place > 0:
                state = state[tree.paths[leaf, place - 1] - tree.first[place - 1]]
            advanced = self._step(vocabulary[tokens[leaf, place]], state.expand(leaf.shape[0], -1, -1))
            state = (
                advanced
                if visible is None
                else torch.where(visible[leaf, place, None, None], advanced, state)
            )
        leaves = state[tree.paths[:, -1] - tree.first[tokens.shape[1] - 1]]
        return self._step(final.expand(tokens.shape[0], -1), leaves)[:, -1]

    def _step(self, x: Tensor, state: Tensor) -> Tensor:
        """Advances all layers by one token: (N, d) and (N, layers, d) to (N, layers, d)."""
        advanced = []
        for index, cell in enumerate(self.cells):
            x = cell(x if index == 0 else self.dropout(x), state[:, index])
            advanced.append(x)
        return torch.stack(advanced, dim=1)
