"""Text models of transformers with any position encoding in place of, or beside, their own.

GPT-2's classes are written out; those of any other model, as `SeqPELlamaForCausalLM`, are made when they are
asked for: the model's own class with `PositionHost` or `PositionHead` before it.
"""

import sys
from typing import Any

import transformers
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import WeightRenaming
from transformers.generation import GenerationMixin
from transformers.models.auto import modeling_auto
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel, GPT2Model

from .configuration_seqpe import SeqPEGPT2Config, auto_map_of, position_config_class
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
    _supports_flex_attn = True  # GPT-2 does not say so; its layers ask the interface

    def __init__(self, config: SeqPEGPT2Config) -> None:
        super().__init__(config)
        self.add_positions()

    def add_positions(self) -> None:
        super().add_positions()
        self._register_load_state_dict_pre_hook(rename_gpt2_keys)  # for the Trainer, which loads by itself


class SeqPEGPT2LMHeadModel(PositionHead, GPT2LMHeadModel, GenerationMixin):  # type: ignore[misc]
    """GPT-2 as a language model."""

    config_class = SeqPEGPT2Config
    _auto_class = "AutoModelForCausalLM"
    _supports_flex_attn = True  # GPT-2 does not say so; its layers ask the interface
    base_class = SeqPEGPT2Model

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # transformers guesses it from names that end differently
        self.add_positions()


BASE_CLASSES = {"opt": "OPTDecoder"}
"""The class that runs the layers, where heads do not call the base model that transformers names."""


def position_model_class(native: Any) -> Any:
    """The class of a model with a position encoding, as `SeqPELlamaForCausalLM` of `LlamaForCausalLM`."""
    name = f"SeqPE{native.__name__}"
    if name not in globals():
        globals()[name] = make_position_class(native, PositionHost, __name__, position_model_class)
    return globals()[name]


def make_position_class(native: Any, host_class: Any, module: str, class_of: Any) -> Any:
    """Makes the class of a model with a position encoding.

    Args:
        native: the model's class in transformers.
        host_class: what gives positions to a base model.
        module: where the class will be found.
        class_of: makes the class of the base model in turn.
    """
    config = position_config_class(native.config_class)
    base_name = modeling_auto.MODEL_MAPPING_NAMES.get(config.native_model_type)
    if base_name is None:
        raise ValueError(f"{native.__name__} has no base model; position encodings cannot be added to it")
    base_name = base_name if isinstance(base_name, str) else base_name[0]
    base_name = BASE_CLASSES.get(config.native_model_type, base_name)
    is_base = native.__name__ == base_name
    places = {place.partition(".")[2]: auto_class for auto_class, place in auto_map_of(config).items()}

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        super(made, self).__init__(config, *args, **kwargs)
        self.add_positions()

    made: Any = type(
        f"SeqPE{native.__name__}",
        (host_class if is_base else PositionHead, native),
        {
            "__init__": __init__,
            "__module__": module,
            "__doc__": f"{native.__name__} with a position encoding.",
            "config_class": config,
            "_auto_class": places.get(f"SeqPE{native.__name__}"),
        },
    )
    for theirs, ours in ((native.__name__, made.__name__), (config.native_model_type, config.model_type)):
        renaming = get_checkpoint_conversion_mapping(theirs)
        if renaming is not None:  # checkpoints of the host have older names, which stay
            renaming = [leave_positions_alone(one) for one in renaming]
            register_checkpoint_conversion_mapping(ours, renaming, overwrite=True)
    if is_base:  # some heads ask AutoModel for their base model
        transformers.AutoModel.register(config, made, exist_ok=True)
    else:
        made.base_class = class_of(getattr(sys.modules[native.__module__], base_name))
    return made


def leave_positions_alone(renaming: Any) -> Any:
    """Makes a renaming of transformers pass over weights of position encodings, whose names it may match."""
    native = type(renaming)

    def rename_source_key(self: Any, key: str) -> Any:
        return (key, None) if "position_encoding." in key else native.rename_source_key(self, key)

    renaming.__class__ = type(
        native.__name__, (native,), {"__slots__": (), "rename_source_key": rename_source_key}
    )
    return renaming


def __getattr__(name: str) -> Any:
    native = getattr(transformers, name.removeprefix("SeqPE"), None) if name.startswith("SeqPE") else None
    if not (isinstance(native, type) and issubclass(native, transformers.PreTrainedModel)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return position_model_class(native)


__all__ = ["SeqPEGPT2LMHeadModel", "SeqPEGPT2Model"]
