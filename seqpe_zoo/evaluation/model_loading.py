"""Models to be measured: anything that transformers or timm can load, ours or not, by one name.

What names mean is in `data/names.py`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..convert.sources import load_tokenizer, pretrained_arguments
from ..convert.weights_file import load_weights_file
from ..data.errors import DataError
from ..data.names import first_line, parse_model_name, read_config

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class LanguageModel:
    """A causal language model with its tokenizer, if it has one."""

    name: str
    model: nn.Module
    tokenizer: Any | None

    @property
    def label(self) -> str:
        """What tables call it: its encoding, or its family where it has its own positions, too."""
        encoding, config = find_position_encoding(self.model), self.model.config
        if encoding is None:
            return str(getattr(config, "model_type", self.name))
        base = getattr(encoding.options, "base", None) if encoding.name == "rope" else None
        name = encoding.name if base is None else f"rope:1e{round(math.log10(base))}"
        return f"{config.native_model_type} + {name}" if getattr(config, "keep_native", False) else str(name)


@dataclass
class ImageModel:
    """A classifier as a function from normalised pixels (B, 3, R, R) to logits (B, classes)."""

    name: str
    model: nn.Module
    logits: Callable[[Tensor], Tensor]
    mean: Sequence[float]
    std: Sequence[float]
    patch_size: int | None
    channels: int = 3

    @property
    def label(self) -> str:
        """What tables call it: the name of its encoding, or its own."""
        encoding = find_position_encoding(self.model)
        return self.name if encoding is None else str(encoding.name)


def find_position_encoding(model: nn.Module) -> Any | None:
    """Returns the position encoding of one of our models, or of a copy from the Hub; None for others."""
    for module in model.modules():
        if hasattr(module, "encode_prefix") and hasattr(module, "make_operation"):
            return module
    return None


def load_language_model(
    name: str,
    device: str = "cpu",
    dtype: str = "float32",
    trust_remote_code: bool = False,
    architecture: str | None = None,
) -> LanguageModel:
    """Loads a causal language model for evaluation.

    Args:
        name: folder or Hub id of transformers, or a file of GPT-2's weights.
        device: where it runs.
        dtype: of its weights.
        trust_remote_code: let transformers run code that comes with the weights.
        architecture: unused; see `load_image_model`.

    Raises:
        DataError: it cannot be found, or is no language model.
    """
    from transformers import AutoModelForCausalLM

    kind, place = parse_model_name(name)
    if kind == "file":
        model = load_weights_file(Path(place)).model
        if getattr(model.config, "vocab_size", None) is None:
            raise DataError(f"{name} holds an image model, not a language model")
        return LanguageModel(name, _moved(model.to(dtype=getattr(torch, dtype)), device), None)
    if kind == "timm" or "model_type" not in read_config(name):
        raise DataError(f"{name!r} is a model of timm, not a language model")
    source = {"trust_remote_code": trust_remote_code, **pretrained_arguments(kind, place)}
    try:
        model = AutoModelForCausalLM.from_pretrained(dtype=getattr(torch, dtype), **source)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = first_line(error)
        raise DataError(f"transformers cannot load {name!r} as a language model: {reason}") from error
    return LanguageModel(name, _moved(model, device), load_tokenizer(**source))


def load_image_model(
    name: str,
    device: str = "cpu",
    dtype: str = "float32",
    trust_remote_code: bool = False,
    library: str | None = None,
    architecture: str | None = None,
) -> ImageModel:
    """Loads an image classifier that takes pictures of any size its patches divide.

    Args:
        name: folder, file of weights, Hub id or name of timm.
        device: where it runs.
        dtype: of its weights.
        trust_remote_code: let transformers run code that comes with the weights.
        library: "timm" or "transformers"; by default what the configuration says, and timm where both can.
        architecture: timm's name of the model in a file of weights that is no plain ViT.

    Raises:
        DataError: neither library can load it.
    """
    kind, place = parse_model_name(name)
    config = read_config(name)
    if kind == "file":
        loaded = image_model_of(load_weights_file(Path(place), architecture).model, name)
    elif library == "timm" or (library is None and ("architecture" in config or kind == "timm")):
        loaded = _load_timm(name, kind, place)
    else:
        loaded = _load_transformers(
            name, {"trust_remote_code": trust_remote_code, **pretrained_arguments(kind, place)}
        )
    _moved(loaded.model.to(dtype=getattr(torch, dtype)), device)
    return loaded


def _load_timm(name: str, kind: str, place: str) -> ImageModel:
    import timm

    full = {"folder": f"local-dir:{place}", "hub": f"hf-hub:{place}"}.get(kind, place)
    try:
        try:
            model = timm.create_model(full, pretrained=True, dynamic_img_size=True)
        except TypeError:  # architectures without a grid of patches take any size as they are
            model = timm.create_model(full, pretrained=True)
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        raise DataError(f"timm cannot load {name!r}: {first_line(error)}") from error
    return image_model_of(model, name)


def image_model_of(model: nn.Module, name: str) -> ImageModel:
    """Wraps a model of timm that is in memory already."""
    cfg = getattr(model, "pretrained_cfg", {}) or {}
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    mean, std = cfg.get("mean", IMAGENET_MEAN), cfg.get("std", IMAGENET_STD)
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    channels = first.in_channels if first is not None else int(cfg.get("input_size", (3,))[0])
    return ImageModel(name, model, model, tuple(mean), tuple(std), _side(patch), channels)


def _load_transformers(name: str, source: dict[str, Any]) -> ImageModel:
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    try:
        model = AutoModelForImageClassification.from_pretrained(**source)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = first_line(error)
        raise DataError(f"transformers cannot load {name!r} as an image classifier: {reason}") from error
    try:
        processor = AutoImageProcessor.from_pretrained(**source)
        mean, std = processor.image_mean, processor.image_std
    except (OSError, ValueError, KeyError, AttributeError):
        mean, std = IMAGENET_MEAN, IMAGENET_STD
    options = {}
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        options["interpolate_pos_encoding"] = True

    def logits(pixels: Tensor) -> Tensor:
        return model(pixel_values=pixels, **options).logits

    patch = _side(getattr(model.config, "patch_size", None))
    channels = getattr(model.config, "num_channels", 3)
    return ImageModel(name, model, logits, tuple(mean), tuple(std), patch, channels)


def _side(patch: Any) -> int | None:
    return int(patch[0]) if isinstance(patch, (tuple, list)) else patch


def _moved(model: nn.Module, device: str) -> nn.Module:
    """Puts a model on a device, ready for evaluation."""
    try:
        return model.to(device).eval()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DataError(f"the device {device!r} cannot be used: {first_line(error)}") from error
