"""Finds the model that a graft or a conversion starts from; refuses before it loads weights."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.names import first_line, parse_model_name, read_config, task_of
from .weights_file import load_weights_file
from .zoo_checkpoint import ConversionError

PROBE_ROWS, PROBE_LENGTH = 4, 512
TEXT_LIMIT = 40_000


@dataclass
class Source:
    """A model in memory, and what is saved beside it."""

    model: Any
    architecture: str = ""
    """Name in timm; empty for a model of transformers."""
    model_args: dict[str, Any] = field(default_factory=dict)
    companions: list[Any] = field(default_factory=list)
    """Tokenizer or image processor."""


def load_source(source: str, revision: str | None = None, architecture: str | None = None) -> Source:
    """Loads a ViT of timm, or a language model or image classifier of transformers.

    Args:
        source: folder, file of weights, Hub id or name of timm.
        revision: of a Hub repository.
        architecture: timm's name of the model in a file of weights.

    Raises:
        ConversionError: it is no such model, or cannot have another position encoding.
    """
    kind, place = parse_model_name(source)
    if kind == "file":
        model, own_name, args = load_weights_file(Path(place), architecture)
        return Source(model, own_name, args or {})
    if revision is not None and kind == "hub":
        place = f"{place.partition('@')[0]}@{revision}"
    config = {} if kind == "timm" else read_config(f"hf-hub:{place}" if kind == "hub" else place)
    for key in ("architecture", "model_type"):
        if not isinstance(config.get(key, ""), str):
            raise ConversionError(f"{key} in the config.json of {public_name(place)} is no name")
    if kind == "timm" or "architecture" in config:
        return _load_timm(kind, place)
    return _load_transformers(kind, place)


def _load_timm(kind: str, place: str) -> Source:
    import timm
    from timm.models import load_model_config_from_hf
    from timm.models._hub import load_model_config_from_path

    from .. import timm_models  # noqa: F401 (registers the architectures)

    full = {"folder": f"local-dir:{place}", "hub": f"hf-hub:{place}"}.get(kind, place)
    try:
        args: Any = {}
        if kind == "hub":
            _, architecture, args = load_model_config_from_hf(place)
        elif kind == "folder":
            _, architecture, args = load_model_config_from_path(place)
        else:
            architecture = place.split(".")[0]
        with torch.device("meta"):
            check_vit(timm.create_model(architecture, **(args or {})), architecture)
        model = timm.create_model(full, pretrained=True)
    except ConversionError:
        raise
    except (RuntimeError, ValueError, TypeError, OSError, AssertionError, KeyError) as error:
        raise ConversionError(f"timm does not give {place!r}: {first_line(error)}") from error
    return Source(model, architecture, dict(args or {}))


def check_vit(model: Any, architecture: str) -> None:
    """Raises ConversionError for a model of timm without a table of positions or a rotation to replace."""
    from timm.models import Eva, VisionTransformer

    has_table = isinstance(getattr(model, "pos_embed", None), torch.nn.Parameter)
    if not isinstance(model, Eva) and not (isinstance(model, VisionTransformer) and has_table):
        raise ConversionError(
            f"{architecture} has no learned table of positions (pos_embed) as timm's ViT, DeiT and DINOv2 "
            "have, and no rotation as those of the Eva family"
        )


def _load_transformers(kind: str, place: str) -> Source:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModelForCausalLM,
        AutoModelForImageClassification,
    )

    from ..hosts import with_position_encoding

    name = pretrained_arguments(kind, place)
    is_text = task_of(f"hf-hub:{place}" if kind == "hub" else place) == "text"
    try:
        config = AutoConfig.from_pretrained(**name)
        if not hasattr(config, "native_model_type"):
            with_position_encoding(config)  # refuses models that cannot have one
        auto_class = AutoModelForCausalLM if is_text else AutoModelForImageClassification
        model = auto_class.from_pretrained(**name).eval()
        if is_text:
            companion = load_tokenizer(**name)
        else:
            companion = _or_none(AutoImageProcessor, name)
    except (OSError, ValueError, TypeError, LookupError, ImportError, StrictDataclassError) as error:
        raise ConversionError(f"{public_name(place)} cannot be taken: {first_line(error)}") from error
    return Source(model, companions=[] if companion is None else [companion])


def pretrained_arguments(kind: str, place: str) -> dict[str, Any]:
    """Returns the arguments of `from_pretrained` for a folder or a Hub id, also with `@revision`."""
    name, _, revision = place.partition("@") if kind == "hub" else (place, "", "")
    return {"pretrained_model_name_or_path": name, "revision": revision or None}


def load_tokenizer(**source: Any) -> Any | None:
    """Loads the tokenizer beside a model; None where there is none."""
    from transformers import AutoTokenizer

    tokenizer = _or_none(AutoTokenizer, source)
    # Where there is none, transformers makes up an empty one.
    return tokenizer if tokenizer is not None and tokenizer.vocab_size > 1 else None


def _or_none(auto_class: Any, source: dict[str, Any]) -> Any | None:
    try:
        return auto_class.from_pretrained(**source)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def public_name(source: str) -> str:
    """Returns the source without the path of this machine, which is nobody's business."""
    return Path(source).name if Path(source).exists() else source


def probe_length(config: Any) -> int:
    """Tokens of a probe: no more than the model was trained for, where its configuration says it."""
    return min(getattr(config, "max_position_embeddings", None) or PROBE_LENGTH, PROBE_LENGTH)


def text_probe(source: Source) -> tuple[Tensor | None, str]:
    """Tokens of real text to compare logits on, where there is a tokenizer; and what they are called."""
    from ..data.stdlib_text import load_stdlib_text

    length = probe_length(source.model.config)
    for tokenizer in source.companions:
        held_out = load_stdlib_text(1, TEXT_LIMIT).held_out
        text = bytes(held_out.to(torch.uint8).tolist()).decode("utf-8", errors="ignore")
        tokens = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
        rows = min(PROBE_ROWS, len(tokens) // length)
        if rows > 0:
            return tokens[: rows * length].view(rows, length), "source code of Python's standard library"
    return None, "random tokens"
