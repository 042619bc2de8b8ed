"""A small video transformer with SeqPE: positions are (time, row, column) of tubelets of 2 x 16 x 16."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqpe_zoo import AttentionOperation, PositionLosses, Positions, SeqPE


class Block(nn.Module):
    """A pre-norm transformer layer; its operation gives queries and keys their positions."""

    def __init__(self, dim: int, num_heads: int, operation: AttentionOperation) -> None:
        super().__init__()
        self.num_heads, self.operation = num_heads, operation
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.operation.on_query(q, inputs), self.operation.on_key(k, inputs)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class VideoViT(nn.Module):
    """Classifies clips (B, 3, frames, height, width); trained on 8 x 32 x 32, it takes any size."""

    def __init__(self, num_classes: int, dim: int = 64, depth: int = 2, num_heads: int = 4) -> None:
        super().__init__()
        self.tubelets = nn.Conv3d(3, dim, kernel_size=(2, 16, 16), stride=(2, 16, 16))
        host = {"num_heads": num_heads, "num_layers": depth, "num_dims": 3, "train_shape": (4, 2, 2)}
        self.positions = SeqPE(dim, num_digits=2, **host)
        blocks = (Block(dim, num_heads, self.positions.make_operation()) for _ in range(depth))
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, num_classes)

    def forward(self, clips: Tensor) -> Tensor:
        return self.classify(clips, objectives=False)[0]

    def training_loss(self, clips: Tensor, labels: Tensor) -> tuple[Tensor, PositionLosses]:
        """Returns the loss of the classes and the objectives of SeqPE, from one encoder call."""
        logits, losses = self.classify(clips, objectives=True)
        return F.cross_entropy(logits, labels), losses

    def classify(self, clips: Tensor, objectives: bool) -> tuple[Tensor, PositionLosses | None]:
        x = self.tubelets(clips)  # (B, C, T, H, W)
        inputs = self.positions(Positions(tuple(x.shape[2:]), (0, 0, 0)), len(x), x.device, objectives)
        x = x.flatten(2).transpose(1, 2)
        for block, layer in zip(self.blocks, inputs.layers):
            x = block(x, layer)
        return self.head(self.norm(x).mean(dim=1)), inputs.losses


if __name__ == "__main__":
    model = VideoViT(num_classes=2)
    loss, position_losses = model.training_loss(torch.randn(4, 3, 8, 32, 32), torch.tensor([0, 1, 0, 1]))
    (loss + position_losses.weighted).backward()
    print(model.eval()(torch.randn(1, 3, 32, 48, 64)).shape)  # a longer and larger clip than in training
