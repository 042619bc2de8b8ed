"""Recipes and comparisons by name, as in `seqpe-zoo train finetune_vit`, found without torch.

Recipes are in `train_scripts/recipes/` of the repository, and the wheel has a copy of that folder;
comparisons are part of the package.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..zoo import shipped_folder
from .errors import DataError
from .names import did_you_mean

COMPARISONS = Path(__file__).parents[1] / "training" / "comparisons"


def list_recipes() -> dict[str, Path]:
    """Returns the files of all recipes and comparisons by name."""
    folders = (shipped_folder("recipes", "train_scripts/recipes"), COMPARISONS)
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def find_recipe(recipe: str | Path) -> Path:
    """Returns the file of a recipe that is given by path or by name.

    Raises:
        DataError: there is no such file, and no recipe of this name; says what is like it.
    """
    path = Path(recipe)
    if path.exists():
        return path
    known, name = list_recipes(), path.name.removesuffix(".yaml")
    if str(path) in (name, path.name) and name in known:
        return known[name]
    meant = f"; did you mean {name}?" if name in known else did_you_mean(name, known)
    remedy = "; give the path of a YAML recipe, or a name that `seqpe-zoo recipes` prints"
    raise DataError(f"{recipe} does not exist{meant or remedy}")


def describe_recipe(path: Path) -> str:
    """Returns the line of a recipe that says what it is: the one below the command at its top."""
    found = re.match(r"(?:#.*\\\n)*#.*\n# (.+)", path.read_text(encoding="utf-8"))
    return found[1] if found else ""
