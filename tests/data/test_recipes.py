from pathlib import Path

import pytest

from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.recipes import describe_recipe, find_recipe, list_recipes


def test_recipes_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("task: train_gpt2\n")
    assert find_recipe(own) == own
    assert find_recipe("finetune_vit") == find_recipe("finetune_vit.yaml") == list_recipes()["finetune_vit"]
    assert find_recipe("mini_lm").parent.name == "comparisons"


@pytest.mark.parametrize("word", ["finetune_vti", "nowhere/finetune_vit.yaml"])
def test_recipe_that_was_meant_is_named(word: str) -> None:
    with pytest.raises(DataError, match="does not exist; did you mean finetune_vit"):
        find_recipe(word)


def test_other_names_are_answered_with_where_names_are_listed() -> None:
    with pytest.raises(DataError, match=r"xyz does not exist; give the path .* `seqpe-zoo recipes` prints"):
        find_recipe("xyz")


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_says_what_it_is(name: str) -> None:
    said = describe_recipe(list_recipes()[name])
    assert len(said) > 12
    assert not {"accelerate", "python", "seqpe-zoo"} & set(said.split())
