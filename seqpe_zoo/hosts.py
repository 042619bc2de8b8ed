"""Another position encoding for models of transformers and timm: the calls, and the list of what is tested.

`set_position_encoding` changes a model that exists, `with_position_encoding` a configuration that a model is
built or loaded with. How a model is changed is in `portable/transformers_host.py` and `timm_models.py`.
"""

from importlib import import_module
from typing import Any, NamedTuple

TESTED_HOSTS: dict[str, str] = {
    "decoder": (
        "gpt2 llama mistral qwen2 qwen3 qwen3_moe mixtral gemma gemma3_text phi phi3 olmo2 olmo3 smollm3 "
        "granite gpt_neox opt cohere2 gpt_oss glm4 ernie4_5 exaone4"
    ),
    "text encoder": "bert roberta modernbert electra distilbert",
    "vision encoder": (
        "vit deit dinov2 dinov2_with_registers dinov3_vit clip_vision_model beit ijepa vit_mae"
    ),
}
"""Model types of transformers that the tests run, by kind. Others with transformers' attention interface work
by the same mechanism."""

UNSUPPORTED = {
    "keyword arguments do not reach its attention layers": (
        "stablelm nemotron siglip_vision_model aimv2_vision_model"
    ),
    "its attention does not go through transformers' attention interface": (
        "gpt_neo gptj falcon mpt codegen bloom xglm deberta deberta-v2 roformer"
    ),
    "its cache is of a type of its own": "minimax",
    "its layers run several times in a forward pass": "hrm_text",
    "its key heads are repeated in another order": "jetmoe",
    "its layers make masks of their own from their values": "doge",
}
"""Model types of transformers that cannot have another position encoding, by reason."""


class Host(NamedTuple):
    """A type of model that can have any of these position encodings."""

    model_type: str
    kind: str
    encodings: tuple[str, ...]


def list_hosts() -> list[Host]:
    """Lists the model types of transformers that are tested, and the encodings that suit each."""
    from .portable.encodings import list_position_encodings

    return [
        Host(
            model_type,
            kind,
            tuple(list_position_encodings(2 if kind == "vision encoder" else 1, kind == "decoder")),
        )
        for kind, model_types in TESTED_HOSTS.items()
        for model_type in model_types.split()
    ]


def with_position_encoding(
    config: Any,
    name: str = "seqpe",
    keep_native: bool = False,
    train_length: int | None = None,
    **options: Any,
) -> Any:
    """Returns the configuration of a model of transformers with another position encoding.

    >>> config = with_position_encoding(Qwen3Config(), "seqpe", integration="bias")
    >>> model = AutoModelForCausalLM.from_config(config)

    Args:
        config: of the model, as `LlamaConfig(...)`; stays as it is.
        name: a name of `list_position_encodings()`.
        keep_native: keep the model's own positions, and add the encoding to them.
        train_length: length of the training texts, by default `max_position_embeddings`.
        **options: of the encoding, as `integration="bias"`; for "seqpe" see `SeqPEOptions`.

    Raises:
        TypeError: `config` is no configuration of transformers, or the encoding has no such option.
        ValueError: the model cannot have the encoding; says why.
    """
    from transformers import PreTrainedConfig

    from .portable.configuration_seqpe import position_config_class
    from .portable.encodings import position_encoding_class
    from .portable.position_encoding import check_value, parse_options

    if not isinstance(config, PreTrainedConfig):
        raise TypeError(
            f"config must be a configuration of transformers, as LlamaConfig(...), not "
            f"{type(config).__name__}"
        )
    if hasattr(config, "native_model_type"):
        raise ValueError(
            f"this configuration has position encoding {config.position_encoding!r} already; change its "
            "position_encoding and position_encoding_args"
        )
    _check_origin(type(config))
    encoding = position_encoding_class(name)
    parse_options(name, encoding.Options, options)
    check_value("keep_native", keep_native, bool)
    check_value("train_length", train_length, int | None, least=1)
    chosen = {
        "position_encoding": name,
        "position_encoding_args": options,
        "keep_native": keep_native,
        "train_length": train_length,
    }
    made = position_config_class(type(config)).from_dict({**config.to_dict(), **chosen})
    made._attn_implementation_internal = config._attn_implementation_internal
    made._name_or_path = config._name_or_path
    _check_supported(made)
    return made


