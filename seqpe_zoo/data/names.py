"""What names of models and of data mean, told without torch and before the network is asked.

The name of a model is a folder, a file of weights, a Hub id `ORG/NAME`, a name of timm, or that of a model of
the package; the prefixes of timm, `local-dir:` and `hf-hub:`, may stand before it. What kind of model it is,
its configuration says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..zoo import zoo_folder, zoo_models
from .errors import DataError

WEIGHT_FILES = (".safetensors", ".pth", ".pt", ".bin")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")
_OWN_TIMM_NAME = re.compile(r"\bvit_\w+_(?:seqpe|pe)_\d+\b")


class ModelName(NamedTuple):
    """A name that was understood: `kind` is "folder", "file", "hub" or "timm", `place` has no prefix."""

    kind: str
    place: str


def parse_model_name(name: str) -> ModelName:
    """Tells a folder, a file, a Hub id and a name of timm apart.

    Raises:
        DataError: it is none of them; says what is like it.
    """
    if name in zoo_models() and not Path(name).exists():
        return ModelName("folder", str(zoo_folder() / name))
    prefix, _, rest = name.rpartition(":")
    place = rest if prefix in ("local-dir", "hf-hub", "hf_hub") else name
    path = Path(place).expanduser()
    if path.is_dir() and not prefix.startswith("hf"):
        return ModelName("folder", str(path))
    if path.is_file():
        if path.suffix not in WEIGHT_FILES:
            raise DataError(f"{place} is no file of weights ({', '.join(WEIGHT_FILES)}); give its folder")
        return ModelName("file", str(path))
    looks_like_path = place.startswith((".", "/", "~")) or place.count("/") > 1
    if prefix == "local-dir" or looks_like_path or path.suffix in WEIGHT_FILES:
        raise DataError(f"{place} does not exist")
    if _HUB_ID.fullmatch(place):
        return ModelName("hub", place)
    base = place.split(".")[0]
    if base in timm_names() or is_own_timm_name(base):
        return ModelName("timm", place)
    raise DataError(
        f"{name!r} is neither a folder, nor a Hub id ORG/NAME, nor a model of timm or of `seqpe-zoo list`"
        + did_you_mean(base, [*zoo_models(), *timm_names()])
    )


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns "; did you mean ...?" with the names that are like a mistyped one; empty where none is."""
    alike = get_close_matches(given, list(known), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(alike)}?" if alike else ""


def is_own_timm_name(name: str) -> bool:
    """Tells whether a name is of the form of ours in timm."""
    return _OWN_TIMM_NAME.fullmatch(name) is not None


@lru_cache(maxsize=1)
def timm_names() -> frozenset[str]:
    """Names of timm's models and of ours, read from the source: to import timm takes seconds."""
    own = Path(__file__).parents[1] / "timm_models.py"
    found = set(_OWN_TIMM_NAME.findall(own.read_text(encoding="utf-8")))
    spec = find_spec("timm")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(folder, "models").glob("*.py"):
            source = path.read_text(encoding="utf-8")
            found.update(re.findall(r"^@register_model\s+def (\w+)", source, re.MULTILINE))
            _, _, deprecated = source.partition("register_model_deprecations(__name__")
            found.update(re.findall(r"['\"](\w+)['\"]\s*:", deprecated))
    return frozenset(found)


def read_config(name: str) -> dict[str, Any]:
    """Returns config.json of a folder or of a Hub repository; empty for a file and for a name of timm.

    Raises:
        DataError: there is no such model, or no configuration, or it is not JSON.
    """
    kind, place = parse_model_name(name)
    if kind in ("file", "timm"):
        return {}
    path = Path(place) / "config.json"
    if kind == "hub":
        path = _download_config(place)
    elif not path.is_file():
        raise DataError(f"{place} has no config.json: give the folder that a run or save_pretrained wrote")
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        DataError: the file cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # of json, and of other encodings than UTF-8
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no JSON object, but a {type(content).__name__}")
    return content


def _download_config(repo_id: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repo, _, revision = repo_id.partition("@")
    try:
        return Path(hf_hub_download(repo, "config.json", revision=revision or None))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise DataError(
            f"{repo_id!r} is neither a folder nor a model of the Hub that can be read: {first_line(error)}"
        ) from error


LANGUAGE_HEADS, IMAGE_HEAD = ("CausalLM", "LMHead"), "ImageClassification"
"""Parts of the names of classes in transformers."""
ENCODINGS = tuple("nope ape_sin ape_learn rope rope2d_axial rope2d_mixed alibi seqpe".split())
"""The position encodings of the package, as `list_position_encodings()`, which needs torch."""
TEXTS = ("stdlib", "wikitext-103")
IMAGES = ("digits", "glyphs", "fashion-mnist")
IMAGE_READERS = ("hfds", "hfids", "wds", "tfds")
"""Readers of timm, spelled with a name or a folder, as `hfds/ILSVRC/imagenet-1k` or `wds/shards`."""


def check_data_name(task: str, source: str) -> None:
    """Refuses data that is neither there nor known by name.

    Args:
        task: "text", "images" or "questions".
        source: what `--data` says.

    Raises:
        DataError: as said.
    """
    name, _, folder = source.partition(":")
    if Path(source).exists():
        return
    if task == "questions":
        raise DataError(
            f"{source} does not exist; give a SQuAD-format .json, or a folder with validation.LENGTH.jsonl"
        )
    if task == "text":
        if source in TEXTS or (folder and _HUB_ID.fullmatch(name)):
            return
        raise DataError(
            f"{source} does not exist; give a text file, a folder with train.txt, valid.txt and test.txt, "
            f"ORG/NAME:CONFIG, {' or '.join(TEXTS)}{did_you_mean(source, TEXTS)}"
        )
    if source in IMAGES or (name == "fashion-mnist" and Path(folder).is_dir()):
        return
    if source.partition("/")[0] not in IMAGE_READERS:
        raise DataError(
            f"{source} does not exist; give a folder with SPLIT/CLASS/*.jpg, a tar file, hfds/ORG/NAME, "
            f"{', '.join(IMAGES)}{did_you_mean(source, IMAGES)}"
        )


def task_of(name: str) -> str:
    """Returns what a model is for, by its configuration or the names of its weights: "text" or "images"."""
    config, (kind, place) = read_config(name), parse_model_name(name)
    if kind == "file":
        with Path(place).open("rb") as file:  # both formats begin with the names
            return "text" if b"wte.weight" in file.read(2**20) else "images"
    if "architecture" in config or not config:
        return "images"
    words = " ".join(str(word) for word in config.get("architectures") or [])
    if any(head in words for head in LANGUAGE_HEADS):
        return "text"
    return "images" if "image_size" in config or IMAGE_HEAD in words else "text"


def check_head(name: str) -> None:
    """Refuses a model of transformers that says to be neither language model nor image classifier.

    Raises:
        DataError: as said.
    """
    words = " ".join(str(word) for word in read_config(name).get("architectures") or [])
    if words and not any(head in words for head in (*LANGUAGE_HEADS, IMAGE_HEAD)):
        raise DataError(
            f"{name} is a {words}; only causal language models and image classifiers can be measured"
        )


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error says, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
