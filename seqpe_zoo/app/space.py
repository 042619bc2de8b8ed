"""A Space of the Hub, as a folder: the page, its models, the package itself and what it needs.

The package travels in the folder, as portable code does with checkpoints, so that a Space shows the very code
that wrote it. `gradio` is not among the requirements: a Space takes it from `sdk_version`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from ..data.errors import DataError
from .pictures import SAMPLES_FOLDER
from .zoo import ZooModel

MODELS_FOLDER = "models"
_COPIED = (".json", ".safetensors", ".bin", ".txt", ".model", ".md", ".yaml")
_OPTIONAL = ("matplotlib", "scikit-learn")
"""Needed by the page though the package can do without."""

_APP = '''\
"""The page of this Space; written by `seqpe-zoo app --write-space`."""

from pathlib import Path

from seqpe_zoo.app.page import build_page, launch_page
from seqpe_zoo.app.zoo import find_models

HERE = Path(__file__).parent
MODELS = {models}

demo = build_page(find_models(MODELS))

if __name__ == "__main__":
    launch_page(demo)
'''
_README = """\
# SeqPE zoo

Position encodings beyond the length and resolution they were trained at: pick a model, move the context
length or the image size, and see perplexity or prediction and the heatmap of positions change. Two models can
be seen side by side.

Models: {models}.

SeqPE: [arXiv:2506.13277](https://arxiv.org/abs/2506.13277). This page and its code are an independent
implementation under the Apache-2.0 licence.
"""


def write_space(models: Sequence[ZooModel], folder: Path) -> Path:
    """Writes a Space that shows models, and returns its folder.

    Args:
        models: from `find_models`; folders are copied, Hub ids are loaded by the Space itself.
        folder: new or empty.

    Raises:
        DataError: the folder holds files, or two models have the same name.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} holds something already; give a new folder")
    local = [Path(model.source) for model in models if Path(model.source).is_dir()]
    remote = [model.source for model in models if not Path(model.source).is_dir()]
    names = [path.name for path in local]
    if len(set(names)) < len(names):
        raise DataError(f"models of one Space need different names, these are called: {', '.join(names)}")
    needed = requirements()
    folder.mkdir(parents=True, exist_ok=True)
    for path in local:
        _copy_model(path, folder / MODELS_FOLDER / path.name)
    package = Path(__file__).resolve().parents[1]
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    shown = ([f'str(HERE / "{MODELS_FOLDER}")'] if local else []) + [f'"{name}"' for name in remote]
    (folder / "app.py").write_text(_APP.format(models=f"[{', '.join(shown)}]"), encoding="utf-8")
    (folder / "requirements.txt").write_text("\n".join(needed) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_readme(names, remote, _published(local)), encoding="utf-8")
    return folder


def requirements() -> list[str]:
    """Returns what the page needs beside gradio, with the ranges of the installed package.

    Raises:
        DataError: the package is not installed, so that its ranges are not known.
    """
    try:
        declared = [Requirement(line) for line in requires("seqpe-zoo") or []]
    except PackageNotFoundError as error:
        raise DataError("seqpe-zoo is not installed: run `pip install -e .` in its clone first") from error
    needed = {}
    for one in declared:
        is_extra = one.marker is not None and "extra" in str(one.marker)
        if not is_extra or one.name in _OPTIONAL:
            needed[one.name] = f"{one.name}{one.specifier}"
    return list(needed.values())


def _copy_model(source: Path, target: Path) -> None:
    """Copies what a model is loaded from, and its samples; not the checkpoints of its training."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file() and path.suffix in _COPIED:
            shutil.copyfile(path, target / path.name)
    if (source / SAMPLES_FOLDER).is_dir():
        shutil.copytree(source / SAMPLES_FOLDER, target / SAMPLES_FOLDER)


def _published(folders: Sequence[Path]) -> list[str]:
    """Returns the Hub ids that the cards of folders name."""
    facts = [path / "facts.yaml" for path in folders]
    contents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in facts if path.is_file()]
    return [content["repo_id"] for content in contents if content.get("repo_id")]


def _readme(local: Sequence[str], remote: Sequence[str], published: Sequence[str]) -> str:
    settings = {
        "title": "SeqPE zoo",
        "emoji": "📏",
        "colorFrom": "green",
        "colorTo": "blue",
        "sdk": "gradio",
        "sdk_version": version("gradio"),
        "python_version": f"{sys.version_info.major}.{sys.version_info.minor}",
        "app_file": "app.py",
        "license": "apache-2.0",
        "short_description": "Position encodings beyond their training length",
    }
    linked = [*remote, *published]
    if linked:
        settings["models"] = linked
    block = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return f"---\n{block}---\n\n{_README.format(models=', '.join([*local, *remote]))}"
