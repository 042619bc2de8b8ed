import json
from pathlib import Path

import pytest
import timm

from seqpe_zoo.cli import main
from seqpe_zoo.data.digits_images import write_image_folder
from seqpe_zoo.evaluation.commands import split_label
from seqpe_zoo.evaluation.defaults import default_lengths, default_resolutions
from seqpe_zoo.evaluation.model_loading import image_model_of, load_language_model


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_evaluate_writes_results_table_and_plot(
    our_language_model: Path, stock_language_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(our_language_model), f"stock={stock_language_model}"]
    options = ["--lengths", "32", "64", "--max-tokens", "500", "--output", str(tmp_path)]
    assert run("evaluate", *models, *options) == 0
    content = json.loads((tmp_path / "results.json").read_text())
    assert set(content["by_model"]) == {"seqpe", "stock"}
    assert (tmp_path / "perplexity.png").stat().st_size > 1000
    assert "| stock |" in (tmp_path / "table.md").read_text()
    assert "stock" in capsys.readouterr().out


def test_models_of_one_label_stay_apart(our_language_model: Path, tmp_path: Path) -> None:
    twice = [str(our_language_model), str(our_language_model)]
    assert run("evaluate", *twice, "--lengths", "16", "--max-tokens", "64", "--output", str(tmp_path)) == 0
    names = set(json.loads((tmp_path / "results.json").read_text())["by_model"])
    assert names == {"seqpe", f"seqpe ({our_language_model.name})"}


def test_models_are_measured_at_multiples_of_their_training(
    our_language_model: Path, stock_language_model: Path
) -> None:
    ours, stock = (load_language_model(str(f)).model for f in (our_language_model, stock_language_model))
    length = ours.config.train_length or ours.config.n_positions
    assert default_lengths(ours)[:3] == [length, 2 * length, 4 * length]
    assert default_lengths(stock) == [64]  # it has learned no more positions


def test_classifiers_are_measured_at_multiples_of_their_training() -> None:
    small = timm.create_model("vit_pico_patch4_pe_32", pos_embed="seqpe", img_size=32, depth=1)
    assert default_resolutions(image_model_of(small, "small")) == [32, 48, 64, 96]
    large = timm.create_model("vit_tiny_patch16_pe_224", pos_embed="rope2d_axial", depth=1)
    assert default_resolutions(image_model_of(large, "large")) == [224, 320, 384, 448, 512, 640, 672]


@pytest.mark.parametrize("data", ["", "digits", "PICTURES"])
def test_classifier_of_other_classes_is_refused(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"pos_embed": "nope", "depth": 1}
    model = timm.create_model("vit_pico_patch4_pe_32", num_classes=7, **arguments)
    timm.models.save_for_hf(model, str(tmp_path / "model"), model_args=arguments, safe_serialization=True)
    pictures = write_image_folder(tmp_path / "pictures", size=32, train=10, test=30)
    words = ["--data", str(pictures) if data == "PICTURES" else data] if data else []
    assert run("evaluate", str(tmp_path / "model"), *words, "--output", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert "7 classes apart" in said
    assert "has 10" in said
    assert not (tmp_path / "out").exists()


def test_papers_numbers_do_not_stand_beside_handwritten_digits(tmp_path: Path) -> None:
    arguments = {"pos_embed": "seqpe", "depth": 1, "embed_dim": 32, "patch_size": 16, "img_size": 224}
    model = timm.create_model("vit_pico_patch4_pe_32", num_classes=10, dynamic_img_size=True, **arguments)
    arguments["dynamic_img_size"] = True
    timm.models.save_for_hf(model, str(tmp_path / "m"), model_args=arguments, safe_serialization=True)
    words = ["--resolutions", "224", "--max-images", "4", "--no-plot", "--output", str(tmp_path / "out")]
    assert run("evaluate", str(tmp_path / "m"), *words) == 0
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| seqpe |" in table
    assert "paper" not in table


def test_results_are_drawn_again(our_language_model: Path, tmp_path: Path) -> None:
    assert (
        run(
            "evaluate",
            str(our_language_model),
            "--lengths",
            "16",
            "--max-tokens",
            "64",
            "--output",
            str(tmp_path),
        )
        == 0
    )
    assert run("plot", str(tmp_path), "--output", str(tmp_path / "again.svg")) == 0
    assert (tmp_path / "again.svg").read_text().startswith("<?xml")


def test_checkpoint_is_diagnosed(our_language_model: Path, tmp_path: Path) -> None:
    assert run("diagnose", str(our_language_model), "--positions", "300", "--output", str(tmp_path)) == 0
    scores = json.loads((tmp_path / "diagnosis.json").read_text())["scores"]
    assert set(scores) >= {"digit_artefact_score", "nearness_correlation", "collapse_of_shifted_copies"}
    assert (tmp_path / "heatmap.png").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "absent-folder/x"], "neither a folder nor a model"),
        (["evaluate", "MODEL", "--lengths", "20000"], "num_digits=4"),
        (["evaluate", "MODEL", "--data", "absent.txt"], "does not exist"),
        (["evaluate", "MODEL", "--task", "questions"], "need --data"),
        (["evaluate", "STOCK", "--lengths", "128"], "beyond the 64 positions"),
        (["evaluate", "MODEL", "--device", "gpu0"], "device 'gpu0' cannot be used"),
        (["diagnose", "STOCK"], "no position encoding of seqpe_zoo"),
        (["diagnose", "MODEL", "--positions", "50"], "101 or more"),
        (["plot", "absent.json"], "cannot be read"),
    ],
)
def test_wrong_input_gives_a_sentence(
    words: list[str],
    message: str,
    our_language_model: Path,
    stock_language_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    names = {"MODEL": str(our_language_model), "STOCK": str(stock_language_model)}
    assert run(*(names.get(word, word) for word in words)) == 2
    assert message in capsys.readouterr().err


def test_label_is_told_from_a_path(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert split_label("x=org/name") == ("x", "org/name")
    assert split_label(str(odd)) == (None, str(odd))
