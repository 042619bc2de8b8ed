"""One checkpoint for both libraries: a `config.json` with timm's and transformers' parts, one weights file.

timm reads `architecture`, `model_args`, `num_classes` and `pretrained_cfg`; transformers `model_type`, its
fields and `auto_map`; neither minds the other's. The weights have transformers' names, timm's behind `vit.`,
which our timm models read as well.

`transformers_config` describes a timm model in transformers' words. Most of it is read from the model, since
a name of timm implies arguments that a configuration must spell out. What it describes is then built without
memory and compared with the model part by part, so that nothing goes unnoticed.
"""

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from .zoo_checkpoint import ConversionError, Converted, load_exactly, set_pretrained_cfg

ARCHITECTURE = "vit_small_patch16_pe_224"
"""The timm name of models that come from transformers; `model_args` say all that a name would."""
PROCESSOR = "preprocessor_config.json"
_PILLOW_FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}

_FROM_MODEL = (
    "img_size",
    "patch_size",
    "in_chans",
    "embed_dim",
    "depth",
    "num_heads",
    "mlp_ratio",
    "num_classes",
    "qkv_bias",
    "class_token",
    "reg_tokens",
    "global_pool",
    "dynamic_img_size",
)
_NAMES = {
    "proj_drop_rate": "hidden_dropout_prob",
    "attn_drop_rate": "attention_probs_dropout_prob",
    "drop_path_rate": "drop_path_rate",
    "patch_drop_rate": "patch_drop_rate",
    "dynamic_img_pad": "dynamic_image_pad",
    "pos_embed_args": "position_encoding_args",
}


class SharedFiles(NamedTuple):
    """What the two libraries read beside the weights."""

    config: dict[str, Any]
    processor: dict[str, Any]
    """`preprocessor_config.json`."""


def share_config(config: Mapping[str, Any]) -> SharedFiles:
    """Completes the `config.json` of either library.

    Args:
        config: of timm (it names an `architecture`), else of our ViT in transformers.

    Raises:
        ConversionError: the other library has no such model.
    """
    if "architecture" not in config:
        return _complete_transformers(config)
    args = dict(config.get("model_args") or {})
    return _complete_timm(config, _build(config["architecture"], args, config["num_classes"]), args)


def write_shared(converted: Converted, folder: Path) -> None:
    """Writes a timm model of ours for both libraries into a folder that exists.

    Raises:
        ConversionError: transformers has no such model.
    """
    model = converted.model
    set_pretrained_cfg(model)
    args = {name: value for name, value in converted.model_args.items() if name != "num_classes"}
    config, processor = _complete_timm(_timm_part(model, args), model, args)
    vit_for_transformers(converted).model.save_pretrained(folder)
    for name, content in (("config.json", config), (PROCESSOR, processor)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _build(architecture: str, args: Mapping[str, Any], num_classes: int) -> Any:
    """Builds a timm model without memory."""
    import timm

    from .. import timm_models  # noqa: F401 (registers the architectures)

    try:
        with torch.device("meta"):
            return timm.create_model(architecture, **{**args, "num_classes": num_classes})
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise ConversionError(f"timm does not build {architecture!r}: {error}") from error


def _complete_timm(config: Mapping[str, Any], model: Any, args: Mapping[str, Any]) -> SharedFiles:
    # timm takes the channels from model_args and leaves those of the architecture in its pretrained_cfg.
    size = config["pretrained_cfg"].get("input_size") or (3, *model.patch_embed.img_size)
    channels = model.patch_embed.proj.in_channels
    pixels = {**config["pretrained_cfg"], "input_size": [channels, *size[1:]]}
    config = {**config, "pretrained_cfg": pixels}
    labels = config.get("label_names")
    ours = transformers_config(
        model,
        args,
        labels if isinstance(labels, list) and len(labels) == model.num_classes else None,
        **{f"image_{name}": list(pixels[name]) for name in ("mean", "std") if name in pixels},
    )
    return SharedFiles(_joined(json.loads(ours.to_json_string()), config), _processor(ours, pixels))


def _complete_transformers(config: Mapping[str, Any]) -> SharedFiles:
    from ..portable.configuration_seqpe_vit import SeqPEViTConfig

    try:
        ours = SeqPEViTConfig.from_dict(dict(config))
    except (ValueError, TypeError) as error:
        raise ConversionError(f"config.json describes no ViT of ours: {error}") from error
    args = ours.vit_arguments()
    model = _build(ARCHITECTURE, args, ours.num_labels)
    set_pretrained_cfg(model, mean=list(ours.image_mean), std=list(ours.image_std), crop_pct=1.0)
    part = _timm_part(model, args)
    names = [ours.id2label[number] for number in range(ours.num_labels)]
    if names != [f"LABEL_{number}" for number in range(ours.num_labels)]:
        part["label_names"] = names
    return SharedFiles(_joined(config, part), _processor(ours, part["pretrained_cfg"]))


def _timm_part(model: Any, args: Mapping[str, Any]) -> dict[str, Any]:
    """What timm itself would write as `config.json`."""
    from timm.models._hub import save_config_for_hf

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "config.json"
        save_config_for_hf(model, path, model_args=dict(args))
        part: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return part


def _joined(transformers_part: Mapping[str, Any], timm_part: Mapping[str, Any]) -> dict[str, Any]:
    # In a local folder with a `pretrained_cfg` AutoImageProcessor looks for the type in config.json.
    return {**transformers_part, **timm_part, "image_processor_type": "ViTImageProcessor"}


def _processor(config: Any, pixels: Mapping[str, Any]) -> dict[str, Any]:
    """The pictures that timm's evaluation transform makes, as transformers' image processor makes them."""
    height, width = config.image_height_width
    crop = float(pixels.get("crop_pct") or 1.0)
    processor: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": _PILLOW_FILTERS.get(str(pixels.get("interpolation")), 3),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(config.image_mean),
        "image_std": list(config.image_std),
    }
    if crop < 1.0 and height == width and pixels.get("crop_mode", "center") == "center":
        edge = math.floor(height / crop)
        processor |= {"size": {"shortest_edge": edge}, "do_center_crop": True}
        processor["crop_size"] = {"height": height, "width": width}
    if config.num_channels == 3:
        processor["do_convert_rgb"] = True
    return processor


