"""Models to be measured: anything that transformers or timm can load, ours or not, by one name.

A name is a folder, a Hub id, `hf-hub:ORG/NAME`, `local-dir:FOLDER` or a model name of timm. What kind it is,
is read from its configuration, never guessed from the name of a class.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.errors import DataError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class LanguageModel:
    """A causal language model with its tokenizer, if it has one."""

    name: str
    model: nn.Module
    tokenizer: Any | None

    @property
    def label(self) -> str:
        """What tables call it: the name of its encoding, or of its family."""
        encoding = find_position_encoding(self.model)
        if encoding is None:
            return str(getattr(self.model.config, "model_type", self.name))
        base = getattr(encoding.options, "base", None) if encoding.name == "rope" else None
        return str(encoding.name) if base is None else f"rope:1e{round(math.log10(base))}"


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


def read_config(name: str) -> dict[str, Any]:
    """Returns config.json of a folder or of a Hub repository; empty for a plain name of timm.

    Raises:
        DataError: the folder has no configuration, or the configuration is not JSON.
    """
    folder = Path(name.removeprefix("local-dir:"))
    if folder.is_dir():
        path = folder / "config.json"
        if not path.is_file():
            raise DataError(
                f"{folder} has no config.json: give the folder that a run or save_pretrained wrote"
            )
    elif "/" not in name:
        return {}
    else:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            path = Path(hf_hub_download(name.removeprefix("hf-hub:"), "config.json"))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"{name!r} is neither a folder nor a model of the Hub that can be read: {reason}"
            ) from error
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"config.json of {name} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def is_timm_config(config: dict[str, Any]) -> bool:
    """Tells a configuration of timm (it names an architecture) from one of transformers alone."""
    return "architecture" in config and "model_type" not in config


def load_language_model(
    name: str, device: str = "cpu", dtype: str = "float32", trust_remote_code: bool = False
) -> LanguageModel:
    """Loads a causal language model for evaluation.

    Raises:
        DataError: it cannot be found, or is no language model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not read_config(name):
        raise DataError(f"{name!r} is neither a folder nor a Hub id ORG/NAME of a language model")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"transformers cannot load {name!r} as a language model: {_reason(error)}") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError):
        tokenizer = None  # said by whoever needs one; embedded byte text does not
    return LanguageModel(name, _moved(model, device), tokenizer)


def load_image_model(
    name: str,
    device: str = "cpu",
    dtype: str = "float32",
    trust_remote_code: bool = False,
    library: str | None = None,
) -> ImageModel:
    """Loads an image classifier that takes pictures of any size its patches divide.

    Args:
        name: folder, Hub id or name of timm.
        device: where it runs.
        dtype: of its weights.
        trust_remote_code: let transformers run code that comes with the weights.
        library: "timm" or "transformers"; by default what the configuration says, and timm where both can.

    Raises:
        DataError: neither library can load it.
    """
    config = read_config(name)
    if library is None:
        library = "timm" if not config or "architecture" in config else "transformers"
    if library == "timm":
        loaded = _load_timm(name, bool(config))
    else:
        loaded = _load_transformers(name, trust_remote_code)
    _moved(loaded.model.to(dtype=getattr(torch, dtype)), device)
    return loaded


def _load_timm(name: str, has_config: bool) -> ImageModel:
    import timm

    full = name
    if has_config and ":" not in name:
        full = f"local-dir:{name}" if Path(name).is_dir() else f"hf-hub:{name}"
    try:
        try:
            model = timm.create_model(full, pretrained=True, dynamic_img_size=True)
        except TypeError:  # architectures without a grid of patches take any size as they are
            model = timm.create_model(full, pretrained=True)
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        raise DataError(f"timm cannot load {name!r}: {_reason(error)}") from error
    return image_model_of(model, name)


def image_model_of(model: nn.Module, name: str) -> ImageModel:
    """Wraps a model of timm that is in memory already."""
    cfg = getattr(model, "pretrained_cfg", {}) or {}
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    mean, std = cfg.get("mean", IMAGENET_MEAN), cfg.get("std", IMAGENET_STD)
    patch_size = None if patch is None else int(patch[0] if isinstance(patch, (tuple, list)) else patch)
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    channels = first.in_channels if first is not None else int(cfg.get("input_size", (3,))[0])
    return ImageModel(name, model, model, tuple(mean), tuple(std), patch_size, channels)


def _load_transformers(name: str, trust_remote_code: bool) -> ImageModel:
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    try:
        model = AutoModelForImageClassification.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise DataError(
            f"transformers cannot load {name!r} as an image classifier: {_reason(error)}"
        ) from error
    try:
        processor = AutoImageProcessor.from_pretrained(name, trust_remote_code=trust_remote_code)
        mean, std = processor.image_mean, processor.image_std
    except (OSError, ValueError, KeyError, AttributeError):
        mean, std = IMAGENET_MEAN, IMAGENET_STD
    options = {}
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        options["interpolate_pos_encoding"] = True
    patch = getattr(model.config, "patch_size", None)

    def logits(pixels: Tensor) -> Tensor:
        return model(pixel_values=pixels, **options).logits

    patch_size = patch if isinstance(patch, int) else None
    return ImageModel(name, model, logits, tuple(mean), tuple(std), patch_size)


def _moved(model: nn.Module, device: str) -> nn.Module:
    """Puts a model on a device, ready for evaluation."""
    try:
        return model.to(device).eval()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DataError(f"the device {device!r} cannot be used: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
