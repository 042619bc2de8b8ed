"""The rotary baselines of Heo et al.: timm's `vit_*_patch16_rope*_224` and naver-ai's own files, as our ViT.

"rope" becomes `rope2d_axial`, "rope_mixed" becomes `rope2d_mixed`, and "ape" adds `table=True`. timm and
naver-ai keep layer scale as `gamma_1`, timm's frequencies are `rope.freqs`, naver-ai's `freqs` with heads and
pairs in one axis.

Logits are equal at every resolution, but for one thing: beyond the trained resolution timm resizes the table
of the "ape" models with `antialias=True`, whose bicubic kernel has the parameter -0.5; naver-ai and we use
PyTorch's plain bicubic kernel, with -0.75.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.token_cache import file_sha256
from .authors import named_size
from .sources import public_name
from .weights_file import HEAD_WIDTH, load_state
from .zoo_checkpoint import ConversionError, Converted, load_exactly

AXIAL_BASE, MIXED_BASE = 100.0, 10.0
_GRID_BUFFERS = ("freqs_t_x", "freqs_t_y")  # numbers of columns and rows, which are computed


def convert_timm_rope(source: str, image_size: int = 224) -> Converted:
    """Builds our ViT from a timm name (its weights are downloaded) or from a file of naver-ai.

    Args:
        source: as "vit_small_patch16_rope_224.naver_in1k", "local-dir:FOLDER", or a .pth, .bin or
            .safetensors file.
        image_size: of a file's training.

    Raises:
        ConversionError: there is no such model, or it differs from ours in more than names.
    """
    import timm

    path = Path(source)
    if path.is_file():
        converted = build_from_rope_file(path, image_size)
    else:
        try:
            theirs = timm.create_model(source, pretrained=True)
        except (RuntimeError, ValueError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConversionError(f"timm does not give {source!r}: {reason}") from error
        converted = build_from_timm_rope(theirs)
    converted.record["source"] = public_name(source)
    return converted


def build_from_timm_rope(theirs: Any) -> Converted:
    """Builds our ViT with the weights of a timm model of the class `Eva`.

    Raises:
        ConversionError: the model does something that our ViT does not; all reasons are listed.
    """
    problems = _differences(theirs)
    if problems:
        raise ConversionError(f"{type(theirs).__name__} differs from our ViT in more than names:", problems)
    state = dict(theirs.state_dict())
    freqs = state.pop("rope.freqs", None)
    if freqs is not None:
        state["freqs"] = freqs.flatten(2)
    settings = {
        "img_size": tuple(theirs.patch_embed.img_size),
        "num_heads": theirs.blocks[0].attn.num_heads,
        "global_pool": theirs.global_pool,
        "class_token": theirs.cls_token is not None,
        "reg_tokens": 0 if theirs.reg_token is None else theirs.reg_token.shape[1],
        "no_embed_class": theirs.no_embed_class,
    }
    converted = _build(state, settings, float(theirs.rope.temperature), f"timm's {type(theirs).__name__}")
    converted.record["format"] = "timm rope ViT"
    return converted


def build_from_rope_file(path: Path, image_size: int = 224) -> Converted:
    """Builds our ViT from a file of naver-ai/rope-vit.

    Raises:
        ConversionError: the file is no such checkpoint.
    """
    loaded = load_state(path)
    if "cls_token" not in loaded or "patch_embed.proj.weight" not in loaded:
        raise ConversionError(f"{path.name} is no Vision Transformer: it has no cls_token or patch_embed")
    left_out = [name for name in _GRID_BUFFERS if name in loaded]
    state = {name: tensor for name, tensor in loaded.items() if name not in left_out}
    width = state["cls_token"].shape[-1]
    if width % HEAD_WIDTH:
        raise ConversionError(f"{path.name} has width {width}, which is not heads of {HEAD_WIDTH}")
    settings = {
        "img_size": (image_size, image_size),
        "num_heads": width // HEAD_WIDTH,
        "global_pool": "token",
        "class_token": True,
        "reg_tokens": 0,
        "no_embed_class": True,
    }
    base = MIXED_BASE if "freqs" in state else AXIAL_BASE
    converted = _build(state, settings, base, path.name)
    converted.record.update(
        {"format": "naver-ai rope-vit", "files": {path.name: file_sha256(path)}, "left_out": left_out}
    )
    return converted


def _differences(theirs: Any) -> list[str]:
    """What a timm `Eva` does that our ViT does not, as far as its keys do not show it."""
    rope, problems = getattr(theirs, "rope", None), []
    kind = type(rope).__name__
    if kind not in ("RotaryEmbeddingCat", "RotaryEmbeddingMixed"):
        return [f"its rotary embedding is {kind}; rope2d_axial and rope2d_mixed are converted"]
    if rope.grid_indexing != "xy":
        problems.append(f"it turns rows first (grid_indexing={rope.grid_indexing!r}, ours is 'xy')")
    for name, wanted in (("grid_offset", 0.0), ("ref_feat_shape", None), ("in_pixels", False)):
        if getattr(rope, name, wanted) != wanted:
            problems.append(f"its positions are scaled or moved ({name}={getattr(rope, name)})")
    block = theirs.blocks[0]
    if type(block).__name__ != "EvaBlock":
        problems.append(f"its blocks are {type(block).__name__}, ours normalise before attention")
    if getattr(block.attn, "rotate_half", False):
        problems.append("it rotates halves, ours rotates neighbouring pairs")
    if not hasattr(block.attn, "qkv") or block.attn.qkv is None:
        problems.append("its queries, keys and values have weights of their own")
    if theirs.pos_embed is not None and not theirs.no_embed_class:
        problems.append("its table has rows for class tokens (no_embed_class=False)")
    return problems


def _build(state: dict[str, Tensor], settings: dict[str, Any], base: float, source: str) -> Converted:
    import timm

    from .. import timm_models  # noqa: F401 (registers the architectures)

    encoding, options, renamed = _rename(state, settings["num_heads"])
    if base != {"rope2d_axial": AXIAL_BASE, "rope2d_mixed": MIXED_BASE}[encoding]:
        options["base"] = base
    patches = state["patch_embed.proj.weight"]
    layers = [int(match[1]) for name in state if (match := re.match(r"blocks\.(\d+)\.", name))]
    depth, heads = max(layers, default=0) + 1, settings["num_heads"]
    size, args = named_size(patches.shape[-1], patches.shape[0], depth, heads, state)
    if settings["img_size"] != (224, 224):
        args["img_size"] = settings["img_size"]
    if "blocks.0.gamma_1" in state:
        args["init_values"] = 1e-5  # there is layer scale; the values are in the checkpoint
    for key, usual in (("global_pool", "token"), ("class_token", True), ("reg_tokens", 0)):
        if settings[key] != usual:
            args[key] = settings[key]
    args |= {"dynamic_img_size": True, "pos_embed": encoding, "pos_embed_args": options}
    args["num_classes"] = state["head.weight"].shape[0] if "head.weight" in state else 0
    model = timm.create_model(f"vit_{size}_patch16_pe_224", **args)
    load_exactly(model, renamed, source)
    record = {"tensors": {"model": len(state)}, "left_out": []}
    return Converted(model.eval(), "timm", args, record)


def _rename(state: Mapping[str, Tensor], num_heads: int) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Returns the encoding, its options and the state in our names."""
    renamed = {re.sub(r"\.gamma_(\d)$", r".ls\1.gamma", name): tensor for name, tensor in state.items()}
    options: dict[str, Any] = {}
    encoding = "rope2d_axial"
    freqs, table = renamed.pop("freqs", None), renamed.pop("pos_embed", None)
    if freqs is not None:  # (2, depth, heads * pairs)
        encoding = "rope2d_mixed"
        divisible = freqs.shape[-1] % num_heads == 0
        renamed["position_encoding.freqs"] = freqs.unflatten(-1, (num_heads, -1)) if divisible else freqs
    if table is not None:  # (1, patches, C)
        options["table"] = True
        renamed["position_encoding.table.weight"] = table.reshape(-1, table.shape[-1])
    return encoding, options, renamed
