"""Train a stock timm ViT with several position encodings at 16 pixels, and test each at 16, 32 and 64.

python examples/swap_position_encoding.py          (500 steps each, a few minutes on one CPU core)
python examples/swap_position_encoding.py 20
"""

import sys

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqpe_zoo  # noqa: F401 (tells timm of the encodings)
from seqpe_zoo.data.glyph_images import load_glyph_images

GLYPHS = load_glyph_images()  # letters in the fonts of matplotlib, 64 x 64: put your own pictures here
TRAIN, TEST = GLYPHS.split("train"), GLYPHS.split("test")  # the test is in other fonts
SEQPE = {"integration": "sum", "dropout": 0.0, "max_position": 40}
ENCODINGS = {
    "ape_learn": ("ape_learn", {}),
    "rope2d_axial": ("rope2d_axial", {}),
    "seqpe": ("seqpe", SEQPE),
    "seqpe stretched": ("seqpe", {**SEQPE, "extrapolation": "interpolate"}),
}


def pictures(images: Tensor, size: int) -> Tensor:
    """Returns normalised pictures (N, 1, size, size)."""
    return GLYPHS.pixels(images, size, channels=1)


def train(model: nn.Module, steps: int) -> None:
    """Trains at 16 pixels."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    images = pictures(TRAIN.images, 16)
    for _ in range(steps):
        chosen = torch.randint(len(images), (64,))
        loss = F.cross_entropy(model.train()(images[chosen]), TRAIN.labels[chosen])
        loss = loss + model.position_losses().weighted  # zero for encodings without objectives
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, size: int) -> float:
    """Returns the share of test letters that are recognised at a size, in percent."""
    predicted = model.eval()(pictures(TEST.images, size)).argmax(-1)
    return 100 * float((predicted == TEST.labels).float().mean())


if __name__ == "__main__":
    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4, "in_chans": 1}
    for name, (encoding, options) in ENCODINGS.items():
        torch.manual_seed(0)
        swap = {"pos_embed": encoding, "pos_embed_args": options, "dynamic_img_size": True}
        vit = timm.create_model("vit_tiny_patch16_224", num_classes=34, **swap, **shape)
        train(vit, steps=int(sys.argv[1]) if len(sys.argv) > 1 else 500)
        print(name, *(f"{size}px {accuracy(vit, size):.1f}%" for size in (16, 32, 64)))
