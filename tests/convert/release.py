"""Folders in the layout of the authors' release, assembled from the fixtures.

The layout is that of SPEC.md, section 9; keys and values of the configurations are those of its two YAML
files, with the sizes of the fixture.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

FOLDER = Path(os.environ.get("SEQPE_FIXTURES") or Path(__file__).parents[1] / "fixtures")
RUN = {
    "PE_MAIN_BATCH_SIZE": 16,
    "PE_RANDOM_SHIFT_DOWNSAMPLE": 320,
    "PE_RANDOM_SHIFT_RATE": 0.1,
    "PE_USE_RANDOM_SHIFT": True,
    "SEQPE_ACTIVATION_FUNCTION": "gelu_new",
    "SEQPE_ADD_OUT_PROJ": True,
    "SEQPE_ATTN_DIRECTION": "causal",
    "SEQPE_ATTN_PDROP": 0.0,
    "SEQPE_CONTRASTIVE_BATCH_SIZE": 16,
    "SEQPE_CONTRASTIVE_NUM": 32,
    "SEQPE_CONTRASTIVE_WEIGHT": 0.1,
    "SEQPE_DECAY": 0.0,
    "SEQPE_FREEZE_EPOCH_NUM": -1,
    "SEQPE_INIT_NORM_WEIGHT": 1.0,
    "SEQPE_LAST_LAYERNORM": True,
    "SEQPE_LAYER_NUM": 2,
    "SEQPE_LOGIT_SCALED_LOSS": 1.0,
    "SEQPE_MASK_PADDING": False,
    "SEQPE_RESID_PDROP": 0.1,
    "SEQPE_SCALE_ATTN_WEIGHTS": True,
    "SEQPE_TEMPERATURE": 1.0,
    "SEQPE_TRANSFER_BATCH_SIZE": 16,
    "SEQPE_TRANSFER_BETA": 1.0,
    "SEQPE_TRANSFER_METRIC": "kl_div",
    "SEQPE_TRANSFER_NUM": 32,
    "SEQPE_TRANSFER_WEIGHT": 0.1,
}


def fixtures(prefix: str) -> list[str]:
    return sorted(path.stem for path in FOLDER.glob(f"{prefix}*.json"))


def read_fixture(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = json.loads((FOLDER / f"{name}.json").read_text())["config"]
    return config, load_file(FOLDER / f"{name}.safetensors")


def weights_of(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The transformer's and the encoder's state dict."""
    model, encoder = (
        {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        for prefix in ("model.", "pe_model.")
    )
    return model, encoder


def image_config(config: dict[str, Any]) -> dict[str, Any]:
    encoder = config.get("pe", {})
    return {
        **RUN,
        "DATA": {"IMG_SIZE": config["img_size"]},
        "MODEL": {
            "DEPTH": config["depth"],
            "EMBED_DIM": config["dim"],
            "NUM_CLASSES": config["num_classes"],
            "NUM_HEADS": config["heads"],
        },
        "NUM_ATTENTION_HEADS": encoder.get("num_attention_heads", config["heads"]),
        "PE_APPLY_METHOD": config["pe_apply_method"],
        "PE_DATA_DIM": 2,
        "PE_EMBED_DIM": encoder.get("pe_embed_dim", config["dim"]),
        "PE_MAX_POSITION": 100 ** encoder.get("max_digits", 2),
        "PE_OUT_PROJ_DIM": encoder.get("out_proj_dim", config["dim"]),
        "PE_TYPE": config["pe_type"],
        "SEQPE_ATTN_DIRECTION": encoder.get("attn_direction", "causal"),
        "SEQPE_LAST_LAYERNORM": encoder.get("use_last_layernorm", True),
        "SEQPE_LAYER_NUM": encoder.get("layer_num", 2),
        "SEQPE_MASK_PADDING": encoder.get("mask_padding", False),
        "SEQPE_MAX_DIGITS": encoder.get("max_digits", 2),
        "SEQPE_TEMPERATURE": encoder.get("seqpe_temperature", 1.0),
        "SINUSOIDAL_PE_BASE": config.get("base") or 10000,
        "TRAIN": {"PATCH_SIZE": config["patch"]},
        "USE_PE_MULTI_HEAD": config.get("use_pe_multi_head", True),
        "USE_PE_QK_PER_LAYER": config.get("use_pe_qk_per_layer") or "multi",
    }


@contextmanager
def yacs() -> Iterator[type]:
    """The yacs library, as far as a pickle shows it: a dict subclass with attributes. Gone afterwards."""
    names = ("yacs", "yacs.config")
    assert not any(name in sys.modules for name in names)
    package, module = ModuleType("yacs"), ModuleType("yacs.config")

    class CfgNode(dict):
        def __init__(self, values=None):
            nested = {k: CfgNode(v) if isinstance(v, dict) else v for k, v in (values or {}).items()}
            super().__init__(nested)
            self.__dict__.update(__immutable__=True, __deprecated_keys__=set(), __renamed_keys__={})

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    module.CfgNode, package.config = CfgNode, module
    sys.modules.update(zip(names, (package, module), strict=True))
    try:
        yield CfgNode
    finally:
        for name in names:
            del sys.modules[name]


def write_image_run(folder: Path, name: str, change: Any = None, config_file: bool = True) -> Path:
    """`best_model.pth` and `config.json` of a fixture; `change` may edit the two state dicts."""
    config, tensors = read_fixture(name)
    run = image_config(config)
    model, encoder = weights_of(tensors)
    if change is not None:
        change(model, encoder)
    folder.mkdir(parents=True)
    with yacs() as node:
        saved = {"model": model, "pe_model": encoder, "max_accuracy": 81.2, "epoch": 399, "config": node(run)}
        torch.save(saved, folder / "best_model.pth")
    if config_file:
        (folder / "config.json").write_text(yaml.safe_dump(run))
    return folder


def text_configs(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`config.json` and `pe_config.json`."""
    pe_config = {
        **RUN,
        "MODEL": {},
        "NUM_ATTENTION_HEADS": config["pe_heads"],
        "PE_APPLY_METHOD": config["pe_apply_method"],
        "PE_DATA_DIM": 1,
        "PE_EMBED_DIM": config["pe_embed_dim"],
        "PE_MAX_POSITION": config["pe_max_position"],
        "PE_OUT_PROJ_DIM": config["pe_out_proj_dim"],
        "PE_TYPE": config["pe_type"],
        "SEQPE_DIST_SAMPLE_RANGE": 256,
        "SEQPE_LAYER_NUM": config["pe_layers"],
        "SEQPE_MAX_DIGITS": config["max_digits"],
        "SEQPE_SCALAR_SCALE": config["seqpe_scalar_scale"],
        "SINUSOIDAL_PE_BASE": config["base"],
        "USE_PE_MULTI_HEAD": config["use_pe_multi_head"],
        "USE_PE_QK_PER_LAYER": config["use_pe_qk_per_layer"],
    }
    gpt2 = {
        "activation_function": config["activation"],
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "bos_token_id": 0,
        "embd_pdrop": 0.1,
        "eos_token_id": 0,
        "layer_norm_epsilon": config["ln_eps"],
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": config["n_embd"],
        "n_head": config["n_head"],
        "n_inner": None,
        "n_layer": config["n_layer"],
        "n_positions": 1024,
        "pe_config": pe_config,
        "reorder_and_upcast_attn": False,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "vocab_size": config["vocab_size"],
    }
    return gpt2, pe_config


def write_text_run(folder: Path, name: str, change: Any = None) -> Path:
    """A text run of a fixture, with what accelerate leaves beside the weights."""
    config, tensors = read_fixture(name)
    gpt2, pe_config = text_configs(config)
    model, encoder = weights_of(tensors)
    if change is not None:
        change(model, encoder)
    (folder / "best_model").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(gpt2))
    (folder / "pe_config.json").write_text(yaml.safe_dump(pe_config))
    (folder / "train_args.json").write_text(json.dumps({"block_size": config["train_len"], "seed": 10086}))
    (folder / "vocab.json").write_text("{}")
    save_file(model, folder / "model.safetensors")
    save_file(model, folder / "best_model" / "model.safetensors")
    if encoder:
        save_file(encoder, folder / "best_model" / "model_1.safetensors")
    (folder / "best_model" / "random_states_0.pkl").write_bytes(b"never opened")
    return folder
