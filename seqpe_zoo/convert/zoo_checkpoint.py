"""Fills a model with weights that fit in every key, and writes it as a folder, complete or not there at all.

timm's is `config.json` (architecture, model_args, num_classes, pretrained_cfg) and `model.safetensors`;
transformers' is what `save_pretrained` writes, code included; one for both is in `shared_checkpoint.py`.
Beside them `conversion.json` records where the weights come from. Everything is made in a temporary folder
and renamed at the end.
"""

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..data.errors import DataError
from ..data.names import first_line

RECORD = "conversion.json"


class ConversionError(DataError):
    """The source cannot be converted.

    Args:
        message: one sentence.
        problems: what is wrong, an entry each; shown as a list below the sentence.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        self.problems = list(problems)
        super().__init__("\n  ".join([message, *self.problems]))


def parse_yaml(text: str, name: str) -> Any:
    """Returns what a YAML text says.

    Raises:
        ConversionError: it is no YAML, or nested too deeply.
    """
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise ConversionError(f"{name} is not YAML: {first_line(error)}") from error


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


def state_problems(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Lists the keys of the model that the state lacks, its extra keys, and those of another shape.

    What the weights of an encoding are (`kind`) is the model's to say: no other format has it.
    """
    expected = model.state_dict()
    lacking = [name for name in expected if name not in state and not name.endswith(".kind")]
    problems = [f"missing: {name} {_shape(expected[name])}" for name in lacking]
    problems += [f"extra: {name} {_shape(state[name])}" for name in state if name not in expected]
    for name, tensor in state.items():
        if name in expected and tensor.shape != expected[name].shape:
            wanted = _shape(expected[name])
            problems.append(f"misshaped: {name} is {_shape(tensor)}, the model wants {wanted}")
    return problems


def load_exactly(
    model: nn.Module, state: Mapping[str, Tensor], source: str, others: list[str] | None = None
) -> None:
    """Loads a state dict that fits in every key and shape.

    Args:
        model: the model to fill.
        state: its weights, in the model's names.
        source: what the weights are called in the error.
        others: problems that were found before.

    Raises:
        ConversionError: it does not fit; all keys concerned are listed.
    """
    problems = [*(others or []), *state_problems(model, state)]
    if problems:
        raise ConversionError(
            f"{source} does not fit the model that its configuration describes; nothing was written. "
            "By our names of the keys:",
            problems,
        )
    model.load_state_dict(dict(state), strict=True)


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
