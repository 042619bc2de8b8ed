"""GPT-2 as it was published, as our GPT-2 with `ape_learn`: the same names, the same numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .authors import names_left_out
from .errors import ConversionError
from .state_check import load_exactly
from .zoo_checkpoint import Converted, public_name


def convert_gpt2(source: str, revision: str | None = None) -> Converted:
    """Builds our model from a GPT-2 of the Hub or of a folder.

    Args:
        source: as "openai-community/gpt2", or a folder.
        revision: of the Hub repository.

    Raises:
        ConversionError: there is no such model, or it is no GPT-2 as ours.
    """
    converted = build_from_gpt2(load_gpt2(source, revision))
    converted.record["source"] = public_name(source)
    tokenizer = load_tokenizer(source, revision)
    if tokenizer is None:
        converted.record["tokenizer"] = "none found beside the source"
    else:
        converted.companions.append(tokenizer)
    return converted


def load_tokenizer(source: str, revision: str | None = None) -> Any:
    """Loads the tokenizer beside a model; None where there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    except (OSError, ValueError):
        return None
    return tokenizer if tokenizer.vocab_size > 1 else None  # transformers makes up an empty one


def load_gpt2(source: str, revision: str | None = None) -> Any:
    """Loads transformers' own GPT-2.

    Raises:
        ConversionError: there is none.
    """
    from transformers import AutoConfig, GPT2LMHeadModel

    try:
        config = AutoConfig.from_pretrained(source, revision=revision)
        if config.model_type != "gpt2":
            raise ConversionError(f"{public_name(source)} is a {config.model_type}, not a GPT-2")
        return GPT2LMHeadModel.from_pretrained(source, revision=revision, config=config)
    except (OSError, ValueError) as error:
        if isinstance(error, ConversionError):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ConversionError(f"{Path(source).name} is no GPT-2 that can be read: {reason}") from error


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
    model = SeqPEGPT2LMHeadModel(SeqPEGPT2Config(**settings, position_encoding="ape_learn"))
    state = theirs.state_dict()
    left_out = names_left_out(state)
    renamed = {name.replace(".wpe.", ".position_encoding."): state[name] for name in state}
    load_exactly(model, {name: renamed[name] for name in renamed if name not in left_out}, "the GPT-2")
    record = {"format": "GPT-2", "tensors": {"model": len(state)}, "left_out": left_out}
    return Converted(model.eval(), "transformers", record=record)
