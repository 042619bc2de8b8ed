"""Train a stock timm ViT with several position encodings at 16 pixels, and test each at 16 and 32.

python examples/swap_position_encoding.py          (500 steps each, a few minutes on one CPU core)
python examples/swap_position_encoding.py 20
"""

import sys

import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import seqpe_zoo  # noqa: F401 (tells timm of the encodings)

DIGITS = load_digits()  # 1,797 pictures of 8 x 8: put your own here
IMAGES = torch.from_numpy(DIGITS.images).float()[:, None] / 16
LABELS = torch.from_numpy(DIGITS.target)
TRAINED = 1257  # the last ones were written by others, and are for the test
ENCODINGS = {
    "ape_learn": {},
    "rope2d_axial": {},
    "seqpe": {"integration": "bias", "bias_scale": 4.0, "dropout": 0.0, "max_position": 40},
}


def pictures(images: Tensor, size: int) -> Tensor:
    """Returns normalised pictures (N, 1, size, size)."""
    return (F.interpolate(images, size=(size, size), mode="bicubic", antialias=True) - 0.305) / 0.376


def train(model: nn.Module, steps: int) -> None:
    """Trains at 16 pixels."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    images = pictures(IMAGES[:TRAINED], 16)
    for _ in range(steps):
        chosen = torch.randint(TRAINED, (32,))
        loss = F.cross_entropy(model.train()(images[chosen]), LABELS[chosen])
        loss = loss + model.position_losses().weighted  # zero for encodings without objectives
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, size: int) -> float:
    """Returns the share of test digits that are recognised at a size, in percent."""
    predicted = model.eval()(pictures(IMAGES[TRAINED:], size)).argmax(-1)
    return 100 * float((predicted == LABELS[TRAINED:]).float().mean())


if __name__ == "__main__":
    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4, "in_chans": 1}
    for name, options in ENCODINGS.items():
        torch.manual_seed(0)
        swap = {"pos_embed": name, "pos_embed_args": options, "dynamic_img_size": True}
        vit = timm.create_model("vit_tiny_patch16_224", num_classes=10, **swap, **shape)
        train(vit, steps=int(sys.argv[1]) if len(sys.argv) > 1 else 500)
        print(name, *(f"{size}px {accuracy(vit, size):.1f}%" for size in (16, 32)))
