"""GPT-2 as it was published, as our GPT-2 with `ape_learn`: the same names, the same numbers."""

from collections.abc import Mapping
from typing import Any

from ..data.names import first_line, parse_model_name
from .authors import names_left_out
from .errors import ConversionError
from .sources import load_tokenizer, pretrained_arguments, public_name
from .state_check import load_exactly
from .zoo_checkpoint import Converted


def convert_gpt2(source: str, revision: str | None = None) -> Converted:
    """Builds our model from a GPT-2 of the Hub or of a folder.

    Args:
        source: as "openai-community/gpt2", or a folder.
        revision: of the Hub repository.

    Raises:
        ConversionError: there is no such model, or it is no GPT-2 as ours.
    """
    kind, place = parse_model_name(source)
    name = pretrained_arguments(kind, place) | ({} if revision is None else {"revision": revision})
    converted = build_from_gpt2(load_gpt2(source, name))
    converted.record["source"] = public_name(source)
    tokenizer = load_tokenizer(**name)
    if tokenizer is None:
        converted.record["tokenizer"] = "none found beside the source"
    else:
        converted.companions.append(tokenizer)
    return converted


def load_gpt2(source: str, name: Mapping[str, Any]) -> Any:
    """Loads transformers' own GPT-2; `name` are arguments of `from_pretrained`.

    Raises:
        ConversionError: there is none.
    """
    from transformers import AutoConfig, GPT2LMHeadModel

    try:
        config = AutoConfig.from_pretrained(**name)
        if config.model_type != "gpt2":
            raise ConversionError(f"{public_name(source)} is a {config.model_type}, not a GPT-2")
        return GPT2LMHeadModel.from_pretrained(**name, config=config)
    except ConversionError:
        raise
    except (OSError, ValueError) as error:
        raise ConversionError(
            f"{public_name(source)} is no GPT-2 that can be read: {first_line(error)}"
        ) from error


def gpt2_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a `config.json` that are settings of GPT-2."""
    from transformers import GPT2Config

    of_the_file = {"_name_or_path", "architectures", "dtype", "model_type", "transformers_version"}
    known = GPT2Config().to_dict().keys() - of_the_file
    return {name: value for name, value in config.items() if name in known}


def build_from_gpt2(theirs: Any) -> Converted:
    """Builds our model with the weights of a `GPT2LMHeadModel`.

    Logits are identical.

    Raises:
        ConversionError: weights are missing or too many, as those of cross-attention.
    """
    from ..portable.configuration_seqpe import SeqPEGPT2Config
    from ..portable.modeling_seqpe import SeqPEGPT2LMHeadModel

    settings = gpt2_settings(theirs.config.to_dict())
    try:
        model = SeqPEGPT2LMHeadModel(SeqPEGPT2Config(**settings, position_encoding="ape_learn"))
    except ValueError as error:
        raise ConversionError(f"this GPT-2 cannot be ours: {error}") from error
    state = theirs.state_dict()
    left_out = names_left_out(state)
    renamed = {name.replace(".wpe.", ".position_encoding."): state[name] for name in state}
    load_exactly(model, {name: renamed[name] for name in renamed if name not in left_out}, "the GPT-2")
    record = {"format": "GPT-2", "tensors": {"model": len(state)}, "left_out": left_out}
    return Converted(model.eval(), "transformers", record=record)
