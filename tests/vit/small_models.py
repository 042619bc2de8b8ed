"""Tiny ViTs for tests: width 32, two layers, patches of 4 x 4 pixels."""

from typing import Any

import timm
import torch

from seqpe_zoo import list_position_encodings

NAMES_2D = list_position_encodings(2, causal=False)
ENCODINGS = [(name, {}) for name in NAMES_2D] + [
    ("seqpe", {"integration": "sum"}),
    ("seqpe", {"integration": "bias"}),
    ("seqpe", {"integration": "input"}),
    ("seqpe", {"integration": "mul", "projection": "shared", "multi_head": False}),
]
"""All encodings of images, SeqPE in each of its integrations."""
SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


def small_vit(name: str = "seqpe", options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """A tiny model by way of timm.create_model, in evaluation mode."""
    model = timm.create_model(
        "vit_pico_patch4_pe_32", pos_embed=name, pos_embed_args=options, **{**SIZES, **kwargs}
    )
    return enliven(model).eval()


def enliven(model: Any) -> Any:
    """Draws large weights, so that outputs depend visibly on everything."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.device.type != "meta":
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def images(height: int = 16, width: int = 16, batch: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, height, width)
