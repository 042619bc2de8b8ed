"""GPT-2 as it was published, as our GPT-2 with `ape_learn`: the same names, the same numbers."""

from pathlib import Path
from typing import Any

from .authors import names_left_out
from .authors_config import GPT2_OPTIONAL
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


def gpt2_settings(theirs: Any) -> dict[str, Any]:
    """Returns the arguments of our configuration that a GPT-2 configuration decides.

    Raises:
        ConversionError: it has an option of GPT-2 that our model does not have.
    """
    taken = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", *GPT2_OPTIONAL)
    return {key: getattr(theirs, key) for key in taken if hasattr(theirs, key)}


def build_from_gpt2(theirs: Any) -> Converted:
    """Builds our model with the weights of a `GPT2LMHeadModel`.

    Logits are identical; with the activation "gelu_pytorch_tanh", which GPT-2 does not have, up to rounding.

    Raises:
        ConversionError: it differs from ours; says how.
    """
    from ..portable.configuration_seqpe_gpt2 import SeqPEGPT2Config
    from ..portable.modeling_seqpe_gpt2 import SeqPEGPT2LMHeadModel

    try:
        config = SeqPEGPT2Config(**gpt2_settings(theirs.config), position_encoding="ape_learn")
    except ValueError as error:
        raise ConversionError(f"this GPT-2 differs from ours: {error}") from error
    state = theirs.state_dict()
    left_out = names_left_out(state)
    model = SeqPEGPT2LMHeadModel(config)
    load_exactly(model, {name: state[name] for name in state if name not in left_out}, "the GPT-2")
    record = {"format": "GPT-2", "tensors": {"model": len(state)}, "left_out": left_out}
    return Converted(model.eval(), "transformers", record=record)
