"""A ViT of ours in transformers' classes: the same weights behind `vit.`, the same logits.

`transformers_config` describes a timm model in transformers' words. Most of it is read from the model, since
a name of timm implies arguments that a configuration must spell out. What it describes is then built without
memory and compared with the model part by part, so that nothing goes unnoticed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .zoo_checkpoint import ConversionError, Converted, load_exactly

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
