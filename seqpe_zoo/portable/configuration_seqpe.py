"""Configurations of transformers' models with a position encoding of the registry.

A configuration is that of the model itself, with `position_encoding` and its options; `model_type` becomes
`seqpe_<model type>`, so that loading without this code fails instead of giving other positions. GPT-2's is
written out; that of any other model, as `SeqPELlamaConfig`, is made when it is asked for. Imports no model:
what contradicts itself is refused when the model is built.
"""

from typing import Any

import transformers
from transformers.configuration_utils import PreTrainedConfig, strict

REMOVED_OPTIONS = (
    "projection_init chunk_size objective_probability sequence_model distance hard_ratio local_probability "
    "warmup_steps init_scale"
).split()
"""Former options that checkpoints may name and that do not change what their weights mean."""

AUTO_CLASSES = {
    "AutoModel": "MODEL_MAPPING_NAMES",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "AutoModelForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
"""Auto classes of transformers, and the tables in which it names the class of each model type."""


class PositionConfig:
    """What configurations with a position encoding share.

    Attributes:
        position_encoding: a name of `list_position_encodings()`.
        position_encoding_args: options of that encoding, as `{"integration": "mul"}` for "seqpe".
        train_length: length of the training context, by default that of the model; "ape_learn" has so many
            rows.
        keep_native: whether the model keeps its own positions too.
    """

    _auto_class = "AutoConfig"
    native_model_type: str
    position_encoding_args: dict[str, Any] | None

    def __post_init__(self, **kwargs: Any) -> None:
        given = self.position_encoding_args or {}
        self.position_encoding_args = {k: v for k, v in given.items() if k not in REMOVED_OPTIONS}
        auto_map = kwargs.pop("auto_map", None)
        kwargs.pop("model_type", None)  # of a plain model whose configuration is read as ours
        super().__post_init__(**kwargs)  # type: ignore[misc]
        self.auto_map = dict(auto_map or auto_map_of(type(self)))


@strict
class SeqPEGPT2Config(PositionConfig, transformers.GPT2Config):
    """Configuration of `SeqPEGPT2Model` and `SeqPEGPT2LMHeadModel`: GPT-2's and `PositionConfig`'s."""

    model_type = "seqpe_gpt2"
    native_model_type = "gpt2"

    initializer_range: float | int = 0.02
    position_encoding: str = "seqpe"
    position_encoding_args: dict[str, Any] | None = None
    train_length: int | None = None
    keep_native: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.keep_native:
            raise ValueError(
                "keep_native=True: GPT-2's table of positions and the encoding have one name in a checkpoint "
                "(wpe); choose a model with rotary positions, or keep_native=False"
            )

    @classmethod
    def paper(cls, **changes: Any) -> "SeqPEGPT2Config":
        """The model of the paper's WikiText-103 runs: GPT-2 of 124M, context 512, AttnBias, shared W_PE."""
        given = changes.pop("position_encoding_args", None)
        name = changes.setdefault("position_encoding", "seqpe")
        # 16 pivots and 16 shifted contexts for each of 4 GPUs, as in the release; the paper's batch is 32.
        published = {
            "num_digits": 5,
            "max_position": 20000,
            "num_pivots": 16,
            "num_starts": 16,
            "init": "release",
        }
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


def position_config_class(native: type[PreTrainedConfig]) -> Any:
    """The configuration of a model of transformers with a position encoding, as `SeqPELlamaConfig`."""
    name = f"SeqPE{native.__name__}"
    if name not in globals():
        fields = {
            "position_encoding": (str, "seqpe"),
            "position_encoding_args": (dict[str, Any] | None, None),
            "train_length": (int | None, None),
            "keep_native": (bool, False),
        }
        body: dict[str, Any] = {key: default for key, (_, default) in fields.items()}
        body["__annotations__"] = {key: kind for key, (kind, _) in fields.items()}
        body.update(
            model_type=seqpe_model_type(native.model_type),
            native_model_type=native.model_type,
            __module__=__name__,
            __doc__=f"Configuration of {native.__name__} with a position encoding; see `PositionConfig`.",
        )
        globals()[name] = strict(type(name, (PositionConfig, native), body))
    return globals()[name]


def seqpe_model_type(native: str) -> str:
    """The model type of a model with a position encoding; "seqpe_vit" is the ViT of timm."""
    return "seqpe_hf_vit" if native == "vit" else f"seqpe_{native}"


def auto_map_of(config: Any) -> dict[str, str]:
    """Where the Auto classes find their code in a checkpoint; all of it is saved, whichever class is."""
    from transformers.models.auto import modeling_auto  # imports our configurations when it is loaded

    found = {"AutoConfig": f"configuration_seqpe.{config.__name__}"}
    module = "modeling_seqpe_vision" if hasattr(config, "image_size") else "modeling_seqpe"
    for auto_class, table in AUTO_CLASSES.items():
        native = getattr(modeling_auto, table).get(config.native_model_type)
        if native is not None:
            native = native if isinstance(native, str) else native[0]
            found[auto_class] = f"{module}.SeqPE{native}"
    return found


def __getattr__(name: str) -> Any:
    native = getattr(transformers, name.removeprefix("SeqPE"), None) if name.startswith("SeqPE") else None
    if not (isinstance(native, type) and issubclass(native, PreTrainedConfig)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return position_config_class(native)


def config_of_model_type(model_type: str) -> Any:
    """The configuration of a model type such as "seqpe_llama".

    Raises:
        KeyError: transformers has no such model.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type == SeqPEGPT2Config.model_type:
        return SeqPEGPT2Config
    return position_config_class(CONFIG_MAPPING[model_type.removeprefix("seqpe_").removeprefix("hf_")])


__all__ = ["SeqPEGPT2Config"]
