"""Tiny random models of every model type that is tested as a host of position encodings."""

import inspect
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import seqpe_zoo
from seqpe_zoo.auto_classes import register_auto_classes
from seqpe_zoo.hosts import TESTED_HOSTS

register_auto_classes()

FAST = ("gpt2", "llama", "qwen3", "gemma3_text", "bert", "dinov2")
"""Hosts that differ most; all others are in the slow set."""

SMALL = {"num_digits": 4, "num_pivots": 4, "num_candidates": 8, "num_starts": 4, "num_transfer": 8}
ENCODINGS: dict[str, dict[str, Any]] = {
    **{
        f"seqpe_{way}": {"name": "seqpe", "integration": way, **SMALL}
        for way in ("bias", "mul", "sum", "input")
    },
    **{name: {"name": name} for name in ("alibi", "rope", "nope", "ape_learn")},
}

SIZES = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
HEADS_OF_8 = {"head_dim": 8}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
PICTURE = {"image_size": 16, "patch_size": 4, "num_channels": 3}

SPECIAL: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 16},
    "qwen3": HEADS_OF_8,
    "qwen3_moe": {**HEADS_OF_8, **EXPERTS},
    "mixtral": LOCAL_EXPERTS,
    "gemma": HEADS_OF_8,
    "gemma3_text": {**HEADS_OF_8, **WINDOWS},
    "phi": {"partial_rotary_factor": 0.5},
    "olmo3": WINDOWS,
    "gpt_neox": {"rotary_pct": 0.5},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "cohere2": WINDOWS,
    "gpt_oss": {**HEADS_OF_8, **LOCAL_EXPERTS, **WINDOWS},
    "glm4": {**HEADS_OF_8, "partial_rotary_factor": 0.5},
    "ernie4_5": HEADS_OF_8,
    "exaone4": WINDOWS,
    "roberta": {"max_position_embeddings": 66},
    "modernbert": {**WINDOWS, "local_attention": 32},
    "electra": {"embedding_size": 32},
    "distilbert": {"hidden_dim": 48},
}
"""What tiny models of a type need beside `SIZES`."""


def kind_of(model_type: str) -> str:
    """The kind under which a model type is listed."""
    return next(kind for kind, names in TESTED_HOSTS.items() if model_type in names.split())


def hosts(*kinds: str) -> list[Any]:
    """Model types of some kinds as parameters of a test, those outside of `FAST` marked slow."""
    return [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for kind in kinds
        for name in TESTED_HOSTS[kind].split()
    ]


def tiny_config(model_type: str, **changes: Any) -> Any:
    """The configuration of a tiny model of `model_type`, without a position encoding of ours."""
    config_class = CONFIG_MAPPING[model_type]
    known = {*inspect.signature(config_class.__init__).parameters, *config_class.attribute_map}
    wanted = {**SIZES, **PICTURE} if hasattr(config_class(), "image_size") else SIZES
    sizes = {key: value for key, value in wanted.items() if key in known}
    return config_class(**{**sizes, **SPECIAL.get(model_type, {}), **changes})


def auto_class_of(model_type: str) -> Any:
    """What a test builds: decoders with their language model head, encoders without a head."""
    is_decoder = kind_of(model_type) == "decoder"
    return transformers.AutoModelForCausalLM if is_decoder else transformers.AutoModel


def native_model(model_type: str, auto_class: Any = None, **changes: Any) -> Any:
    """A tiny model with its own positions, in evaluation mode."""
    torch.manual_seed(0)
    model = (auto_class or auto_class_of(model_type)).from_config(tiny_config(model_type, **changes)).eval()
    enlarge_weights(model)
    return model


def tiny_model(
    model_type: str, encoding: str, auto_class: Any = None, keep_native: bool = False, **changes: Any
) -> Any:
    """A tiny model with an encoding of `ENCODINGS`, in evaluation mode."""
    config = seqpe_zoo.with_position_encoding(
        tiny_config(model_type, **changes), keep_native=keep_native, **ENCODINGS[encoding]
    )
    torch.manual_seed(0)
    model = (auto_class or auto_class_of(model_type)).from_config(config).eval()
    enlarge_weights(model)
    return model


@torch.no_grad()
def enlarge_weights(model: torch.nn.Module, std: float = 0.1) -> None:
    """Adds noise to all weights: fresh ones are so small that positions hardly matter."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * std)


def one_layer(model_type: str) -> dict[str, Any]:
    """Changes to a configuration that leave one layer, with full attention."""
    has_types = "layer_types" in SPECIAL.get(model_type, {})
    return {"num_hidden_layers": 1, **({"layer_types": ["full_attention"]} if has_types else {})}


def random_tokens(rows: int, length: int) -> torch.Tensor:
    """Tokens without the special ones."""
    return torch.randint(3, 128, (rows, length))


def outputs_of(model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Logits of a model with a head, else hidden states."""
    with torch.no_grad():
        outputs = model(*args, **kwargs)
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one - other).abs().max().item()
