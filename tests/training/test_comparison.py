import json
from pathlib import Path

import pytest

from seqpe_zoo.cli import main
from seqpe_zoo.data.recipes import COMPARISONS
from seqpe_zoo.training.comparison import (
    load_comparison,
    plan_runs,
    prepare_places,
)
from seqpe_zoo.training.run_config import build_run
from seqpe_zoo.training.strict_config import ConfigError

SMALL = """
title: A small comparison
data: texts
seeds: [0, 1]
vocabulary: 300
paper_table: language_modelling
recipe:
  task: train_gpt2
  model: {tokenizer: "{tokenizer}", architecture: {n_embd: 16, n_layer: 1, n_head: 2}}
  data: {source: "{data}", length: 16, max_validation_tokens: 64}
  training: {steps: 3, batch_size: 2, learning_rate: 0.001, threads: 1}
  evaluation: {lengths: [16, 32], max_tokens: 128}
runs:
  ALiBi: {encoding: alibi, paper: alibi}
  No encoding: {encoding: nope, paper: nope}
"""


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "books"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text("It is a truth universally acknowledged. " * (20 + number))
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def compare(recipe: Path, books: Path, output: Path, *words: str) -> int:
    return main(
        ["compare", *words, "--recipe", str(recipe), "--data-dir", str(books), "--output", str(output)]
    )


def test_all_seeds_are_trained_and_joined(recipe: Path, books: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert compare(recipe, books, output) == 0
    results = json.loads((output / "results.json").read_text())
    runs = results["details"]["runs"]
    assert {label: [run["seed"] for run in own] for label, own in runs.items()} == {
        "ALiBi": [0, 1],
        "No encoding": [0, 1],
    }
    values = [run["values"]["perplexity 32"] for run in runs["ALiBi"]]
    assert values[0] != values[1]
    mean = next(
        entry
        for entry in results["results"]
        if entry["setting"] == {"length": 32} and entry["note"].startswith("ALiBi")
    )
    assert mean["value"] == pytest.approx(sum(values) / 2)
    assert "mean of 2 seeds" in mean["note"]
    table = (output / "table.md").read_text()
    assert "reported in the paper" in table
    assert "21.39" in table
    assert (output / "perplexity.png").stat().st_size > 5000
    # A second call keeps what is finished: a weight that was changed since is not trained away.
    marker = output / "ALiBi-seed0" / "model.safetensors"
    marker.write_bytes(b"kept")
    assert compare(recipe, books, output, "ALiBi", "--resume") == 0
    assert marker.read_bytes() == b"kept"


def test_used_folder_is_not_overwritten_unasked(
    recipe: Path, books: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "thesis.tex").write_text("important")
    assert compare(recipe, books, output) == 2
    assert "is not empty: continue with --resume" in " ".join(capfd.readouterr().err.split())
    assert [path.name for path in output.iterdir()] == ["thesis.tex"]


def test_unknown_run_is_refused_with_the_known_ones(recipe: Path) -> None:
    with pytest.raises(ConfigError, match="no run 'RoPE'; there are ALiBi, No encoding"):
        load_comparison(recipe, words=["RoPE"])


def test_run_may_train_otherwise(recipe: Path, tmp_path: Path) -> None:
    line = "  Slower: {encoding: ape_learn, training: {position_learning_rate: 0.0001}}\n"
    recipe.write_text(SMALL + line)
    places = {"data": "d", "tokenizer": "t"}
    runs = plan_runs(load_comparison(recipe, words=["ALiBi", "Slower"], seeds=[7]), places, tmp_path)
    assert [run.recipe["training"].get("position_learning_rate") for run in runs] == [None, 0.0001]
    assert [run.recipe["training"]["seed"] for run in runs] == [7, 7]


@pytest.mark.parametrize("name", [path.stem for path in COMPARISONS.glob("*.yaml")])
def test_comparisons_of_the_package_are_valid(name: str, tmp_path: Path) -> None:
    comparison = load_comparison(name)
    assert comparison.title is not None
    places = dict.fromkeys(("data", "tokenizer", "start", "train", "validation", "test"), "place")
    runs = plan_runs(comparison, places, tmp_path)
    trained = [entry for entry in comparison.runs.values() if entry.weights_of is None]
    assert len(runs) == len(trained) * len(comparison.seeds)
    for run in runs:
        build_run(run.recipe)
    budgets = {run.recipe["training"]["steps"] * tokens_a_step(run.recipe) for run in runs}
    assert len(budgets) == 1, "runs have one budget"


def tokens_a_step(recipe: dict) -> int:
    return recipe["training"]["batch_size"] * recipe["data"].get("length", 1)


def test_earlier_comparison_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--start"):
        plan_runs(load_comparison(Path("mini_llama_extended")), {"data": ""}, tmp_path)


def test_missing_data_folder_is_asked_for(recipe: Path, tmp_path: Path) -> None:
    from seqpe_zoo.data.errors import DataError

    with pytest.raises(DataError, match="needs --data-dir"):
        prepare_places(load_comparison(recipe), None, None, tmp_path)


def test_models_are_measured_again_with_scaled_positions(recipe: Path, books: Path, tmp_path: Path) -> None:
    recipe.write_text(SMALL + "  RoPE: {encoding: rope}\n  Scaled: {weights_of: RoPE, scaling: linear}\n")
    output = tmp_path / "out"
    assert compare(recipe, books, output, "RoPE", "Scaled", "--seeds", "0") == 0
    values = {
        (entry["note"].split(",")[0], entry["setting"]["length"]): entry["value"]
        for entry in json.loads((output / "results.json").read_text())["results"]
    }
    assert values["Scaled", 16] == pytest.approx(values["RoPE", 16])
    assert values["Scaled", 32] != values["RoPE", 32]
    with pytest.raises(ConfigError, match="'Scaled' measures the models of 'RoPE'"):
        load_comparison(recipe, words=["Scaled"])
