"""The authors' released state dicts and configurations in our terms, as pure functions.

The release keeps the position encoder beside the transformer, in a state dict of its own; here both are one
model. Its encoder stores weights as GPT-2 does, [in, out] (`Conv1D`); ours are `nn.Linear`, [out, in].

Its configurations are YAML in capitals (yacs): `config.json` beside the image checkpoint, `pe_config.json`
beside the text checkpoint, whose `config.json` is that of GPT-2. A value that our models do not have is an
error, not something to be dropped.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from .gpt2 import gpt2_settings, names_left_out
from .zoo_checkpoint import ConversionError

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


# Configurations.

INTEGRATIONS = {"attn_mul": "mul", "attn_add": "sum", "attn_scalar": "bias", "input_add": "input"}
PROJECTIONS = {"multi": "per_layer", "single": "shared", "none": "none", None: "none"}
ROTATIONS = {"rotary": "rope", "rotary_2d": "rope2d_axial", "rotary_mixed": "rope2d_mixed"}
TABLES = {"nope": "nope", "sin": "ape_sin", "vanilla": "ape_learn", "alibi": "alibi"}
_FIXED = {
    "SEQPE_ACTIVATION_FUNCTION": "gelu_new",
    "SEQPE_ADD_OUT_PROJ": True,
    "SEQPE_SCALE_ATTN_WEIGHTS": True,
}
_ENCODER_OPTIONS = {
    "num_digits": "SEQPE_MAX_DIGITS",
    "encoder_dim": "PE_EMBED_DIM",
    "encoder_heads": "NUM_ATTENTION_HEADS",
    "encoder_layers": "SEQPE_LAYER_NUM",
    "dropout": "SEQPE_RESID_PDROP",
    "attention_dropout": "SEQPE_ATTN_PDROP",
    "final_norm": "SEQPE_LAST_LAYERNORM",
    "temperature": "SEQPE_TEMPERATURE",
    "mask_padding": "SEQPE_MASK_PADDING",
    "multi_head": "USE_PE_MULTI_HEAD",
    "distance_weight": "SEQPE_CONTRASTIVE_WEIGHT",
    "ood_weight": "SEQPE_TRANSFER_WEIGHT",
    "num_pivots": "SEQPE_CONTRASTIVE_BATCH_SIZE",
    "num_candidates": "SEQPE_CONTRASTIVE_NUM",
    "num_starts": "SEQPE_TRANSFER_BATCH_SIZE",
    "num_transfer": "SEQPE_TRANSFER_NUM",
}
_TRAIN_LENGTHS = ("block_size", "max_length", "max_seq_length", "max_seq_len")


def encoding_from_authors(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns our name and options for the position encoding of a run.

    Raises:
        ConversionError: a setting is missing, or has a value that our encodings do not have.
    """
    kind, method = _need(config, "PE_TYPE"), _need(config, "PE_APPLY_METHOD")
    if kind == "seq_pe":
        return "seqpe", _seqpe_options(config, method)
    name = ROTATIONS.get(method) if kind == "rotary" else TABLES.get(kind)
    if name is None:
        raise ConversionError(f"PE_TYPE={kind!r} with PE_APPLY_METHOD={method!r} is unknown here")
    if name == "alibi":
        return name, {"scaled": True}  # the release divides the bias by sqrt(D); see DESIGN, section 4
    has_base = name in (*ROTATIONS.values(), "ape_sin")
    return name, {"base": float(_need(config, "SINUSOIDAL_PE_BASE"))} if has_base else {}


def _seqpe_options(config: Mapping[str, Any], method: str) -> dict[str, Any]:
    for key, value in _FIXED.items():
        if config.get(key, value) != value:
            raise ConversionError(f"{key}={config[key]!r} is not supported, only {value!r}")
    missing = [key for key in _ENCODER_OPTIONS.values() if key not in config]
    if missing:
        raise ConversionError("the configuration lacks settings of the position encoder:", missing)
    options = {ours: config[theirs] for ours, theirs in _ENCODER_OPTIONS.items()}
    options["init"] = "release"
    options["encoder_causal"] = _choose(config, "SEQPE_ATTN_DIRECTION", {"causal": True, "bi": False})
    options["integration"] = _choose({"PE_APPLY_METHOD": method}, "PE_APPLY_METHOD", INTEGRATIONS)
    if method != "input_add":
        options["projection"] = _choose(config, "USE_PE_QK_PER_LAYER", PROJECTIONS)
    shifts = config.get("PE_USE_RANDOM_SHIFT", False)
    options["shift_probability"] = float(config.get("PE_RANDOM_SHIFT_RATE", 0.0)) if shifts else 0.0
    # Images count their largest position over the flattened grid: 10000 is 100 x 100.
    largest, dims = int(_need(config, "PE_MAX_POSITION")), int(_need(config, "PE_DATA_DIM"))
    options["max_position"] = largest if dims == 1 else math.isqrt(largest)
    if int(config.get("PE_OUT_PROJ_DIM", 0)) % int(options["encoder_heads"]):
        options["ood_heads"] = 1  # vectors of one shared head may not split into those of the encoder
    if "SEQPE_DIST_SAMPLE_RANGE" in config:
        options["local_range"] = int(config["SEQPE_DIST_SAMPLE_RANGE"])
    if "SEQPE_SCALAR_SCALE" in config and options["integration"] == "bias":
        options["bias_scale"] = float(config["SEQPE_SCALAR_SCALE"])
    return options


