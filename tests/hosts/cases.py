"""Tiny random models of every model type that is tested as a host of position encodings."""

import inspect
from typing import Any

import torch
import transformers

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
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 128}
HEADS_OF_8 = {"head_dim": 8}

DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "llama": {},
    "mistral": {"sliding_window": 16},
    "qwen2": {},
    "qwen3": HEADS_OF_8,
    "qwen3_moe": {**HEADS_OF_8, **EXPERTS},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma": HEADS_OF_8,
    "gemma3_text": {**HEADS_OF_8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {},
    "olmo2": {},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
    "smollm3": {},
    "granite": {},
    "gpt_neox": {"rotary_pct": 0.5},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "cohere2": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
    "gpt_oss": {
        **HEADS_OF_8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
    },
    "glm4": {**HEADS_OF_8, "partial_rotary_factor": 0.5},
    "ernie4_5": HEADS_OF_8,
    "exaone4": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
}
TEXT_ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"max_position_embeddings": 66},
    "modernbert": {"layer_types": ["sliding_attention", "full_attention"], "local_attention": 16},
    "electra": {"embedding_size": 32},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
}
PICTURE = {"image_size": 16, "patch_size": 4, "num_channels": 3}
VISION_ENCODERS: dict[str, dict[str, Any]] = {
    name: PICTURE
    for name in (
        "vit",
        "deit",
        "dinov2",
        "dinov2_with_registers",
        "dinov3_vit",
        "clip_vision_model",
        "beit",
        "ijepa",
        "vit_mae",
    )
}


def tiny_config(model_type: str, **changes: Any) -> Any:
    """The configuration of a tiny model of `model_type`."""
    special = {**DECODERS, **TEXT_ENCODERS, **VISION_ENCODERS}[model_type]
    sizes = {} if model_type in ("gpt2", "distilbert") else dict(SIZES)
    if model_type == "distilbert":
        sizes = {"vocab_size": 128, "max_position_embeddings": 64, "pad_token_id": 0}
    if model_type in VISION_ENCODERS:
        sizes = {key: SIZES[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[model_type]
    known = inspect.signature(config_class.__init__).parameters
    sizes = {key: value for key, value in sizes.items() if key in known or key in config_class.attribute_map}
    return config_class(**{**sizes, **special, **changes})


def tiny_model(model_type: str, auto_class: Any, **changes: Any) -> Any:
    """A tiny model in evaluation mode whose weights are large enough for positions to matter."""
    torch.manual_seed(0)
    model = auto_class.from_config(tiny_config(model_type, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