# A timm model in transformers' words.


def vit_for_transformers(converted: Converted) -> Converted:
    """Returns the same model as a `SeqPEViTForImageClassification`.

    Raises:
        ConversionError: transformers' class has no such model, as the distilled DeiT with its two heads.
    """
    from ..portable.modeling_seqpe_vit import SeqPEViTForImageClassification

    model = converted.model
    ours = SeqPEViTForImageClassification(transformers_config(model, converted.model_args))
    load_exactly(ours, {f"vit.{name}": tensor for name, tensor in model.state_dict().items()}, "the ViT")
    return Converted(ours.eval(), "transformers", {}, converted.record)


def transformers_config(
    model: Any, model_args: Mapping[str, Any], labels: list[str] | None = None, **changes: Any
) -> Any:
    """Returns the `SeqPEViTConfig` of a timm model.

    Args:
        model: with a position encoding of ours; on any device, the meta device too.
        model_args: what `timm.create_model` was given beside the name.
        labels: names of its classes.
        **changes: other fields, as `image_mean`.

    Raises:
        ConversionError: transformers' class has no such model.
    """
    from ..portable.configuration_seqpe_vit import SeqPEViTConfig
    from ..portable.vit import PositionVisionTransformer

    if type(model) is not PositionVisionTransformer:
        raise ConversionError(
            f"{type(model).__name__} has no counterpart in transformers; write it for timm instead"
        )
    if model.num_classes == 0:
        raise ConversionError("the model has no classes; write it for timm instead")
    given = {name: value for name, value in model_args.items() if name not in (*_FROM_MODEL, "pos_embed")}
    others = {name: value for name, value in given.items() if name not in _NAMES}
    names = {} if labels is None else {"id2label": dict(enumerate(labels))}
    if labels is not None:
        names["label2id"] = {label: number for number, label in enumerate(labels)}
    config = SeqPEViTConfig(
        **{ours: given[theirs] for theirs, ours in _NAMES.items() if theirs in given},
        **_fields(model),
        position_encoding=model.position_encoding.name,
        vit_args={**_implied(model), **others},
        num_labels=model.num_classes,
        architectures=["SeqPEViTForImageClassification"],
        **names,
        **changes,
    )
    _require_the_same_parts(model, config)
    return config


def _fields(model: Any) -> dict[str, Any]:
    """What the configuration has fields for, as the model has it."""
    height, width = model.patch_embed.img_size
    first = model.blocks[0]
    return {
        "image_size": height if height == width else (height, width),
        "patch_size": model.patch_embed.patch_size[0],
        "num_channels": model.patch_embed.proj.in_channels,
        "hidden_size": model.embed_dim,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": first.attn.num_heads,
        "mlp_ratio": first.mlp.fc1.out_features / model.embed_dim,
        "qkv_bias": first.attn.qkv.bias is not None,
        "class_token": model.cls_token is not None,
        "num_register_tokens": model.num_reg_tokens,
        "global_pool": model.global_pool,
    }


def _implied(model: Any) -> dict[str, Any]:
    """Arguments that names of timm imply and that the configuration has no field for."""
    found: dict[str, Any] = {}
    if model.no_embed_class:
        found["no_embed_class"] = True
    if not isinstance(model.norm_pre, nn.Identity):
        found["pre_norm"] = True
    scale = getattr(model.blocks[0], "ls1", None)
    if hasattr(scale, "init_values"):
        found["init_values"] = float(scale.init_values)
    return found


def _require_the_same_parts(model: Any, config: Any) -> None:
    """Builds what the configuration describes, without memory, and compares it with the model."""
    from ..portable.vit import PositionVisionTransformer

    try:
        with torch.device("meta"):
            built = PositionVisionTransformer(**config.vit_arguments(), num_classes=config.num_labels)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConversionError(f"the model cannot be written for transformers: {error}") from error
    wanted, found = _parts(model), _parts(built)
    if wanted != found:
        difference = next(
            (f"{a!r} instead of {b!r}" for a, b in zip(found, wanted, strict=False) if a != b), "other parts"
        )
        raise ConversionError(
            f"the model cannot be written for transformers: it would have {difference}; write it for timm"
        )


def _parts(model: Any) -> list[str]:
    """Every layer with its settings, every tensor with its shape."""
    tensors = [f"{name} {tuple(tensor.shape)}" for name, tensor in model.state_dict().items()]
    return [line.strip() for line in repr(model).splitlines()] + tensors
