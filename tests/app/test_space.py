import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

pytest.importorskip("gradio", reason="the page needs gradio: pip install 'seqpe-zoo[app]'")

from huggingface_hub import SpaceCard
from packaging.requirements import Requirement

from seqpe_zoo.app.space import write_space
from seqpe_zoo.app.zoo import TEXT, ZooModel, find_models
from seqpe_zoo.cli import main
from seqpe_zoo.data.errors import DataError


def test_space_says_what_the_hub_must_know(models_folder: Path, tmp_path: Path) -> None:
    space = tmp_path / "space"
    assert main(["app", "--models", str(models_folder), "--write-space", str(space)]) == 0
    card = SpaceCard.load(space / "README.md")
    assert (card.data.sdk, card.data.app_file) == ("gradio", "app.py")
    assert Requirement(f"gradio=={card.data.sdk_version}")
    names = {Requirement(line).name for line in (space / "requirements.txt").read_text().splitlines()}
    assert {"torch", "timm", "transformers", "matplotlib", "scikit-learn"} <= names
    assert "gradio" not in names


@pytest.mark.slow
def test_space_runs_by_itself(models_folder: Path, tmp_path: Path) -> None:
    space = write_space(find_models([str(models_folder)]), tmp_path / "space")
    code = "import app, seqpe_zoo; print(seqpe_zoo.__file__); print(len(app.demo.fns))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=space, env=environment, capture_output=True, text=True, check=True
    )
    home, functions = done.stdout.splitlines()[-2:]
    assert Path(home) == space / "seqpe_zoo" / "__init__.py"
    assert int(functions) > 4


def test_models_of_the_hub_are_linked_and_not_copied(models_folder: Path, tmp_path: Path) -> None:
    local = find_models([str(models_folder / "vit_rope")])
    (models_folder / "vit_rope" / "facts.yaml").write_text("repo_id: org/vit-rope\n")
    space = write_space([*local, ZooModel("org/gpt2", "org/gpt2", TEXT)], tmp_path / "space")
    settings = yaml.safe_load((space / "README.md").read_text().split("---\n")[1])
    assert settings["models"] == ["org/gpt2", "org/vit-rope"]
    assert 'MODELS = [str(HERE / "models"), "org/gpt2"]' in (space / "app.py").read_text()
    assert [path.name for path in (space / "models").iterdir()] == ["vit_rope"]


def test_samples_travel_and_checkpoints_do_not(tmp_path: Path) -> None:
    model = tmp_path / "vit"
    (model / "samples").mkdir(parents=True)
    (model / "checkpoint-8").mkdir()
    Image.new("L", (4, 4)).save(model / "samples" / "a.png")
    for name in ("config.json", "model.safetensors", "optimizer.pt", "checkpoint-8/model.safetensors"):
        (model / name).write_text("{}")
    space = write_space([ZooModel("vit", str(model), "images")], tmp_path / "space")
    copied = {path.relative_to(space / "models").as_posix() for path in (space / "models").rglob("*.*")}
    assert copied == {"vit/config.json", "vit/model.safetensors", "vit/samples/a.png"}


def test_folder_that_holds_files_is_left_alone(models_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="holds something already"):
        write_space(find_models([str(models_folder)]), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
