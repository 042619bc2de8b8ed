import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from seqpe_zoo.evaluation.commands import add_subcommands, split_label


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_subcommands(parser.add_subparsers())
    arguments = parser.parse_args(list(words))
    return arguments.handler(arguments)


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


def test_definitions_import_nothing_heavy() -> None:
    program = (
        "import sys, types, argparse, pathlib\n"
        "package = types.ModuleType('seqpe_zoo'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['seqpe_zoo'] = package\n"
        "from seqpe_zoo.evaluation.commands import add_subcommands\n"
        "add_subcommands(argparse.ArgumentParser().add_subparsers())\n"
        "assert not {'torch', 'timm', 'transformers', 'rich', 'yaml'} & set(sys.modules)\n"
    )
    package = Path(__file__).parents[2] / "seqpe_zoo"
    assert subprocess.run([sys.executable, "-c", program, str(package)], check=False).returncode == 0
