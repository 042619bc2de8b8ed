import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from seqpe_zoo.app.texts import OWN, PERSUASION, PREDICTED, STDLIB, default_text, read_text
from seqpe_zoo.app.views import SettingRange, compare_texts, length_range, view_text
from seqpe_zoo.app.zoo import Zoo, find_models
from seqpe_zoo.data.byte_tokenizer import byte_characters
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.text_sources import open_token_stream
from seqpe_zoo.evaluation.defaults import trained_length
from seqpe_zoo.evaluation.perplexity import evaluate_perplexity

from .stand_ins import TRAINED_LENGTH


def test_perplexity_is_that_of_evaluation(zoo: Zoo) -> None:
    model = zoo.language_model("text_alibi")
    stream = open_token_stream("stdlib", "test", model.tokenizer, PREDICTED + 1)
    (expected,) = evaluate_perplexity(model.model, stream, [64])
    view = view_text(model, STDLIB, "", 64)
    assert view.summary.startswith(f"### Perplexity {expected.perplexity:.2f}\n")
    assert "2 times the 32 tokens of training; 4,096 tokens predicted" in view.summary


def test_text_of_the_user_is_measured(zoo: Zoo) -> None:
    view = view_text(zoo.language_model("text_alibi"), OWN, "to be or not to be " * 10, 32)
    assert "in contexts of 32 tokens, as in training; 189 tokens predicted" in view.summary


def test_bundled_passage_fills_sixteen_contexts_of_256(zoo: Zoo) -> None:
    assert len(read_text(zoo.language_model("text_alibi"), PERSUASION, "", 16 * 256)) == 16 * 256 + 1


def test_heatmap_follows_the_length(zoo: Zoo) -> None:
    model = zoo.language_model("text_seqpe")
    shapes = [
        view_text(model, STDLIB, "", length).heatmap.axes[0].images[0].get_array().shape
        for length in (32, 96)
    ]
    assert shapes == [(32, 32), (96, 96)]


def test_encoding_without_vectors_says_why_there_is_no_heatmap(zoo: Zoo) -> None:
    view = view_text(zoo.language_model("text_alibi"), STDLIB, "", 32)
    assert view.heatmap is None
    assert "'alibi' gives positions no vectors of their own" in view.note


def test_length_beyond_capacity_is_refused(zoo: Zoo) -> None:
    with pytest.raises(DataError, match=r"length 128: position 127 .* 99"):
        view_text(zoo.language_model("text_seqpe"), STDLIB, "", 128)


@pytest.mark.parametrize(
    ("text", "own", "reason"),
    [
        (OWN, "too short", "the text has 9 tokens, and a context of 32 needs at least 33"),
        (OWN, " \n", "your own text is empty"),
        ("Ulysses", "", "there is no text 'Ulysses'; choose one of"),
    ],
)
def test_text_that_cannot_be_measured_is_refused(zoo: Zoo, text: str, own: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        view_text(zoo.language_model("text_alibi"), text, own, 32)


def test_curves_of_two_models_leave_out_what_one_cannot_read(zoo: Zoo) -> None:
    loaded = {name: zoo.language_model(name) for name in ("text_alibi", "text_seqpe")}
    curves = compare_texts(loaded, PERSUASION, "")
    assert list(curves.points["text_alibi"]) == [32, 64, 128, 256, 512]
    assert list(curves.points["text_seqpe"]) == [32, 64]
    assert curves.note == "text_seqpe cannot read 128 tokens."
    assert isinstance(curves.figure, Figure)


def test_curve_ends_where_the_text_does(zoo: Zoo) -> None:
    curves = compare_texts({"alibi": zoo.language_model("text_alibi")}, OWN, "some words " * 20)
    assert list(curves.points["alibi"]) == [32, 64, 128]
    assert curves.note == "The text ends before 256 tokens."


def test_curve_needs_a_text_of_two_lengths(zoo: Zoo) -> None:
    with pytest.raises(DataError, match="a context of 64 needs at least 65"):
        compare_texts({"alibi": zoo.language_model("text_alibi")}, OWN, "some words " * 4)


def test_models_with_different_tokens_are_not_compared(zoo: Zoo, models_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(models_folder / "text_alibi", tmp_path / "reversed")
    backwards = {character: 255 - byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=backwards, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    other = Zoo(find_models([str(folder)])).language_model("reversed")
    with pytest.raises(DataError, match="different tokens"):
        compare_texts({"a": zoo.language_model("text_alibi"), "b": other}, PERSUASION, "")


def test_slider_begins_as_far_out_as_all_models_can_read(zoo: Zoo) -> None:
    short, long = zoo.language_model("text_seqpe"), zoo.language_model("text_alibi")
    assert trained_length(short.model) == TRAINED_LENGTH
    assert length_range([long]) == SettingRange(largest=512, step=8, start=512)
    assert length_range([long, short]) == SettingRange(largest=512, step=8, start=64)


def test_heatmap_has_one_scale_at_every_length(zoo: Zoo) -> None:
    model = zoo.language_model("text_seqpe")
    for length in (1, 32, 96):
        (image,) = view_text(model, STDLIB, "", length).heatmap.axes[0].images
        assert image.get_clim() == (-1, 1)
        assert abs(image.get_array()).max() <= 1.0001
    assert image.get_array().diagonal().min() > 0.999


def test_models_of_bytes_read_python_source(zoo: Zoo) -> None:
    assert default_text(zoo.language_model("text_alibi")) == STDLIB
