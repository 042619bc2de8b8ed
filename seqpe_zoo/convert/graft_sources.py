"""Finds the model that a graft starts from: a GPT-2 of transformers, or a ViT of timm with its arguments."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from .errors import ConversionError
from .gpt2 import load_gpt2, load_tokenizer

PROBE_ROWS = 4
TEXT_LIMIT = 40_000


class GraftSource(NamedTuple):
    """A loaded model, and what builds it again."""

    kind: str
    """"gpt2" or "vit"."""
    model: Any
    tokenizer: Any = None
    architecture: str = ""
    model_args: dict[str, Any] | None = None


def load_for_graft(source: str, revision: str | None = None) -> GraftSource:
    """Loads a GPT-2 (folder or Hub id) or a ViT (timm name, "hf-hub:ID", "local-dir:FOLDER").

    Raises:
        ConversionError: there is no such model.
    """
    import timm

    prefixed = source.startswith(("hf-hub:", "hf_hub:", "local-dir:", "timm/"))
    if prefixed or timm.is_model(source.split(".")[0]):
        return _load_vit(source)
    from transformers import AutoConfig, AutoModelForCausalLM

    from ..auto_classes import register_auto_classes

    register_auto_classes()
    try:
        config = AutoConfig.from_pretrained(source, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConversionError(
            f"{Path(source).name} is neither a timm model nor a model of transformers: {reason}"
        ) from error
    if config.model_type == "seqpe_gpt2":
        model = AutoModelForCausalLM.from_pretrained(source, revision=revision)
    else:
        model = load_gpt2(source, revision)
    return GraftSource("gpt2", model, load_tokenizer(source, revision))


def _load_vit(source: str) -> GraftSource:
    import timm
    from timm.models import load_model_config_from_hf, parse_model_name
    from timm.models._hub import load_model_config_from_path

    from .. import timm_models  # noqa: F401 (registers the architectures)

    try:
        model = timm.create_model(source, pretrained=True)
        scheme, name = parse_model_name(source)
        args: dict[str, Any] | None = {}
        if scheme == "hf-hub":
            _, architecture, args = load_model_config_from_hf(name)
        elif scheme == "local-dir":
            _, architecture, args = load_model_config_from_path(name)
        else:
            architecture = name.split(".")[0]
    except (RuntimeError, ValueError, OSError, AssertionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConversionError(f"timm does not give {source!r}: {reason}") from error
    return GraftSource("vit", model, None, architecture, dict(args or {}))


def text_probe(source: GraftSource, length: int) -> tuple[Tensor | None, str]:
    """Tokens of real text to compare logits on, where there is a tokenizer; and what they are called."""
    if source.tokenizer is None:
        return None, "random tokens"
    import torch

    from ..data.stdlib_text import load_stdlib_text

    held_out = load_stdlib_text(1, TEXT_LIMIT).held_out
    text = bytes(held_out.to(torch.uint8).tolist()).decode("utf-8", errors="ignore")
    tokens = torch.tensor(source.tokenizer(text)["input_ids"])
    rows = min(PROBE_ROWS, len(tokens) // length)
    if rows == 0:
        return None, "random tokens"
    return tokens[: rows * length].view(rows, length), "source code of Python's standard library"
