"""Which measurements the paper's numbers may stand beside: same data, whole, same unit."""

from pathlib import Path

import pytest
import timm
import torch

from seqpe_zoo.data.digits_images import write_image_folder
from seqpe_zoo.evaluation import measure
from seqpe_zoo.evaluation.measure import measure_images, measure_questions, measure_text
from seqpe_zoo.evaluation.model_loading import image_model_of, load_language_model
from seqpe_zoo.evaluation.report import extrapolation_rows


@pytest.fixture
def wikitext(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the download: every text is one short stream of tokens."""
    stream = torch.arange(100) % 256
    monkeypatch.setattr(measure, "open_token_stream", lambda *args: stream)


def table_of(folder: Path, source: str, split: str, vocabulary: int, limit: int | None = None) -> str | None:
    model = load_language_model(str(folder))
    model.tokenizer = range(vocabulary)
    return measure_text(model, "seqpe", source, split, [16], limit)[0].paper_table


@pytest.mark.usefixtures("wikitext")
def test_only_whole_test_split_of_wikitext_in_gpt2_tokens_is_the_papers(our_language_model: Path) -> None:
    assert table_of(our_language_model, "wikitext-103", "test", 50257) == "language_modelling"
    assert table_of(our_language_model, "stdlib", "test", 50257) is None
    assert table_of(our_language_model, "wikitext-103", "validation", 50257) is None
    assert table_of(our_language_model, "wikitext-103", "test", 256) is None
    assert table_of(our_language_model, "wikitext-103", "test", 50257, 50) is None


def test_own_questions_are_not_the_papers(our_language_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "squad_qa"
    folder.mkdir()
    row = '{"index": 0, "input": "Question: who? Answer:", "outputs": ["he"]}\n'
    model = load_language_model(str(our_language_model))
    (folder / "validation.64.jsonl").write_text(row)
    assert {m.paper_table for m in measure_questions(model, "seqpe", str(folder), [64])} == {None}


@pytest.mark.parametrize("source", ["digits", "imagenet-1k"])
def test_paper_of_imagenet_stands_beside_no_other_pictures(tmp_path: Path, source: str) -> None:
    model = timm.create_model("vit_pico_patch4_pe_32", num_classes=10, dynamic_img_size=True, depth=1)
    if source != "digits":  # a folder of that name is not that set
        source = str(write_image_folder(tmp_path / source, size=32, train=0, test=30))
    measured = measure_images(image_model_of(model, "vit"), "seqpe", source, "validation", [32])
    assert {m.metric for m in measured} == {"accuracy", "top5_accuracy"}
    assert {m.paper_table for m in measured} == {None}
    assert extrapolation_rows(measured, "accuracy")[1] == [["seqpe", *[f"{measured[0].value:.1f}"] * 2]]
