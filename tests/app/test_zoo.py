import shutil
from pathlib import Path

import pytest

from seqpe_zoo.app.zoo import IMAGES, TEXT, Zoo, find_models
from seqpe_zoo.data.errors import DataError

from .stand_ins import save_language_model


def test_folder_of_models_is_searched(models_folder: Path) -> None:
    found = {model.name: model.kind for model in find_models([str(models_folder)])}
    expected = {"text_seqpe": TEXT, "text_alibi": TEXT, "vit_seqpe": IMAGES, "vit_rope": IMAGES}
    assert found == expected


def test_demo_report_is_found_without_being_named(
    models_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo_report").mkdir()
    shutil.copytree(models_folder, tmp_path / "demo_report" / "models")
    monkeypatch.chdir(tmp_path)
    assert {"text_alibi", "vit_rope"} <= {model.name for model in find_models()}


def test_model_named_twice_is_shown_once(models_folder: Path) -> None:
    words = [str(models_folder / "text_seqpe"), str(models_folder / "text_seqpe" / "..")]
    assert [model.name for model in find_models(words)].count("text_seqpe") == 1


def test_models_of_one_name_are_told_apart(models_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(models_folder / "vit_rope", tmp_path / "vit_rope")
    names = [model.name for model in find_models([str(models_folder / "vit_rope"), str(copy)])]
    assert names == [str(models_folder / "vit_rope"), str(copy)]


@pytest.mark.parametrize(
    ("word", "reason"),
    [("nowhere", "neither a folder, nor a Hub id"), (".", "holds no model: expected config.json")],
)
def test_word_that_names_no_model_is_refused(
    word: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=reason):
        find_models([word])


def test_card_without_weights_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "config.json").write_text("{}")
    with pytest.raises(DataError, match="holds no model"):
        find_models([str(tmp_path)])


def test_unknown_name_lists_the_known_ones(zoo: Zoo) -> None:
    with pytest.raises(DataError, match="no model 'gpt9' for text here; choose one of text_alibi"):
        zoo.language_model("gpt9")


def test_model_that_has_vanished_is_reported(models_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(models_folder / "text_alibi", tmp_path / "text_alibi")
    zoo = Zoo(find_models([str(copy)]))
    shutil.rmtree(copy)
    with pytest.raises(DataError, match="does not exist"):
        zoo.language_model("text_alibi")


def test_page_opens_with_seqpe_beside_rope_of_the_same_data(tmp_path: Path) -> None:
    save_language_model(tmp_path / "a_alibi", "alibi")
    save_language_model(tmp_path / "b_other_rope", "rope")
    (tmp_path / "b_other_rope" / "tokenizer.json").write_text("{}")
    save_language_model(tmp_path / "c_rope", "rope")
    save_language_model(tmp_path / "d_seqpe", "seqpe")
    zoo = Zoo(find_models([str(tmp_path)]))
    assert zoo.opening_pair(TEXT) == ("d_seqpe", "c_rope")
