"""The small models that come with the package: weights, configuration, tokenizer, card and results of each.

They are in `model_cards/` of the repository, and the wheel has a copy of that folder inside the package.
"""

import difflib
from pathlib import Path


def shipped_folder(name: str, in_clone: str) -> Path:
    """Returns a folder that the wheel has in the package, and a clone beside it."""
    packaged = Path(__file__).parent / name
    return packaged if packaged.is_dir() else Path(__file__).parents[1] / in_clone


def zoo_folder() -> Path:
    """Returns the folder that holds a folder for each model."""
    return shipped_folder("model_cards", "model_cards")


def zoo_models() -> list[str]:
    """Lists the names of the models that have weights."""
    return sorted(weights.parent.name for weights in zoo_folder().glob("*/model.safetensors"))


def zoo_path(name: str) -> Path:
    """Returns the folder of a model that comes with the package, ready for `from_pretrained`.

    >>> model = AutoModelForCausalLM.from_pretrained(zoo_path("tiny-gpt2-seqpe-austen"))

    Args:
        name: as `seqpe-zoo list` prints it.

    Raises:
        ValueError: there is no such model; lists those that there are.
    """
    known = zoo_models()
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1)
        suggestion = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        raise ValueError(
            f"no model {name!r} comes with seqpe_zoo{suggestion}; choose one of {', '.join(known) or 'none'}"
        )
    return zoo_folder() / name