def set_position_encoding(
    model: Any,
    name: str = "seqpe",
    keep_native: bool = False,
    train_length: int | None = None,
    **options: Any,
) -> Any:
    """Gives a model of transformers or timm another position encoding, in place, and returns it.

    Its own positions (rotation, table or bias) are replaced; with `keep_native` they stay, and SeqPE starts
    by changing nothing, so that a trained model keeps what it knows. All other weights stay as they are.
    Train or fine-tune the model afterwards: a fresh encoding knows nothing.

    >>> model = AutoModelForCausalLM.from_pretrained("org/some-llama")
    >>> model = set_position_encoding(model, "seqpe", integration="bias", keep_native=True)

    Args:
        model: with or without a head.
        name: a name of `list_position_encodings()`.
        keep_native: keep the model's own positions, and add the encoding to them.
        train_length: length of the training texts, by default `max_position_embeddings` (transformers).
        **options: of the encoding, as `integration="bias"`; for "seqpe" see `SeqPEOptions`.

    Raises:
        TypeError: the model is of neither library, or the encoding has no such option.
        ValueError: the model cannot have the encoding, or is wrapped; says why and what to do first.
    """
    family = _family(model)
    if family == "timm":
        from .timm_models import set_timm_position_encoding

        if train_length is not None:
            raise TypeError("train_length is for texts; a model of timm knows the size of its images")
        return set_timm_position_encoding(model, name, keep_native=keep_native, **options)

    import torch

    _refuse_wrapped(model)
    config = with_position_encoding(model.config, name, keep_native, train_length, **options)
    modeling = import_module(f".portable.{config.auto_map['AutoModel'].partition('.')[0]}", __package__)
    old, native = model.config, type(model)
    embeddings = model.get_input_embeddings()
    weight = next(iter((model if embeddings is None else embeddings).parameters()))
    parts = [part for part in model.modules() if getattr(part, "config", None) is old]
    classes = [(part, type(part)) for part in model.modules()]
    for part in parts:
        part.config = config
    try:
        model.__class__ = modeling.position_model_class(native)
        with torch.device(weight.device):
            model.add_positions()
    except Exception:
        for part, kind in classes:
            part.__class__ = kind
        for part in parts:
            part.config = old
        raise
    encoding = model.position_host.position_encoding.to(device=weight.device, dtype=weight.dtype)
    encoding.train(model.training)
    if keep_native and hasattr(encoding, "start_neutral"):
        encoding.start_neutral()
    return model


def _check_supported(config: Any) -> None:
    """Raises ValueError, with the reason, for a model that cannot have another position encoding."""
    native = config.native_model_type
    reasons = [why for why, names in UNSUPPORTED.items() if native in names.split()]
    if getattr(config, "attn_logit_softcapping", None):
        reasons.append("it caps its scores (attn_logit_softcapping), which sdpa cannot do")
    if getattr(config, "kv_lora_rank", None):
        reasons.append("its heads are compressed (kv_lora_rank)")
    if getattr(config, "num_kv_shared_layers", None):
        reasons.append("its layers share keys (num_kv_shared_layers)")
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        reasons.append("it has cross-attention, whose keys are another text")
    if getattr(config, "hidden_size", None) is None:
        reasons.append("its config is made of several; give the text or the vision model by itself")
    if "AutoModel" not in config.auto_map:
        reasons.append("it has no base model")
    if reasons:
        raise ValueError(
            f"a model of type {native!r} cannot have another position encoding: {'; '.join(reasons)}. "
            "seqpe_zoo.list_hosts() lists what works"
        )


def _check_origin(kind: type[Any]) -> None:
    """Raises ValueError for a model or a configuration that is not one of transformers' own classes."""
    if not kind.__module__.startswith("transformers."):
        raise ValueError(
            f"{kind.__module__}.{kind.__name__} is a class of its own, and only transformers' classes can "
            "have another position encoding: a saved model could not be told from theirs"
        )


def _family(model: Any) -> str:
    """The library of a model.

    Raises:
        TypeError: neither, or something that wraps a model.
    """
    libraries = {base.__module__.split(".")[0] for base in type(model).__mro__}
    wrapper = type(model).__name__
    advice = {
        "OptimizedModule": "call set_position_encoding before torch.compile",
        "DataParallel": "call set_position_encoding before DataParallel",
        "DistributedDataParallel": "call set_position_encoding before DistributedDataParallel",
        "FullyShardedDataParallel": "call set_position_encoding before sharding",
    }
    if "peft" in libraries:
        raise TypeError(
            f"{wrapper} is a model with an adapter; call set_position_encoding before get_peft_model, or "
            "merge_and_unload() first"
        )
    if wrapper in advice:
        raise TypeError(f"{wrapper} wraps a model; {advice[wrapper]}")
    if hasattr(model, "config") and "transformers" in libraries:
        return "transformers"
    if "timm" in libraries or hasattr(model, "patch_embed"):
        return "timm"
    raise TypeError(
        f"{wrapper} is no model of transformers or timm; SeqPE(dim=..., num_dims=...) gives vectors of "
        "positions to any other model"
    )


def _refuse_wrapped(model: Any) -> None:
    """Raises ValueError for a model that something else has changed already."""
    if hasattr(model, "position_host"):
        raise ValueError(
            f"{type(model).__name__} has another position encoding already; load the plain model"
        )
    _check_origin(type(model))
    parts = list(model.modules())
    if any(type(part).__module__.startswith("peft.") for part in parts):
        raise ValueError(
            "the model has an adapter; unload it, or call set_position_encoding before adding it"
        )
    if any(part._compiled_call_impl or type(part).__name__ == "OptimizedModule" for part in parts):
        raise ValueError(
            "the model, or a part of it, is compiled; call set_position_encoding before torch.compile"
        )
    hooked = "forward" in vars(model) or hasattr(model, "_hf_hook")
    sharded = any(hasattr(p, "placements") for p in model.parameters())
    if hooked or sharded:
        what = "is sharded" if sharded else "has a forward that was replaced, as device_map and offloading do"
        raise ValueError(
            f"the model {what}; load it with its encoding instead: "
            "from_pretrained(..., config=with_position_encoding(config, ...), device_map=...)"
        )
