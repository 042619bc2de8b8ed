"""Models from a single file of weights: a ViT or DeiT of timm, or a GPT-2, told by names and shapes.

A file says less than a folder with `config.json`: heads are taken to be 64 wide, as in the published models.
Anything else needs its folder or, for timm, the name of its architecture.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from .safe_pickle import load_safely
from .zoo_checkpoint import ConversionError, load_exactly

HEAD_WIDTH = 64
HEADS_OF_WIDTH = {1280: 16, 1408: 16, 1664: 16}
"""Published ViTs (huge, giant, gigantic) whose heads are not 64 wide."""


class LoadedModel(NamedTuple):
    """A model with what builds it again."""

    model: Any
    architecture: str = ""
    """Name in timm; empty for a model of transformers."""
    model_args: dict[str, Any] | None = None


def load_state(path: Path) -> dict[str, Tensor]:
    """Returns the weights in a .safetensors file, or in what `torch.save` wrote, without their wrapping.

    Raises:
        ConversionError: the file is damaged or holds something else.
    """
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ConversionError(f"{path.name} is damaged: {error}") from error
    loaded = load_safely(path)
    for key in ("model", "state_dict"):
        loaded = loaded[key] if isinstance(loaded, Mapping) and key in loaded else loaded
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ConversionError(f"{path.name} holds no state dict")
    return {name.removeprefix("module."): tensor for name, tensor in loaded.items()}


def load_weights_file(path: Path, architecture: str | None = None) -> LoadedModel:
    """Builds the model whose weights a file holds.

    Args:
        path: .safetensors, .pth, .pt or .bin.
        architecture: timm's name of the model, where it is no plain ViT.

    Raises:
        ConversionError: the weights are of another model; says what to give instead.
    """
    state = load_state(path)
    if any(name.rpartition("position_encoding.")[1] for name in state):
        raise ConversionError(f"{path.name} holds a model with a position encoding: give its folder")
    if architecture is None and any(name.endswith("wte.weight") for name in state):
        return _load_gpt2(path.name, state)
    if architecture is None and "patch_embed.proj.weight" not in state:
        raise ConversionError(
            f"{path.name} holds neither a ViT of timm nor a GPT-2 (it has {', '.join(sorted(state)[:3])}, "
            "...): "
            "give a folder with config.json, or timm's name of the model as --architecture"
        )
    return _load_timm(path.name, state, architecture)


def _load_timm(name: str, state: dict[str, Tensor], architecture: str | None) -> LoadedModel:
    import timm

    args: dict[str, Any] = {}
    if architecture is None:
        distilled = "dist_token" in state
        architecture = "deit_small_distilled_patch16_224" if distilled else "vit_small_patch16_224"
        args = _vit_arguments(name, state)
    try:
        model = timm.create_model(architecture, **args)
        if not args:
            head = str((model.pretrained_cfg or {}).get("classifier") or "head")
            rows = state.get(f"{head}.weight")
            args = {"num_classes": 0 if rows is None else rows.shape[0]}
            model = timm.create_model(architecture, **args)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConversionError(f"timm does not build {architecture!r}: {error}") from error
    load_exactly(model, state, name)
    rows, columns = getattr(getattr(model, "patch_embed", None), "img_size", None) or (224, 224)
    model.pretrained_cfg.update(input_size=(3, rows, columns), num_classes=model.num_classes)
    return LoadedModel(model.eval(), architecture, args)


def _vit_arguments(name: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Reads off what builds a ViT."""
    patches, table = state["patch_embed.proj.weight"], state.get("pos_embed")
    width, layers = (
        patches.shape[0],
        {match[1] for key in state if (match := re.match(r"blocks\.(\d+)\.", key))},
    )
    extra = sum(key in state for key in ("cls_token", "dist_token"))
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    rows = 0 if table is None or table.ndim != 3 else table.shape[1]
    side = next((math.isqrt(rows - n) for n in (0, extra, extra + registers) if _is_square(rows - n)), 0)
    if not side or width % HEAD_WIDTH or "blocks.0.mlp.fc1.weight" not in state:
        raise ConversionError(
            f"{name} is no plain ViT with a table of positions: give a folder with config.json, or timm's "
            "name "
            "of the model as --architecture"
        )
    args = {
        "img_size": side * patches.shape[-1],
        "patch_size": patches.shape[-1],
        "in_chans": patches.shape[1],
        "embed_dim": width,
        "depth": len(layers),
        "num_heads": HEADS_OF_WIDTH.get(width, width // HEAD_WIDTH),
        "mlp_ratio": state["blocks.0.mlp.fc1.weight"].shape[0] / width,
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "class_token": "cls_token" in state,
        "reg_tokens": registers,
        "no_embed_class": rows == side**2,
        "global_pool": "avg" if "fc_norm.weight" in state or "cls_token" not in state else "token",
        "num_classes": state["head.weight"].shape[0] if "head.weight" in state else 0,
    }
    if "blocks.0.ls1.gamma" in state:
        args["init_values"] = 1e-5  # there is layer scale; the values are in the file
    if "dist_token" in state:  # what DeiT has by its name
        for key in ("class_token", "reg_tokens", "no_embed_class", "global_pool"):
            args.pop(key)
    return args


def _is_square(count: int) -> bool:
    return count > 0 and math.isqrt(count) ** 2 == count


def _load_gpt2(name: str, state: dict[str, Tensor]) -> LoadedModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    if not any(key.startswith("transformer.") for key in state):
        state = {f"transformer.{key}": tensor for key, tensor in state.items()}
    state = {key: t for key, t in state.items() if not key.endswith((".attn.bias", ".attn.masked_bias"))}
    table, tokens = state.get("transformer.wpe.weight"), state["transformer.wte.weight"]
    layers = {match[1] for key in state if (match := re.match(r"transformer\.h\.(\d+)\.", key))}
    if table is None or table.shape[1] % HEAD_WIDTH:
        raise ConversionError(
            f"{name} is no GPT-2 with heads of {HEAD_WIDTH}: give a folder with config.json"
        )
    sizes = {"vocab_size": tokens.shape[0], "n_positions": table.shape[0], "n_embd": table.shape[1]}
    config = GPT2Config(**sizes, n_layer=len(layers), n_head=table.shape[1] // HEAD_WIDTH)
    if tokens.shape[0] <= (config.eos_token_id or 0):
        config.bos_token_id = config.eos_token_id = None
    model = GPT2LMHeadModel(config)
    load_exactly(model, {"lm_head.weight": tokens, **state}, name)
    return LoadedModel(model.eval())
