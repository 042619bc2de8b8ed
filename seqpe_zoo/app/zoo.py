"""The models that the page offers: those of the package, of a demo's report, or named by the user.

A model is a folder that holds a configuration and weights, or a Hub id. Loaded models stay in memory, a few
at a time, because the page asks for the same two again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..data.errors import DataError
from ..data.names import parse_model_name, read_config, task_of
from ..zoo import zoo_folder

if TYPE_CHECKING:
    from ..evaluation.model_loading import ImageModel, LanguageModel

TEXT, IMAGES = "text", "images"
_KEPT_MODELS = 4


@dataclass(frozen=True)
class ZooModel:
    """A model by name.

    Attributes:
        name: in menus and legends; no two models of a page share one.
        source: folder or Hub id.
        kind: "text" or "images".
    """

    name: str
    source: str
    kind: str


def usual_places() -> list[Path]:
    """Returns where models are looked for when none is named: those of the package, and a demo's report."""
    return [zoo_folder(), Path("demo_report") / "models"]


def find_models(words: Sequence[str] = ()) -> list[ZooModel]:
    """Finds the models of a page.

    Args:
        words: folders of models, folders of such folders, or Hub ids; the usual places if there are none.

    Raises:
        DataError: a word names no model, or the usual places hold none.
    """
    if words:
        sources = [source for word in words for source in _sources_of(word)]
    else:
        sources = [source for place in usual_places() for source in _folders_with_weights(place)]
    if not sources:
        raise DataError(
            "there is no model to show: give folders or Hub ids with --models, or train some with "
            "`seqpe-zoo demo`"
        )
    return _named(dict.fromkeys(sources))


def _sources_of(word: str) -> list[str]:
    folder = Path(word)
    if not folder.is_dir():
        parse_model_name(word)
        return [word]
    found = _folders_with_weights(folder)
    if not found:
        raise DataError(
            f"{word} holds no model: expected config.json beside model.safetensors, in this folder or in "
            "folders directly below it"
        )
    return found


def _folders_with_weights(folder: Path) -> list[str]:
    # Whole paths: a relative one that has vanished would be taken for a Hub id.
    folder = folder.resolve()
    if _holds_weights(folder):
        return [str(folder)]
    below = sorted(folder.iterdir()) if folder.is_dir() else []
    return [str(path) for path in below if path.is_dir() and _holds_weights(path)]


def _holds_weights(folder: Path) -> bool:
    weights = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return bool(weights) and (folder / "config.json").is_file()


def _named(sources: Iterable[str]) -> list[ZooModel]:
    """Names folders by their own name, or by their path where two have the same."""
    short = {source: Path(source).name if Path(source).is_dir() else source for source in sources}
    shared = Counter(short.values())
    return [
        ZooModel(name if shared[name] == 1 else source, source, task_of(source))
        for source, name in short.items()
    ]


def training_facts(model: ZooModel) -> tuple[str, object]:
    """Returns a model's encoding, and what tells its data: the tokenizer, or what its classes are called."""
    config = read_config(model.source)
    encoding = config.get("position_encoding") or (config.get("model_args") or {}).get("pos_embed")
    tokenizer = Path(model.source) / "tokenizer.json"
    data = tokenizer.read_bytes() if tokenizer.is_file() else config.get("vocab_size")
    labels = config.get("label_names") or config.get("id2label")
    return str(encoding), data if model.kind == TEXT else labels


class Zoo:
    """Models by name, loaded when they are first asked for."""

    def __init__(self, models: Sequence[ZooModel]) -> None:
        self._models = {model.name: model for model in models}

    def names(self, kind: str) -> list[str]:
        """Returns the names of the models of a kind."""
        return [model.name for model in self._models.values() if model.kind == kind]

    def model(self, name: str, kind: str) -> ZooModel:
        """Returns a model.

        Raises:
            DataError: there is none of this name and kind.
        """
        found = self._models.get(name)
        if found is None or found.kind != kind:
            raise DataError(
                f"there is no model {name!r} for {kind} here; choose one of {', '.join(self.names(kind))}"
            )
        return found

    def opening_pair(self, kind: str) -> tuple[str, str | None]:
        """Returns the models that are compared at first: SeqPE, and RoPE trained on the same data."""
        facts = {name: training_facts(self.model(name, kind)) for name in self.names(kind)}
        first = min(facts, key=lambda name: facts[name][0] != "seqpe")

        def distance(name: str) -> tuple[bool, bool]:
            encoding, data = facts[name]
            return data != facts[first][1], not encoding.startswith("rope")

        return first, min((name for name in facts if name != first), key=distance, default=None)

    def language_model(self, name: str) -> LanguageModel:
        """Returns a language model, ready to be measured; raises DataError where it cannot be loaded."""
        return _load_language_model(self.model(name, TEXT).source)

    def image_model(self, name: str) -> ImageModel:
        """Returns an image classifier, ready to be measured; raises DataError where it cannot be loaded."""
        return _load_image_model(self.model(name, IMAGES).source)


@lru_cache(maxsize=_KEPT_MODELS)
def _load_language_model(source: str) -> LanguageModel:
    from ..evaluation.model_loading import load_language_model

    return load_language_model(source)


@lru_cache(maxsize=_KEPT_MODELS)
def _load_image_model(source: str) -> ImageModel:
    from ..evaluation.model_loading import load_image_model

    return load_image_model(source)
