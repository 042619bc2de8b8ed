"""Writes checkpoints of the zoo: a folder that timm or transformers loads, complete or not there at all.

timm's is `config.json` (architecture, model_args, num_classes, pretrained_cfg) and `model.safetensors`;
transformers' is what `save_pretrained` writes, code included; one for both is in `shared_checkpoint.py`.
Beside them `conversion.json` records where the weights come from. Everything is made in a temporary folder
and renamed at the end.
"""

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
            from timm.models import save_for_hf

            set_pretrained_cfg(converted.model)
            args = {key: value for key, value in converted.model_args.items() if key != "num_classes"}
            save_for_hf(converted.model, folder, model_args=args, safe_serialization=True)
        else:
            converted.model.save_pretrained(folder)
        for path in converted.tokenizer:
            shutil.copyfile(path, folder / path.name)
        for companion in converted.companions:
            companion.save_pretrained(folder)
        write_record(folder, converted.record)


def set_pretrained_cfg(model: Any, **changes: Any) -> None:
    """Tells timm what its own saving leaves at the defaults of an architecture."""
    rows, columns = model.patch_embed.img_size
    model.pretrained_cfg.update(
        input_size=(model.patch_embed.proj.in_channels, rows, columns),
        num_classes=model.num_classes,
        license=None,  # that of timm's default would be a claim about weights of others
        **changes,
    )


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Writes `conversion.json`."""
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
