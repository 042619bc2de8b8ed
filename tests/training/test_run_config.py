from pathlib import Path

import pytest
import torch

from seqpe_zoo.training.image_jobs import build_image_model
from seqpe_zoo.training.run_config import TASKS, TrainingConfig, load_run
from seqpe_zoo.training.strict_config import ConfigError, build_config
from seqpe_zoo.training.text_jobs import build_language_model

from .helpers import SCRIPTS, text_recipe

RECIPES = sorted((SCRIPTS / "recipes").glob("*.yaml"))
SCRIPT_OF = {
    "train_gpt2": "train_gpt2_wikitext.py",
    "train_vit": "train_vit_imagenet.py",
    "finetune_gpt2_qa": "finetune_gpt2_qa.py",
    "finetune_vit": "finetune_vit.py",
    "finetune_gpt2": "finetune_gpt2.py",
}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_parses_and_begins_with_its_command(path: Path) -> None:
    run = load_run(path)
    first = " ".join(line.lstrip("# ").rstrip(" \\") for line in path.read_text().splitlines()[:2])
    assert f"train_scripts/{SCRIPT_OF[run.task]} train_scripts/recipes/{path.name}" in first


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if path.stem.startswith(("gpt2", "vit"))], ids=lambda path: path.stem
)
def test_recipe_builds_its_model_without_memory(path: Path) -> None:
    run = load_run(path)
    if run.task == "finetune_gpt2_qa":
        assert (SCRIPTS / "recipes" / f"{Path(run.model.checkpoint).name}.yaml").is_file()
        return
    with torch.device("meta"):
        if run.task == "train_gpt2":
            model = build_language_model(run.model, run.data.length)
        else:
            model = build_image_model(run.model, run.data.resolution, 1000)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_paper_has_a_recipe_for_each_row_of_its_tables() -> None:
    names = {path.stem for path in RECIPES}
    text = {"seqpe", "nope", "ape_sin", "ape_learn", "rope_1e4", "rope_1e6", "rope_1e8", "alibi"}
    images = {"seqpe", "nope", "ape_sin", "ape_learn", "rope2d_axial", "rope2d_mixed"}
    assert {f"gpt2_{name}" for name in text} <= names
    assert {f"vit_{size}16_{name}" for size in "sb" for name in images} <= names


def test_size_of_the_papers_language_model() -> None:
    run = load_run(SCRIPTS / "recipes" / "gpt2_seqpe.yaml")
    with torch.device("meta"):
        model = build_language_model(run.model, run.data.length)
    # 124,834,560 of GPT-2 with the shared W_PE, 14,780,160 of the encoder: counted in the release.
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_834_560 + 14_780_160


def test_size_of_the_papers_vision_transformer() -> None:
    run = load_run(SCRIPTS / "recipes" / "vit_s16_seqpe.yaml")
    with torch.device("meta"):
        model = build_image_model(run.model, 224, 1000)
    # 25,523,560 of ViT-S with W_PE of each layer, 3,704,064 of the encoder: counted in the release.
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_523_560 + 3_704_064


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None}, "training.steps or training.epochs"),
        ({"epochs": 2.0}, "training.steps or training.epochs"),
        ({"steps": 0}, "at least 1"),
        ({"batch_size": 0}, "at least 1"),
        ({"schedule": "step"}, "must be one of linear, cosine, constant"),
        ({"precision": "fp8"}, "fp32, bf16, fp16"),
        ({"minimum_rate": 1.0}, "minimum_rate"),
        ({"layer_decay": 1.5}, "layer_decay"),
        ({"ema_decay": 1.0}, "ema_decay"),
        ({"select_best": True, "evaluate_every": 30, "save_every": 20}, "multiple of save_every"),
        ({"warmup_steps": 1, "warmup_epochs": 1.0}, "not both"),
    ],
)
def test_contradictions_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(TrainingConfig, {"output": "x", "steps": 5, **changes}, "training")


def test_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="training has no key learning_rat"):
        load_run(text_recipe(tmp_path), ["training.learning_rat=1"])


def test_unknown_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be one of train_gpt2"):
        load_run(text_recipe(tmp_path), ["task=train_gpt3"])


def test_recipe_of_another_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this script runs 'train_vit'"):
        load_run(text_recipe(tmp_path), task="train_vit")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.position_encoding=ropey", "unknown position encoding"),
        ("model.position_encoding=rope2d_axial", "not 1-dimensional data such as text"),
        ("model.position_encoding_args={bas: 3}", "has no option bas"),
        ("model.architecture={n_layers: 3}", "no field n_layers"),
    ],
)
def test_wrong_model_is_refused(tmp_path: Path, change: str, message: str) -> None:
    run = load_run(text_recipe(tmp_path), ["model.position_encoding_args={}", change])
    with pytest.raises(ConfigError, match=message):
        build_language_model(run.model, run.data.length, 256)


def test_every_task_has_a_script() -> None:
    assert set(SCRIPT_OF) == set(TASKS)
    assert all((SCRIPTS / name).is_file() for name in SCRIPT_OF.values())


def test_scripts_are_thin() -> None:
    assert all(len(path.read_text().splitlines()) <= 80 for path in SCRIPTS.glob("*.py"))
