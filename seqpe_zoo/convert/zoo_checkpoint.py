"""Writes checkpoints of the zoo: a folder that timm or transformers loads, complete or not there at all.

timm's is `config.json` (architecture, model_args, num_classes, pretrained_cfg) and `model.safetensors`;
transformers' is what `save_pretrained` writes, code included; one for both is in `shared_checkpoint.py`.
Beside them `conversion.json` records where the weights come from. Everything is made in a temporary folder
and renamed at the end.
"""

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from .errors import ConversionError

RECORD = "conversion.json"


@dataclass(frozen=True)
class Converted:
    """A model in our classes, with what its checkpoint needs beside the weights."""

    model: Any
    library: str
    """That loads it when it is written: "timm", "transformers", or "both" for a timm model of ours."""
    model_args: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    tokenizer: list[Path] = field(default_factory=list)
    """Files to copy."""
    companions: list[Any] = field(default_factory=list)
    """What else to save beside the model: a tokenizer, with its `save_pretrained`."""


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Gives an empty folder that becomes `target` when the block ends well, and vanishes when it does not.

    Raises:
        ConversionError: `target` exists, or cannot be written.
    """
    if target.exists() or target.is_symlink():
        raise ConversionError(f"{target} exists; give a new name, nothing is overwritten")
    temporary = target.parent / f".{target.name}.writing-{uuid.uuid4().hex[:8]}"
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(target)
    except OSError as error:
        raise ConversionError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_checkpoint(converted: Converted, target: Path) -> None:
    """Writes a converted model, atomically."""
    with new_folder(target) as folder:
        if converted.library == "both":
            from .shared_checkpoint import write_shared

            write_shared(converted, folder)
        elif converted.library == "timm":
            write_timm(converted.model, folder, converted.model_args)
        else:
            write_transformers(converted.model, folder)
        for path in converted.tokenizer:
            shutil.copyfile(path, folder / path.name)
        for companion in converted.companions:
            companion.save_pretrained(folder)
        write_record(folder, converted.record)


def write_timm(model: nn.Module, folder: Path, model_args: Mapping[str, Any]) -> None:
    """Writes a model made by `timm.create_model(architecture, **model_args)` into a folder.

    Args:
        model: the model.
        folder: where to; exists.
        model_args: its arguments beyond those of its architecture; `num_classes` and `in_chans` among them
            go to their own places.
    """
    from timm.models import save_for_hf

    args = {key: value for key, value in model_args.items() if key != "num_classes"}
    set_pretrained_cfg(model)
    save_for_hf(model, folder, model_args=args, safe_serialization=True)


def set_pretrained_cfg(model: Any, **changes: Any) -> None:
    """Tells timm what its own saving leaves at the defaults of an architecture."""
    rows, columns = model.patch_embed.img_size
    model.pretrained_cfg.update(
        input_size=(model.patch_embed.proj.in_channels, rows, columns),
        num_classes=model.num_classes,
        license=None,  # that of timm's default would be a claim about weights of others
        **changes,
    )


def write_transformers(model: Any, folder: Path) -> None:
    """Writes a model of transformers into a folder."""
    model.save_pretrained(folder)


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Writes `conversion.json`."""
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def file_hashes(files: Mapping[str, Path]) -> dict[str, str]:
    """Returns the sha256 of each file."""
    return {name: _sha256(path) for name, path in files.items()}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
