"""GPT-2 as it was published, as our GPT-2 with `ape_learn`: the same names, the same numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..data.names import read_config
from .sources import load_source, public_name
from .zoo_checkpoint import ConversionError, Converted, load_exactly


def convert_gpt2(source: str, revision: str | None = None) -> Converted:
    """Builds our model from a GPT-2 of the Hub or of a folder.

    Args:
        source: as "openai-community/gpt2", or a folder.
        revision: of the Hub repository.

    Raises:
        ConversionError: there is no such model, or it is no GPT-2 as ours.
    """
    kind = read_config(source).get("model_type", "gpt2")
    loaded = load_source(source, revision) if kind == "gpt2" else None
    if loaded is None or loaded.architecture:
        what = "model of timm" if loaded else kind
        raise ConversionError(f"{public_name(source)} is a {what}, not a GPT-2")
    converted = build_from_gpt2(loaded.model)
    converted.record["source"] = public_name(source)
    if not loaded.companions:
        converted.record["tokenizer"] = "none found beside the source"
    converted.companions.extend(loaded.companions)
    return converted


def gpt2_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of a `config.json` that are settings of GPT-2."""
    from transformers import GPT2Config

    of_the_file = {"_name_or_path", "architectures", "dtype", "model_type", "transformers_version"}
    known = GPT2Config().to_dict().keys() - of_the_file
    return {name: value for name, value in config.items() if name in known}


def names_left_out(model: Iterable[str]) -> list[str]:
    """Returns the names of tensors that carry no weights: the causal masks that old GPT-2 files hold."""
    return [name for name in model if name.endswith((".attn.bias", ".attn.masked_bias"))]


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
