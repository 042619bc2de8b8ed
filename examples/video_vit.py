"""A small video transformer with SeqPE: positions are (time, row, column) of tubelets of 2 x 16 x 16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqpe_zoo import PositionLosses, SeqPE, grid_positions


class Block(nn.Module):
    """A pre-norm transformer layer whose queries and keys learn their positions from its stage."""

    def __init__(self, dim: int, num_heads: int, stage: nn.Module) -> None:
        super().__init__()
        self.num_heads, self.stage = num_heads, stage
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, terms: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.stage.on_query_key(q, k, terms)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class VideoViT(nn.Module):
    """Classifies clips (B, 3, frames, height, width); trained on 8 x 32 x 32, it takes any size."""

    def __init__(self, num_classes: int, dim: int = 64, depth: int = 2, num_heads: int = 4) -> None:
        super().__init__()
        self.tubelets = nn.Conv3d(3, dim, kernel_size=(2, 16, 16), stride=(2, 16, 16))
        host = {"num_heads": num_heads, "num_layers": depth, "train_shape": (4, 2, 2)}
        self.positions = SeqPE(dim, num_dims=3, num_digits=2, projection_init="identity", **host)
        self.blocks = nn.ModuleList(Block(dim, num_heads, self.positions.make_stage()) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, num_classes)

    def forward(self, clips: Tensor) -> Tensor:
        x = self.tubelets(clips)  # (B, C, T, H, W)
        return self._classify(x, self.positions.prepare_grid(x.shape[2:], device=x.device).layers)

    def training_loss(self, clips: Tensor, labels: Tensor) -> tuple[Tensor, PositionLosses]:
        """Returns the loss of the classes and the objectives of SeqPE, from one encoder call."""
        x = self.tubelets(clips)
        grid = grid_positions(x.shape[2:], device=x.device)
        prepared, losses = self.positions.prepare_for_training(grid, x.shape[2:], len(x))
        return F.cross_entropy(self._classify(x, prepared.layers), labels), losses

    def _classify(self, x: Tensor, layers: list[Tensor]) -> Tensor:
        x = x.flatten(2).transpose(1, 2)
        for block, terms in zip(self.blocks, layers):
            x = block(x, terms)
        return self.head(self.norm(x).mean(dim=1))


if __name__ == "__main__":
    model = VideoViT(num_classes=2)
    loss, position_losses = model.training_loss(torch.randn(4, 3, 8, 32, 32), torch.tensor([0, 1, 0, 1]))
    (loss + position_losses.weighted).backward()
    print(model.eval()(torch.randn(1, 3, 32, 48, 64)).shape)  # a longer and larger clip than in training
