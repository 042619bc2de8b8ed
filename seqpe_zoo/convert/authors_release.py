"""The authors' release becomes a zoo checkpoint: read, rename, check every key, write.

    image run   best_model.pth (a pickle: model, pe_model, config), config.json (YAML despite its name)
    text run    config.json (GPT-2's), pe_config.json (YAML), train_args.json, tokenizer files,
                best_model/model.safetensors (GPT-2), best_model/model_1.safetensors (the encoder)

The `model.safetensors` at the root of a text run is that of the last step and has no encoder beside it. The
folder is a local one or part of a Hub repository, as `image_seqpe_ckpt` of `huayangli/seqpe`. An image run
becomes a timm checkpoint, a text run one of transformers. Nothing is written before all keys fit, and every
tensor of the source is in the result or named in `conversion.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.names import first_line, read_json
from ..data.token_cache import file_sha256
from .authors import (
    gpt2_from_authors,
    gpt2_state_dict_from_authors,
    unknown_encoder_names,
    vit_from_authors,
    vit_state_dict_from_authors,
)
from .gpt2 import names_left_out
from .safe_pickle import load_safely
from .sources import public_name
from .zoo_checkpoint import ConversionError, Converted, load_exactly, parse_yaml

IMAGE_WEIGHTS = "best_model.pth"
TEXT_WEIGHTS = "best_model"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt"),
)
_PATTERNS = (IMAGE_WEIGHTS, "config.json", "pe_config.json", "train_args.json", *TOKENIZER_FILES)


@dataclass(frozen=True)
class AuthorsRun:
    """What a folder of the release holds."""

    kind: str
    """"image" or "text"."""
    model: dict[str, Tensor]
    encoder: dict[str, Tensor]
    config: dict[str, Any]
    """The run's YAML: of the whole run for images, of the position encoding for text."""
    gpt2: dict[str, Any] = field(default_factory=dict)
    train_args: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    """Files that were read, by their names in the folder."""
    tokenizer: list[Path] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Entries of the pickle that hold no weights of the model, as the optimizer's."""


def find_folder(source: str, subfolder: str | None = None, revision: str | None = None) -> Path:
    """Returns a local folder: `source` itself, or the files of a Hub repository that a conversion needs.

    Raises:
        ConversionError: there is no such folder, or the Hub does not give it.
    """
    local = Path(source)
    if not local.is_dir():
        if local.exists() or source.count("/") != 1 or source.startswith((".", "/", "~")):
            raise ConversionError(f"{source} is neither a folder nor a Hub id such as huayangli/seqpe")
        local = _download(source, subfolder, revision)
    folder = local / subfolder if subfolder else local
    if not folder.is_dir():
        there = ", ".join(sorted(path.name for path in local.iterdir() if path.is_dir())) or "none"
        raise ConversionError(f"{source} has no folder {subfolder!r}; its folders: {there}")
    return folder


def _download(repo_id: str, subfolder: str | None, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    start = f"{subfolder}/" if subfolder else ""
    wanted = [start + name for name in (*_PATTERNS, f"{TEXT_WEIGHTS}/model*.safetensors")]
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConversionError(f"the Hub does not give {repo_id}: {first_line(error)}") from error


def read_authors_folder(folder: Path, weights: str | None = None) -> AuthorsRun:
    """Reads an image or a text run.

    Args:
        folder: a local folder of the release.
        weights: which weights, by default those of the best step: a file for images, a folder for text, as
            "ckpt_epoch_399.pth" or "step_100000".

    Raises:
        ConversionError: files are missing, damaged, or hold something else.
        UnsafePickleError: the pickle could run code.
    """
    if (folder / "pe_config.json").is_file():
        return _read_text(folder, weights or TEXT_WEIGHTS)
    chosen = folder / (weights or IMAGE_WEIGHTS)
    if chosen.is_file():
        return _read_image(folder, chosen)
    there = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
    raise ConversionError(
        f"{folder.name} is no folder of the release: an image run has {chosen.name}, a text run "
        f"pe_config.json; found {there}"
    )


def _read_image(folder: Path, weights: Path) -> AuthorsRun:
    loaded = load_safely(weights)
    if not isinstance(loaded, dict) or "model" not in loaded:
        raise ConversionError(f"{weights.name} has no entry 'model'; it is not a checkpoint of the release")
    files = {weights.name: weights}
    config = loaded.get("config")
    if (folder / "config.json").is_file():
        files["config.json"] = folder / "config.json"
        config = _read_yaml(folder / "config.json")
    if not isinstance(config, Mapping):
        raise ConversionError(f"there is no config.json beside {weights.name}, and no configuration in it")
    encoder = loaded.get("pe_model")
    unread = sorted(set(loaded) - {"model", "pe_model", "config"})
    model, encoder = _tensors(loaded["model"], "model"), _tensors(encoder or {}, "pe_model")
    return AuthorsRun("image", model, encoder, dict(config), files=files, unread=unread)


def _read_text(folder: Path, weights: str) -> AuthorsRun:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config = _read_yaml(folder / "pe_config.json")
    files = {"pe_config.json": folder / "pe_config.json"}
    needed = ["config.json", f"{weights}/model.safetensors"]
    if config.get("PE_TYPE") == "seq_pe":
        needed.append(f"{weights}/model_1.safetensors")
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        hint = " (the model.safetensors at its root has no position encoder beside it)"
        raise ConversionError(
            f"{folder.name} lacks files{hint if f'{weights}/model.safetensors' in missing else ''}:", missing
        )
    files |= {name: folder / name for name in needed}
    try:
        model, *encoder = [load_file(folder / name) for name in needed[1:]]
    except SafetensorError as error:
        raise ConversionError(f"a weights file in {folder.name}/{weights} is damaged: {error}") from error
    train_args = {}
    if (folder / "train_args.json").is_file():
        files["train_args.json"] = folder / "train_args.json"
        train_args = read_json(folder / "train_args.json")
    tokenizer = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    gpt2 = read_json(folder / "config.json")
    return AuthorsRun("text", model, dict(*encoder), config, gpt2, train_args, files, tokenizer)


def _tensors(entries: Any, name: str) -> dict[str, Tensor]:
    if not isinstance(entries, Mapping):
        raise ConversionError(f"the entry {name!r} of the checkpoint is no state dict")
    others = [str(key) for key, value in entries.items() if not isinstance(value, Tensor)]
    if others:
        raise ConversionError(f"the entry {name!r} of the checkpoint holds more than tensors:", others)
    return dict(entries)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        value = parse_yaml(path.read_text(encoding="utf-8"), path.name)
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path.name} is not YAML: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise ConversionError(f"{path.name} is no configuration: it holds {type(value).__name__}")
    return value


