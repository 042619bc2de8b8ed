"""A ViT of ours in transformers' classes: the same weights behind `vit.`, the same logits.

timm and transformers name weights and arguments differently, so a folder serves one of them; `convert` and
`graft` write the one that is asked for.
"""

from typing import Any

from .errors import ConversionError
from .state_check import load_exactly
from .zoo_checkpoint import Converted

_SIZES = ("img_size", "patch_size", "in_chans", "embed_dim", "depth", "num_heads", "mlp_ratio", "num_classes")
_NAMES = {
    "qkv_bias": "qkv_bias",
    "class_token": "class_token",
    "reg_tokens": "num_register_tokens",
    "global_pool": "global_pool",
    "drop_path_rate": "drop_path_rate",
    "pos_embed": "position_encoding",
    "pos_embed_args": "position_encoding_args",
}


def vit_for_transformers(converted: Converted) -> Converted:
    """Returns the same model as a `SeqPEViTForImageClassification`.

    Raises:
        ConversionError: transformers' class has no such model, as the distilled DeiT with its two heads.
    """
    from ..portable.configuration_seqpe_vit import SeqPEViTConfig
    from ..portable.modeling_seqpe_vit import SeqPEViTForImageClassification
    from ..portable.vit import PositionVisionTransformer

    model = converted.model
    if type(model) is not PositionVisionTransformer:
        raise ConversionError(
            f"{type(model).__name__} has no counterpart in transformers; write it for timm instead"
        )
    if model.num_classes == 0:
        raise ConversionError("the model has no classes; write it for timm instead")
    given = dict(converted.model_args)
    others = {key: given[key] for key in given if key not in (*_NAMES, *_SIZES, "dynamic_img_size")}
    config = SeqPEViTConfig(
        **{ours: given[theirs] for theirs, ours in _NAMES.items() if theirs in given},
        **_sizes(model),
        vit_args=others,
        num_labels=model.num_classes,
    )
    ours = SeqPEViTForImageClassification(config)
    load_exactly(ours, {f"vit.{name}": tensor for name, tensor in model.state_dict().items()}, "the ViT")
    return Converted(ours.eval(), "transformers", {}, converted.record)


def _sizes(model: Any) -> dict[str, Any]:
    """What the architecture's name said, which has no meaning for transformers."""
    height, width = model.patch_embed.img_size
    hidden = model.blocks[0].mlp.fc1.out_features
    return {
        "image_size": height if height == width else (height, width),
        "patch_size": model.patch_embed.patch_size[0],
        "num_channels": model.patch_embed.proj.in_channels,
        "hidden_size": model.embed_dim,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": model.blocks[0].attn.num_heads,
        "mlp_ratio": hidden / model.embed_dim,
    }