def vit_from_authors(config: Mapping[str, Any], model: Mapping[str, Tensor]) -> tuple[str, dict[str, Any]]:
    """Returns the timm name and the arguments that build the ViT of a run.

    Args:
        config: the run's configuration.
        model: its weights, which say what the configuration does not: channels, classes, width of the MLP.

    Raises:
        ConversionError: a setting is missing or unknown.
    """
    name, options = encoding_from_authors(config)
    image_size = int(_need(config, "DATA", "IMG_SIZE"))
    width = int(_need(config, "MODEL", "EMBED_DIM"))
    depth, heads = (int(_need(config, "MODEL", key)) for key in ("DEPTH", "NUM_HEADS"))
    size, args = named_size(int(_need(config, "TRAIN", "PATCH_SIZE")), width, depth, heads, model)
    architecture = f"vit_{size}_patch16_{'seqpe' if name == 'seqpe' else 'pe'}_224"
    if image_size != 224:
        args["img_size"] = image_size
    args |= {"dynamic_img_size": True, "pos_embed": name, "pos_embed_args": options}
    args["num_classes"] = int(_need(config, "MODEL", "NUM_CLASSES"))
    return architecture, args


def named_size(
    patch: int, width: int, depth: int, heads: int, state: Mapping[str, Tensor]
) -> tuple[str, dict[str, Any]]:
    """Returns which of our timm names a ViT comes nearest to, and the arguments in which it differs."""
    hidden, patches = state.get("blocks.0.mlp.fc1.weight"), state.get("patch_embed.proj.weight")
    given = {
        "patch_size": patch,
        "embed_dim": width,
        "depth": depth,
        "num_heads": heads,
        "mlp_ratio": 4.0 if hidden is None else hidden.shape[0] / width,
        "in_chans": 3 if patches is None or patches.ndim != 4 else patches.shape[1],
    }
    widths = {"tiny": 192, "small": 384, "base": 768}
    name = next((name for name, known in widths.items() if known == width), "small")
    usual = {"patch_size": 16, "embed_dim": widths[name], "depth": 12, "num_heads": widths[name] // 64}
    usual |= {"mlp_ratio": 4.0, "in_chans": 3}
    return name, {key: value for key, value in given.items() if value != usual[key]}


def gpt2_from_authors(
    gpt2: Mapping[str, Any],
    pe_config: Mapping[str, Any],
    train_args: Mapping[str, Any],
    train_length: int | None = None,
) -> dict[str, Any]:
    """Returns the arguments of our `SeqPEGPT2Config` for a text run.

    Args:
        gpt2: the run's `config.json`.
        pe_config: its `pe_config.json`.
        train_args: its `train_args.json`, empty where there is none.
        train_length: length of the training context; by default the run's `block_size`, else `n_positions`.

    Raises:
        ConversionError: a setting is missing or unknown.
    """
    name, options = encoding_from_authors(pe_config)
    for key in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
        _need(gpt2, key)
    taken = gpt2_settings(gpt2)
    found = next((train_args[key] for key in _TRAIN_LENGTHS if train_args.get(key)), None)
    return taken | {
        "train_length": train_length or found or taken["n_positions"],
        "position_encoding": name,
        "position_encoding_args": options,
    }


def _need(config: Mapping[str, Any], *path: str) -> Any:
    value: Any = config
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            raise ConversionError(f"the configuration has no {'.'.join(path)}")
        value = value[key]
    return value


def _choose(config: Mapping[str, Any], key: str, choices: Mapping[Any, Any]) -> Any:
    value = config.get(key)
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices if choice is not None)
        raise ConversionError(f"{key}={value!r} is unknown here; known are {known}")
    return choices[value]