def load_authors(
    source: str,
    subfolder: str | None = None,
    revision: str | None = None,
    weights: str | None = None,
    train_length: int | None = None,
) -> Converted:
    """Builds our model from a run of the release, without writing anything.

    Args:
        source: a local folder, or a Hub id.
        subfolder: of the source, as "image_seqpe_ckpt".
        revision: of the Hub repository.
        weights: which weights, by default the best; see `read_authors_folder`.
        train_length: of a text run, where its files do not tell; see `gpt2_from_authors`.

    Raises:
        ConversionError: the source cannot be converted.
    """
    run = read_authors_folder(find_folder(source, subfolder, revision), weights)
    converted = build_from_run(run, train_length)
    origin = {"source": public_name(source), "subfolder": subfolder, "revision": revision}
    converted.record.update({key: value for key, value in origin.items() if value})
    return converted


def build_from_run(run: AuthorsRun, train_length: int | None = None) -> Converted:
    """Builds our model with the weights of a run.

    Raises:
        ConversionError: a key is missing, extra or misshaped; all are listed.
    """
    unknown = unknown_encoder_names(name for name in run.encoder if name != "freqs")
    problems = [f"extra: pe_model.{name} {list(run.encoder[name].shape)}" for name in unknown]
    encoder = {name: tensor for name, tensor in run.encoder.items() if name not in unknown}
    args: dict[str, Any] = {}
    left_out: list[str] = []
    if run.kind == "image":
        import timm

        from .. import timm_models  # noqa: F401 (registers the architectures)

        architecture, args = vit_from_authors(run.config, run.model)
        model, heads = timm.create_model(architecture, **args), int(run.config["MODEL"]["NUM_HEADS"])
        state = vit_state_dict_from_authors(run.model, encoder, {"num_heads": heads})
    else:
        from ..portable.configuration_seqpe import SeqPEGPT2Config
        from ..portable.modeling_seqpe import SeqPEGPT2LMHeadModel

        config = SeqPEGPT2Config(**gpt2_from_authors(run.gpt2, run.config, run.train_args, train_length))
        model = SeqPEGPT2LMHeadModel(config)
        state = gpt2_state_dict_from_authors(run.model, encoder, config)
        left_out = names_left_out(run.model)
        table = run.model.get("transformer.wpe.weight")
        if table is not None and table.shape[-2] > config.train_length:
            left_out.append(f"transformer.wpe.weight, rows from {config.train_length} on (untrained)")
    load_exactly(model, state, "the checkpoint", problems)
    record = {
        "format": "SeqPE release",
        "files": {name: file_sha256(path) for name, path in run.files.items()},
        "tensors": {"model": len(run.model), "pe_model": len(run.encoder)},
        "left_out": [*left_out, *run.unread],
    }
    library = "timm" if run.kind == "image" else "transformers"
    return Converted(model.eval(), library, args, record, run.tokenizer)
