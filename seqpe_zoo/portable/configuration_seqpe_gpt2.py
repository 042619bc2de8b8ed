"""Configuration of GPT-2 with any position encoding (paper, section 4.1).

Names follow transformers' `GPT2Config`; what is new is `position_encoding`, `position_encoding_args` and
`train_length`. Everything that contradicts itself is refused here, before a model is built.
"""

from typing import Any

import torch
from transformers.configuration_utils import PreTrainedConfig, strict

from .pe_base import PositionEncoding
from .registry import build_position_encoding

AUTO_MAP = {
    "AutoConfig": "configuration_seqpe_gpt2.SeqPEGPT2Config",
    "AutoModel": "modeling_seqpe_gpt2.SeqPEGPT2Model",
    "AutoModelForCausalLM": "modeling_seqpe_gpt2.SeqPEGPT2LMHeadModel",
}
"""Where the Auto classes find their code in a checkpoint; all of it is saved, whichever class is."""


@strict
class SeqPEGPT2Config(PreTrainedConfig):
    """Configuration of `SeqPEGPT2Model` and `SeqPEGPT2LMHeadModel`.

    Args:
        vocab_size: tokens.
        n_positions: context of the model, as in GPT-2; encodings that extrapolate also work beyond it.
        n_embd: width.
        n_layer: layers.
        n_head: attention heads.
        n_inner: width of the feed-forward layers, by default 4 * n_embd.
        activation_function: of the feed-forward layers. "gelu_pytorch_tanh" is the same function as
            "gelu_new" of transformers' GPT-2, up to rounding, and several times as fast on a CPU.
        resid_pdrop: dropout of what layers add to the residual stream.
        embd_pdrop: dropout of the embedded input.
        attn_pdrop: dropout of attention probabilities.
        layer_norm_epsilon: epsilon of the layer norms.
        initializer_range: standard deviation of initial weights.
        use_cache: whether keys and values are returned.
        bos_token_id: token that starts a text.
        eos_token_id: token that ends a text.
        pad_token_id: token that pads a batch.
        tie_word_embeddings: whether input and output embeddings share their weights.
        position_encoding: a name of `list_position_encodings(1)`.
        position_encoding_args: options of that encoding, as `{"integration": "mul"}` for "seqpe".
        train_length: length of the training context, by default n_positions; "ape_learn" has so many rows.
    """

    model_type = "seqpe_gpt2"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    base_model_pp_plan = {
        "wte": (["input_ids"], ["inputs_embeds"]),
        "drop": (["inputs_embeds"], ["hidden_states"]),
        "h": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "ln_f": (["hidden_states"], ["hidden_states"]),
    }

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float | int = 0.1
    embd_pdrop: float | int = 0.1
    attn_pdrop: float | int = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float | int = 0.02
    use_cache: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True
    position_encoding: str = "seqpe"
    position_encoding_args: dict[str, Any] | None = None
    train_length: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.position_encoding_args = dict(self.position_encoding_args or {})
        auto_map = kwargs.pop("auto_map", None)
        kwargs.pop("model_type", None)  # of a GPT-2 whose configuration is read as ours
        super().__post_init__(**kwargs)
        self.auto_map = dict(auto_map or AUTO_MAP)
        self._check_architecture(kwargs)
        # Building without memory checks everything that an encoding asks of its model and of its options.
        with torch.device("meta"):
            build_text_encoding(self)

    @classmethod
    def paper(cls, **changes: Any) -> "SeqPEGPT2Config":
        """The model of the paper's WikiText-103 runs: GPT-2 of 124M, context 512, AttnBias, shared W_PE."""
        given = changes.pop("position_encoding_args", None)
        name = changes.setdefault("position_encoding", "seqpe")
        # 16 pivots and 16 shifted contexts for each of 4 GPUs, as in the release; the paper's batch is 32.
        published = {"num_digits": 5, "max_position": 20000, "num_pivots": 16, "num_starts": 16}
        args = {**(published if name == "seqpe" else {}), **(given or {})}
        shape = {"n_positions": 512, "activation_function": "gelu_pytorch_tanh"}
        return cls(**{**shape, "position_encoding_args": args, **changes})

    @classmethod
    def tiny(cls, **changes: Any) -> "SeqPEGPT2Config":
        """A model that runs in milliseconds, for tests and first steps."""
        given = changes.pop("position_encoding_args", None)
        name = changes.setdefault("position_encoding", "seqpe")
        small = {"num_digits": 4, "num_pivots": 4, "num_candidates": 8, "num_starts": 4, "num_transfer": 8}
        args = {**(small if name == "seqpe" else {}), **(given or {})}
        sizes = {"vocab_size": 128, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
        tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        return cls(**{**sizes, **tokens, "position_encoding_args": args, **changes})

    def _check_architecture(self, others: dict[str, Any]) -> None:
        if self.n_head < 1 or self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd={self.n_embd} is not divisible by n_head={self.n_head}; "
                "choose a number of heads that divides the width"
            )
        for name, supported in (
            ("scale_attn_weights", True),
            ("scale_attn_by_inverse_layer_idx", False),
            ("reorder_and_upcast_attn", False),
            ("add_cross_attention", False),
        ):
            if others.get(name, supported) != supported:
                raise ValueError(
                    f"{name}={others[name]} is an option of GPT-2 that this model does not have; its weights "
                    f"would give other numbers. Only {name}={supported} is supported."
                )


def build_text_encoding(config: SeqPEGPT2Config) -> PositionEncoding:
    """Builds the position encoding that a configuration names, for a causal language model.

    Raises:
        ValueError: the encoding is unknown, or does not suit a language model of this size.
        TypeError: the encoding has no such option.
    """
    return build_position_encoding(
        config.position_encoding,
        config.n_embd,
        num_heads=config.n_head,
        num_layers=config.n_layer,
        num_dims=1,
        train_shape=(config.train_length or config.n_positions,),
        causal=True,
        **(config.position_encoding_args or {}),
    )


__all__ = ["SeqPEGPT2Config"]
