import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from seqpe_zoo.training.commands import add_subcommands
from seqpe_zoo.training.comparison import Entry, read_entry
from seqpe_zoo.training.strict_config import ConfigError

from .helpers import REPOSITORY, image_recipe, text_recipe


def run(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_subcommands(parser.add_subparsers())
    options = parser.parse_args([str(word) for word in words])
    return options.handler(options)


def test_encodings_are_compared_under_one_recipe(tmp_path: Path) -> None:
    recipe = text_recipe(tmp_path, training__evaluate_every=0, training__steps=2)
    folder = tmp_path / "comparison"
    assert run("compare", "alibi", "rope6=rope:base=1e6", "--recipe", recipe, "--output", folder) == 0
    content = json.loads((folder / "results.json").read_text())
    assert set(content["by_model"]) == {"alibi", "rope6"}
    assert (folder / "perplexity.png").is_file()
    saved = json.loads((folder / "rope6" / "config.json").read_text())
    assert saved["position_encoding_args"] == {"base": 1e6}
    again = tmp_path / "again"
    assert run("compare", f"old={folder / 'alibi'}", "nope", "--recipe", recipe, "--output", again) == 0
    table = json.loads((again / "results.json").read_text())["by_model"]
    assert table["old"] == content["by_model"]["alibi"]


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    recipe = text_recipe(tmp_path, training__evaluate_every=0, training__steps=1)
    assert run("train", recipe) == 0
    odd = (tmp_path / "run").rename(tmp_path / r"a$\frac$ | <b> *x*")
    folder = tmp_path / "comparison"
    words = [f"{odd.name}={odd}", f"50$={odd}", "--recipe", recipe, "--output", folder]
    assert run("compare", *words) == 0
    assert (folder / "perplexity.png").stat().st_size > 5000
    row = (folder / "table.md").read_text().splitlines()[8]
    assert row.startswith(r"| a$\\frac$ \| \<b> \*x\* | ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["alibi", "rope2d_axial"], "not 1-dimensional data such as text"),
        (["alibi", "rope:bas=3"], "no option bas"),
        (["alibi:scaled"], "name=value"),
    ],
)
def test_wrong_run_is_refused_before_any_training(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compare", *words, "--recipe", text_recipe(tmp_path), "--output", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "alibi").exists()


def test_train_runs_any_recipe(tmp_path: Path) -> None:
    recipe = image_recipe(tmp_path, training__steps=2, training__evaluate_every=0)
    assert run("train", recipe, "evaluation.resolutions=[16]") == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_dry_run_says_the_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", text_recipe(tmp_path), "--dry-run") == 0
    assert "MiB a checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--push-to-hub", "name-without-owner"], "must be OWNER/NAME"),
        (["--push-to-hub", "me/model", "--license", "mine"], "not a licence"),
        (["training.batch_size=zero"], "a whole number"),
    ],
)
def test_wrong_words_are_refused(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", text_recipe(tmp_path), *words) == 2
    assert message in capsys.readouterr().err


def test_runs_are_read(tmp_path: Path) -> None:
    assert read_entry("rope") == ("rope", Entry("rope"))
    assert read_entry("a=rope:base=1e6") == ("a", Entry("rope", {"base": 1e6}))
    word = "seqpe:integration=mul,ood_weight=0.0"
    options = {"integration": "mul", "ood_weight": 0.0}
    assert read_entry(word) == (word, Entry("seqpe", options))
    assert read_entry(f"x={tmp_path}") == ("x", Entry(checkpoint=str(tmp_path)))
    assert read_entry("org/name") == ("org/name", Entry(checkpoint="org/name"))
    with pytest.raises(ConfigError):
        read_entry("rope:base")


def test_definitions_import_nothing_heavy() -> None:
    program = (
        "import sys, types, argparse\n"
        "package = types.ModuleType('seqpe_zoo'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['seqpe_zoo'] = package\n"
        "from seqpe_zoo.training.commands import add_subcommands\n"
        "add_subcommands(argparse.ArgumentParser().add_subparsers())\n"
        "assert not {'torch', 'timm', 'transformers', 'rich', 'yaml'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(REPOSITORY / "seqpe_zoo")], check=False)
    assert done.returncode == 0
