"""An image model is staged for timm and for transformers, whichever wrote it: the same weights in both.

A run folder has the `config.json` of one library. Here it gets the other's part, an image processor, and
tensor names that both read (timm's behind `vit.`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .config_rules import INDEX, shared_problems
from .files import read_json, write_json

PREFIX = "vit."
PROCESSOR = "preprocessor_config.json"
_TIMM_KEYS = ("architecture", "num_classes", "num_features", "model_args", "pretrained_cfg", "label_names")


def serve_both(folder: Path, config: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Complete a folder in place if its model is one that both libraries have.

    Args:
        folder: holds weights and `config.json`; it is changed.
        config: what `config.json` says.

    Returns:
        The config as it is now, and why one library cannot load the folder, if that is so.
    """
    half = config
    if "model_type" in config:
        if config["model_type"] != "seqpe_vit" or ("architecture" in config and not shared_problems(config)):
            return config, None
        # A fine-tune in transformers keeps timm's part of the model it began with; it is made anew.
        half = {key: value for key, value in config.items() if key not in _TIMM_KEYS}
    elif "architecture" not in config:
        return config, None

    from ..convert.shared_checkpoint import share_config

    try:
        complete, processor = share_config(half)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return config, str(error)
    for path in sorted(folder.glob("*.safetensors")):
        add_prefix(path, PREFIX)
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        if isinstance(shards := index.get("weight_map"), dict):
            index["weight_map"] = {_prefixed(name, PREFIX): shard for name, shard in shards.items()}
        write_json(folder / INDEX, index)
    write_json(folder / "config.json", complete)
    if not (folder / PROCESSOR).is_file():
        write_json(folder / PROCESSOR, processor)
    return complete, None


def _prefixed(name: str, prefix: str) -> str:
    return name if name.startswith(prefix) else prefix + name


def add_prefix(path: Path, prefix: str) -> None:
    """Put a prefix before the tensor names of a safetensors file, unless they have it."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, framework="pt") as file:
        names, metadata = list(file.keys()), {"format": "pt", **(file.metadata() or {})}
        if all(name.startswith(prefix) for name in names):
            return
        tensors = {_prefixed(name, prefix): file.get_tensor(name) for name in names}
        temporary = path.with_suffix(".renamed")
        save_file(tensors, temporary, metadata)
    os.replace(temporary, path)
