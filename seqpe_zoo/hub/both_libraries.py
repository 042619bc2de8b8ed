"""An image model is staged for timm and for transformers, whichever wrote it: the same weights in both.

A run folder has the `config.json` of one library. Here it gets the other's part, an image processor, and
tensor names that both read (timm's behind `vit.`). What the other part must say needs torch, so a process of
its own works it out (`convert/shared_checkpoint.py`); tensors are renamed in the file's header, their bytes
stay as they are.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from .config_rules import shared_problems
from .contents import read_safetensors_header

OUR_VIT = "seqpe_vit"
PREFIX = "vit."
PROCESSOR = "preprocessor_config.json"
_TIMM_KEYS = ("architecture", "num_classes", "num_features", "model_args", "pretrained_cfg", "label_names")
_INDEX = "model.safetensors.index.json"
_PACKAGE_PATH = str(Path(__file__).parents[2])
_TIMEOUT = 300
_WORKER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from seqpe_zoo.convert.errors import ConversionError
from seqpe_zoo.convert.shared_checkpoint import share_config
try:
    config, processor = share_config(json.load(sys.stdin))
    answer = {"config": config, "processor": processor}
except ConversionError as error:
    answer = {"reason": str(error)}
print("SHARED " + json.dumps(answer))
"""


def serve_both(folder: Path, config: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Complete a folder in place if its model is one that both libraries have.

    Args:
        folder: holds weights and `config.json`; it is changed.
        config: what `config.json` says.

    Returns:
        The config as it is now, and why one library cannot load the folder, if that is so.
    """
    half = _half_of(config)
    if half is None:
        return config, None
    answer = _ask(half)
    if "reason" in answer:
        return config, answer["reason"]
    for path in sorted(folder.glob("*.safetensors")):
        add_prefix(path, PREFIX)
    _add_prefix_to_index(folder / _INDEX)
    _write_json(folder / "config.json", answer["config"])
    if not (folder / PROCESSOR).is_file():
        _write_json(folder / PROCESSOR, answer["processor"])
    return answer["config"], None


def _half_of(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return the part to start from, or None when nothing is to be completed."""
    if "model_type" not in config:
        return config if "architecture" in config else None
    if config["model_type"] != OUR_VIT:
        return None
    if "architecture" in config and not shared_problems(config):
        return None
    # A fine-tune in transformers keeps timm's part of the model it began with; it is made anew.
    return {key: value for key, value in config.items() if key not in _TIMM_KEYS}


def _ask(config: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_"))}
    done = subprocess.run(
        [sys.executable, "-I", "-c", _WORKER, _PACKAGE_PATH],
        input=json.dumps(config),
        env={**kept, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("SHARED "):
            return dict(json.loads(line.removeprefix("SHARED ")))
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {"reason": f"its config.json could not be completed: {last}"}


def add_prefix(path: Path, prefix: str) -> None:
    """Put a prefix before the tensor names of a safetensors file, unless they have it."""
    header, start = read_safetensors_header(path)
    metadata = {"format": "pt", **header.pop("__metadata__", {})}
    if all(name.startswith(prefix) for name in header):
        return
    renamed = {"__metadata__": metadata, **{prefix + name: entry for name, entry in header.items()}}
    encoded = json.dumps(renamed, separators=(",", ":")).encode("utf-8")
    encoded += b" " * (-len(encoded) % 8)  # the format aligns its data
    temporary = path.with_suffix(".renamed")
    with path.open("rb") as old, temporary.open("wb") as new:
        new.write(len(encoded).to_bytes(8, "little") + encoded)
        old.seek(start)
        shutil.copyfileobj(old, new, 1 << 20)
    os.replace(temporary, path)


def _add_prefix_to_index(path: Path) -> None:
    if not path.is_file():
        return
    index = json.loads(path.read_text(encoding="utf-8"))
    index["weight_map"] = {
        name if name.startswith(PREFIX) else PREFIX + name: shard
        for name, shard in index["weight_map"].items()
    }
    _write_json(path, index)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
