"""Make the folder to publish: a fresh one, from allow-listed files only, complete or not there at all.

`stage` copies weights, config, tokenizer and image processor of a run folder, completes image models for both
libraries (the other's part of `config.json`, an image processor, and tensor names that both read, timm's
behind `vit.`), adds the portable code that the config's `auto_map` needs, the rendered card
and `MANIFEST.json`. Everything is built in a temporary folder beside the target and renamed at the end, so an
interrupted or failed run leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .card import render
from .card_facts import Facts, load_card
from .config_rules import (
    INDEX,
    auto_map_modules,
    code_closure,
    libraries_of,
    shared_problems,
    type_problems,
    update_auto_map,
)
from .contents import find_problems, name_problem
from .errors import CheckFailed, UsageError, explain
from .files import read_json, require_space, write_json
from .manifest import PORTABLE, package_facts, read_manifest, write_manifest

PREFIX = "vit."
PROCESSOR = "preprocessor_config.json"
_TIMM_KEYS = ("architecture", "num_classes", "num_features", "model_args", "pretrained_cfg", "label_names")
_GENERATED = ("README.md", "MANIFEST.json")
_ROOM_TO_SPARE = 16 * 2**20


@dataclass
class Staged:
    """What `stage` made."""

    files: list[str]
    left_out: list[str]
    libraries: list[str]
    one_library_because: str | None = None


def stage(
    run_folder: Path,
    target: Path,
    *,
    card_folder: Path,
    source: dict[str, Any] | None = None,
    portable: Path = PORTABLE,
    overwrite: bool = False,
    fingerprint: bool = True,
) -> Staged:
    """Make `target` from a run folder and a card folder (`facts.yaml`, `results.json`).

    Args:
        run_folder: holds `model.safetensors` (or shards), `config.json` and what belongs to them.
        target: the folder to make; it must not exist unless `overwrite` is set.
        card_folder: holds the facts and results the README is rendered from.
        source: where the weights come from, for the manifest: words, hashes and Hub ids.
        portable: where the portable code lies.
        overwrite: replace an existing staged folder.
        fingerprint: load the staged model once and record its logits, with which every later load is
        compared.
    """
    names, left_out = _choose(run_folder)
    _refuse_target(target, overwrite)
    size = sum((run_folder / name).stat().st_size for name in names)
    require_space(target.parent, size + _ROOM_TO_SPARE, "staging")
    temporary = target.parent / f".{target.name}.staging-{uuid.uuid4().hex[:8]}"
    try:
        temporary.mkdir(parents=True)
        config, reason = serve_both(temporary, _copy_model(run_folder, names, temporary))
        for path in code_closure(portable, auto_map_modules(config)):
            shutil.copyfile(path, temporary / path.name)
        facts, results = load_card(card_folder)
        facts = _facts_for(config, facts, reason)
        (temporary / "README.md").write_text(render(facts, results), encoding="utf-8")
        manifest = write_manifest(
            temporary,
            {
                "published_as": {"repo_id": facts.repo_id, "tag": facts.tag},
                "source": source or {"description": "not recorded"},
                "package": package_facts(portable),
                "fingerprints": {},
            },
        )
        if problems := find_problems(temporary):
            raise CheckFailed(problems)
        if fingerprint:
            write_manifest(temporary, {**manifest, "fingerprints": _fingerprints(temporary, config)})
        _put_in_place(temporary, target)
    except OSError as error:
        raise explain(error, f"staging {target.name}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    files = sorted(path.name for path in target.iterdir())
    return Staged(files, [name for name in left_out if name not in files], libraries_of(config), reason)


def _choose(run_folder: Path) -> tuple[list[str], list[str]]:
    """Return the names to copy and those that stay behind, or refuse."""
    if not run_folder.is_dir():
        raise UsageError(
            f"{run_folder} is not a folder", "give the one that training, convert or graft wrote"
        )
    chosen, left_out, problems = [], [], []
    for path in sorted(run_folder.iterdir()):
        if path.is_dir() or name_problem(path.name) or path.name in _GENERATED or path.suffix == ".py":
            left_out.append(path.name + ("/" if path.is_dir() else ""))
        elif path.is_symlink():
            problems.append(f"{path.name}: a symbolic link; copy the file itself (cp -L)")
        else:
            chosen.append(path.name)
    if not any(name.endswith(".safetensors") for name in chosen):
        pickles = [name for name in left_out if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
        hint = f"; {', '.join(pickles)} may hold a pickle and never travels" if pickles else ""
        problems.append(f"no safetensors file in {run_folder.name}{hint}")
    if "config.json" not in chosen:
        problems.append(f"no config.json in {run_folder.name}")
    if problems:
        raise CheckFailed(
            problems, "save the model with save_pretrained or `seqpe-zoo convert`, stage that folder"
        )
    return chosen, left_out


def _refuse_target(target: Path, overwrite: bool) -> None:
    if target.is_symlink():
        raise UsageError(f"{target} is a link", "give a real folder")
    if not target.exists():
        return
    if not overwrite:
        raise UsageError(f"{target} exists", "give a new name, or --overwrite to replace it")
    read_manifest(target)  # only what stage made is ever replaced


def _copy_model(run_folder: Path, names: list[str], folder: Path) -> dict[str, Any]:
    for name in names:
        shutil.copyfile(run_folder / name, folder / name, follow_symlinks=False)
    config = read_json(folder / "config.json")
    config.pop("_name_or_path", None)  # where transformers loaded the model from is nobody's business
    if problems := type_problems(config):
        raise CheckFailed([f"config.json: {problem}" for problem in problems])
    update_auto_map(config)
    write_json(folder / "config.json", config)
    return config


def _facts_for(config: dict[str, Any], facts: Facts, reason: str | None) -> Facts:
    """Let the card speak of every library that can load the folder, those of the facts first."""
    possible = libraries_of(config)
    if missing := [library for library in facts.libraries if library not in possible]:
        why = f": {reason}" if reason else ""
        raise CheckFailed([f"the card names {', '.join(missing)}, which cannot load this model{why}"])
    if problems := _encoding_problems(config, facts.position_encoding):
        raise CheckFailed(problems, "correct position_encoding in facts.yaml")
    known_size = (config.get("pretrained_cfg") or {}).get("input_size")
    if facts.input_size and known_size and facts.input_size != known_size:
        problem = f"facts.yaml says input_size {facts.input_size}, but config.json has {known_size}"
        raise CheckFailed([problem], "correct input_size in facts.yaml: channels, height, width")
    return replace(facts, libraries=list(dict.fromkeys([*facts.libraries, *possible])))


def _encoding_problems(config: dict[str, Any], said: Mapping[str, Any]) -> list[str]:
    """Return where the facts name another encoding than the config, as far as the config tells."""
    args = config.get("model_args") or {}
    name = config.get("position_encoding") or args.get("pos_embed")
    options = config.get("position_encoding_args") or args.get("pos_embed_args") or {}
    known = {**options, **({"name": name} if name else {})}
    return [
        f"facts.yaml says position_encoding {key}: {said[key]}, but config.json has {known[key]}"
        for key in said
        if key in known and said[key] != known[key]
    ]


def _fingerprints(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Run the staged model in each library: the installed code where code travels (`check` runs the copy)."""
    from .clean_room import compare_fingerprints, loading_problems, probe

    reports = probe(config, folder, with_package="auto_map" in config)
    problems, _ = loading_problems(reports)
    found = {library: report.get("fingerprint") for library, report in reports.items()}
    both = not problems and len(found) == 2
    if both and (difference := compare_fingerprints(found["transformers"], found["timm"])):
        problems.append(f"timm and transformers make different models of it: {difference}")
    if problems:
        raise CheckFailed(problems, "the staged model does not load; look at config.json and the weights")
    return found


def _put_in_place(temporary: Path, target: Path) -> None:
    for path in temporary.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    old = target.parent / f".{target.name}.replaced-{uuid.uuid4().hex[:8]}"
    if target.exists():
        target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


# Image models for both libraries.


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
