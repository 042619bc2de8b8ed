"""The fixtures of the authors' ViT, read into our models; all sizes come from the fixture's configuration."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from timm.layers import LayerNorm
from torch import Tensor

from seqpe_zoo.convert.authors import vit_state_dict_from_authors
from seqpe_zoo.portable.vit import PositionVisionTransformer

FOLDER = Path(os.environ.get("SEQPE_FIXTURES") or Path(__file__).parents[1] / "fixtures")
INTEGRATIONS = {"attn_mul": "mul", "attn_add": "sum", "attn_scalar": "bias", "input_add": "input"}
PROJECTIONS = {"multi": "per_layer", "single": "shared", None: None}
BASELINES = {
    "nope": "nope",
    "rotary": "rope",
    "rotary_2d": "rope2d_axial",
    "rotary_mixed": "rope2d_mixed",
}


def vit_fixtures(prefix: str = "vit_") -> list[str]:
    return sorted(path.stem for path in FOLDER.glob(f"{prefix}*.json"))


def read_fixture(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = json.loads((FOLDER / f"{name}.json").read_text())["config"]
    return config, load_file(FOLDER / f"{name}.safetensors")


def encoding_of(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Our name and options for the authors' configuration."""
    if config["pe_type"] != "seq_pe":
        if config["pe_apply_method"] == "input_add":
            name = "ape_sin" if config["pe_type"] == "sin" else "ape_learn"
        else:
            name = BASELINES[config["pe_apply_method"]]
        return name, {} if config["base"] is None else {"base": config["base"]}
    encoder = config["pe"]
    options = {
        "num_digits": encoder["max_digits"],
        "encoder_dim": encoder["pe_embed_dim"],
        "encoder_heads": encoder["num_attention_heads"],
        "encoder_layers": encoder["layer_num"],
        "encoder_causal": encoder["attn_direction"] == "causal",
        "final_norm": encoder["use_last_layernorm"],
        "mask_padding": encoder["mask_padding"],
        "temperature": encoder["seqpe_temperature"],
        "integration": INTEGRATIONS[config["pe_apply_method"]],
        "projection": PROJECTIONS[config["use_pe_qk_per_layer"]],
        "multi_head": config["use_pe_multi_head"],
        "distance_weight": 0.0,
        "ood_weight": 0.0,
    }
    return "seqpe", options


def build_from_authors(
    config: dict[str, Any], tensors: dict[str, Tensor], **options: Any
) -> PositionVisionTransformer:
    """Our model with the authors' weights, in evaluation mode, for images of any size."""
    name, own_options = encoding_of(config)
    model = PositionVisionTransformer(
        img_size=config["img_size"],
        patch_size=config["patch"],
        in_chans=tensors["model.patch_embed.proj.weight"].shape[1],
        embed_dim=config["dim"],
        depth=config["depth"],
        num_heads=config["heads"],
        num_classes=config["num_classes"],
        norm_layer=partial(LayerNorm, eps=config["ln_eps"]),
        dynamic_img_size=True,
        pos_embed=name,
        pos_embed_args={**own_options, **options},
    )
    parts = {
        prefix: {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        for prefix in ("model.", "pe_model.")
    }
    sizes = {"depth": config["depth"], "num_heads": config["heads"]}
    model.load_state_dict(vit_state_dict_from_authors(parts["model."], parts["pe_model."], sizes))
    return model.eval()


def assert_parity(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=5e-5, rtol=1e-5)
