"""Models of transformers with any position encoding in place of, or beside, their own.

GPT-2's classes are written out; those of any other model, as `SeqPELlamaForCausalLM`, are made when they are
asked for: the model's own class with `PositionHost` or `PositionHead` before it.
"""

import sys
from typing import Any

import transformers
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.models.auto import modeling_auto
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel, GPT2Model

from .configuration_seqpe import AUTO_CLASSES, SeqPEGPT2Config, position_config_class
from .transformers_host import PositionHead, PositionHost

# Checkpoints have the encoding where GPT-2 has its table, so that GPT-2's weights load by name.
register_checkpoint_conversion_mapping(
    SeqPEGPT2Config.model_type, [WeightRenaming(r"wpe\.", "position_encoding.")], overwrite=True
)


def rename_gpt2_keys(state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
    """Gives position weights of a checkpoint the names that they have in the model."""
    for name in [name for name in state_dict if name.startswith(f"{prefix}wpe.")]:
        state_dict[name.replace("wpe.", "position_encoding.", 1)] = state_dict.pop(name)


class SeqPEGPT2Model(PositionHost, GPT2Model):  # type: ignore[misc]
    """GPT-2 without a head."""

    config_class = SeqPEGPT2Config
    _auto_class = "AutoModel"

    base_class = None

    def add_positions(self) -> None:
        super().add_positions()
        self._register_load_state_dict_pre_hook(rename_gpt2_keys)  # for the Trainer, which loads by itself

    def __init__(self, config: SeqPEGPT2Config) -> None:
        super().__init__(config)
        self.add_positions()


class SeqPEGPT2LMHeadModel(PositionHead, GPT2LMHeadModel):  # type: ignore[misc]
    """GPT-2 as a language model."""

    config_class = SeqPEGPT2Config
    _auto_class = "AutoModelForCausalLM"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # transformers guesses it from names that end differently
        self.add_positions(SeqPEGPT2Model)

    base_class = GPT2Model


BASE_CLASSES = {"opt": "OPTDecoder"}
"""The class that runs the layers, where models with a head do not call the base model that transformers names."""


def position_model_class(native: Any) -> Any:
    """The class of a model with a position encoding, as `SeqPELlamaForCausalLM` of `LlamaForCausalLM`."""
    name = f"SeqPE{native.__name__}"
    if name in globals():
        return globals()[name]
    config = position_config_class(native.config_class)
    module = sys.modules[native.__module__]
    base_name = _first(modeling_auto.MODEL_MAPPING_NAMES[config.native_model_type])
    base_name = BASE_CLASSES.get(config.native_model_type, base_name)
    is_base = native.__name__ == base_name

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        super(made, self).__init__(config, *args, **kwargs)
        add_positions(self)

    body = {
        "config_class": config,
        "_auto_class": _auto_class_of(native, config.native_model_type),
        "__init__": __init__,
        "__module__": __name__,
        "__doc__": f"{native.__name__} with a position encoding.",
    }
    made: Any = type(name, (PositionHost if is_base else PositionHead, native), body)
    made.base_class = None if is_base else getattr(module, base_name)
    globals()[name] = made
    if is_base:  # some heads ask AutoModel for their base model
        transformers.AutoModel.register(config, made, exist_ok=True)
    return made


def add_positions(model: Any) -> None:
    """Builds the encoding that the model's config names, into the model or its base model."""
    if model.base_class is None:
        model.add_positions()
    else:
        model.add_positions(position_model_class(model.base_class))


def _auto_class_of(native: Any, model_type: str) -> str | None:
    for auto_class, table in AUTO_CLASSES.items():
        names = getattr(modeling_auto, table).get(model_type, ())
        if native.__name__ in ((names,) if isinstance(names, str) else names):
            return auto_class
    return None


def _first(names: Any) -> str:
    return names if isinstance(names, str) else names[0]


def __getattr__(name: str) -> Any:
    native = getattr(transformers, name.removeprefix("SeqPE"), None) if name.startswith("SeqPE") else None
    if not (isinstance(native, type) and issubclass(native, transformers.PreTrainedModel)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return position_model_class(native)


__all__ = ["SeqPEGPT2LMHeadModel", "SeqPEGPT2Model"]
