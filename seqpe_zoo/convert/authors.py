"""The authors' released state dicts in our names, as pure functions of tensors.

The release keeps the position encoder beside the transformer, in a state dict of its own; here both are one
model. Its encoder stores weights as GPT-2 does, [in, out] (`Conv1D`); ours are `nn.Linear`, [out, in].
Reading files and writing checkpoints is not the business of this file.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

_ENCODER_NAMES = {
    "token_of_seqpe_embed.weight": "digit_embedding",
    "pos_of_seqpe_embed.weight": "place_embedding",
    "dim_token_embed": "dimension_embedding",
    "cls_token_embed": "cls_embedding",
    "layernorm.weight": "norm.weight",
    "layernorm.bias": "norm.bias",
    "out_proj.weight": "out.weight",
    "out_proj.bias": "out.bias",
}
_ENCODER_LAYER_NAMES = {
    "layernorm_1": "norm1",
    "attn.c_attn": "qkv",
    "attn.c_proj": "proj",
    "layernorm_2": "norm2",
    "mlp.c_fc": "fc1",
    "mlp.c_proj": "fc2",
}
_ENCODER_LAYER = re.compile(r"transformers\.(\d+)\.(.+)\.(weight|bias)")
_PER_LAYER_PROJECTION = re.compile(r"transformer\.h\.(\d+)\.attn\.pe_qk\.(weight|bias)")
_SHARED_PROJECTION = re.compile(r"transformer\.pe_qk\.(weight|bias)")
_VIT_PROJECTION = re.compile(r"(?:blocks\.(\d+)\.attn\.)?pe_qk\.(weight|bias)")


def encoder_state_dict_from_authors(
    encoder: Mapping[str, Tensor], prefix: str = "encoder."
) -> dict[str, Tensor]:
    """Renames the state of the release's `SequentialPE` to that of our `PositionEncoder`.

    Args:
        encoder: the authors' names, without a prefix.
        prefix: what our names start with; "encoder." for a `SeqPE`.

    Raises:
        ValueError: names are not those of the release's encoder; all are listed.
    """
    if unknown := unknown_encoder_names(encoder):
        raise ValueError(f"{', '.join(unknown)}: no name of the release's position encoder")
    return {prefix + name: tensor for name, tensor in map(_encoder_entry, encoder.items())}


def unknown_encoder_names(encoder: Iterable[str]) -> list[str]:
    """Returns the names that the release's position encoder does not have."""
    return [name for name in encoder if name not in _ENCODER_NAMES and not _is_layer_name(name)]


def names_left_out(model: Iterable[str]) -> list[str]:
    """Returns the names of tensors that carry no weights: the causal masks that old GPT-2 files hold."""
    return [name for name in model if name.endswith((".attn.bias", ".attn.masked_bias"))]


def gpt2_state_dict_from_authors(
    model: Mapping[str, Tensor], encoder: Mapping[str, Tensor], config: Any
) -> dict[str, Tensor]:
    """Renames the state of the release's GPT-2 and of its encoder to that of our `SeqPEGPT2LMHeadModel`.

    Args:
        model: the authors' names, as `transformer.h.0.attn.c_attn.weight`; the tied `lm_head` may be missing.
        encoder: the authors' names, without a prefix; empty for models without SeqPE.
        config: our configuration of the model, or anything with its `train_length` and `n_positions`.

    Raises:
        ValueError: names of the encoder are unknown. Other unknown names of the model are kept as they are.
    """
    converted: dict[str, Tensor] = {}
    left_out = set(names_left_out(model))
    for name, tensor in model.items():
        if match := _PER_LAYER_PROJECTION.fullmatch(name):
            converted[f"transformer.position_encoding.projection.{match[1]}.{match[2]}"] = tensor
        elif match := _SHARED_PROJECTION.fullmatch(name):
            converted[f"transformer.position_encoding.projection.0.{match[1]}"] = tensor
        elif name == "transformer.wpe.weight":
            # (rows, C) or (1, rows, C); the release trains only the rows of its context.
            rows = getattr(config, "train_length", None) or config.n_positions
            converted["transformer.position_encoding.weight"] = tensor.reshape(-1, tensor.shape[-1])[:rows]
        elif name not in left_out:
            converted[name] = tensor
    if "transformer.wte.weight" in converted:
        converted.setdefault("lm_head.weight", converted["transformer.wte.weight"])
    return converted | encoder_state_dict_from_authors(encoder, "transformer.position_encoding.encoder.")


def vit_state_dict_from_authors(
    model: Mapping[str, Tensor], encoder: Mapping[str, Tensor], config: Any
) -> dict[str, Tensor]:
    """Renames the state of the release's ViT and of its encoder to that of our `PositionVisionTransformer`.

    Args:
        model: the authors' names, as `blocks.0.attn.pe_qk.weight`.
        encoder: the authors' names, without a prefix: a position encoder, the frequencies of "rotary_mixed",
            or empty.
        config: anything with the `num_heads` of the model, as a mapping or as an attribute.

    Raises:
        ValueError: names of the encoder are unknown. Other unknown names of the model are kept as they are.
    """
    converted: dict[str, Tensor] = {}
    for name, tensor in model.items():
        if match := _VIT_PROJECTION.fullmatch(name):
            converted[f"position_encoding.projection.{match[1] or 0}.{match[2]}"] = tensor
        elif name == "cls_token_pos_embed":
            converted["position_encoding.prefix"] = tensor.reshape(-1, tensor.shape[-1])
        elif name == "pos_embed" and tensor.ndim == 3:
            converted["position_encoding.prefix"] = tensor[0, :1]
            converted["position_encoding.weight"] = tensor[0, 1:]
        else:
            converted[name] = tensor
    encoder = dict(encoder)
    freqs, num_heads = encoder.pop("freqs", None), _setting(config, "num_heads")
    if freqs is not None:  # (2, depth, heads * pairs)
        divisible = freqs.shape[-1] % num_heads == 0
        converted["position_encoding.freqs"] = freqs.unflatten(-1, (num_heads, -1)) if divisible else freqs
    return converted | encoder_state_dict_from_authors(encoder, "position_encoding.encoder.")


def _setting(config: Any, name: str) -> Any:
    return config[name] if isinstance(config, Mapping) else getattr(config, name)


def _is_layer_name(name: str) -> bool:
    match = _ENCODER_LAYER.fullmatch(name)
    return match is not None and match[2] in _ENCODER_LAYER_NAMES


def _encoder_entry(entry: tuple[str, Tensor]) -> tuple[str, Tensor]:
    name, tensor = entry
    if name in _ENCODER_NAMES:
        ours = _ENCODER_NAMES[name]
        if ours == "dimension_embedding":
            tensor = tensor.reshape(-1, tensor.shape[-1])  # (n, 1, d)
        return ours, tensor.flatten() if ours == "cls_embedding" else tensor
    match = _ENCODER_LAYER.fullmatch(name)
    assert match is not None
    is_conv1d = match[3] == "weight" and not match[2].startswith("layernorm") and tensor.ndim == 2
    tensor = tensor.t().contiguous() if is_conv1d else tensor
    return f"model.layers.{match[1]}.{_ENCODER_LAYER_NAMES[match[2]]}.{match[3]}", tensor
