import re
import subprocess
import sys

import pytest
import timm

from seqpe_zoo import zoo_path
from seqpe_zoo.cli import build_parser, main
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.image_sources import LOADERS
from seqpe_zoo.data.names import ENCODINGS, IMAGES, parse_model_name, timm_names
from seqpe_zoo.hub.card_facts import zoo_entries
from seqpe_zoo.portable.encodings import POSITION_ENCODINGS


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    commands = (
        "list info recipes demo train evaluate compare diagnose plot convert graft stage check plan push"
    )
    commands += " verify sync-code bench app"
    for command in commands.split():
        assert re.search(rf"^    {command}\b", text, re.MULTILINE), command


def test_list_shows_encodings_and_models(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert "rope2d_mixed" in text
    assert "vit_small_patch16_seqpe_224" in text


def test_info_shows_options_and_defaults(capsys):
    assert main(["info", "seqpe"]) == 0
    assert "distance_weight = 0.1" in capsys.readouterr().out


def test_info_of_an_unknown_encoding_lists_the_known_ones(capsys):
    assert main(["info", "rape"]) == 2
    assert "no position encoding or model 'rape'" in (said := capsys.readouterr().err)
    assert "did you mean rope?" in said


def test_info_knows_every_model_of_the_list(capsys):
    names = [*timm.list_models(["vit_*_seqpe_*", "vit_*_pe_*"]), *(entry.name for entry in zoo_entries())]
    for name in names:
        assert main(["info", name]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: ")


def test_models_of_the_package_are_known_by_name():
    assert parse_model_name("tiny-vit-seqpe-fashion") == ("folder", str(zoo_path("tiny-vit-seqpe-fashion")))
    with pytest.raises(DataError, match="did you mean tiny-vit-seqpe-fashion"):
        parse_model_name("tiny-vit-seqpe-fashon")


def test_names_that_need_no_torch_are_those_of_the_registries():
    assert tuple(POSITION_ENCODINGS) == ENCODINGS
    assert tuple(LOADERS) == IMAGES
    assert set(timm.list_models()) <= timm_names()


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "vit_bass_patch16_224"],
        ["evaluate", "absent/folder/model"],
        ["evaluate", "MODEL", "--data", "absent.txt"],
        ["evaluate", "MODEL", "--data", "stdlb"],
        ["diagnose", "absent.safetensors"],
        ["plot", "absent.json"],
        ["graft", "vit_bass_patch16_224", "out"],
        ["convert", "nowhere/at/all", "out"],
        ["app", "--models", "absent"],
        ["info", "seqp"],
        ["train", "finetune_vti"],
        ["train", "finetune_vit", "model.checkpoint=MODEL", "data.source=absent"],
        ["train", "finetune_gpt2", "model.checkpoint=tiny-gpt2-seqpe-austin", "data.source=stdlib"],
        ["train", "mini_lm"],
        ["compare", "rope", "--recipe", "mini_lmm"],
    ],
)
def test_wrong_names_are_found_before_torch_is_imported(words, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    program = (
        "import sys; from seqpe_zoo.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'timm', 'transformers'} & set(sys.modules); sys.exit(f'imported {heavy}' if "
        "heavy else code)"
    )
    words = [word.replace("MODEL", str(model)) for word in words]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evalute", "x"], "there is no command 'evalute'; did you mean evaluate?"),
        (["evaluate", "x", "--lenghts", "3"], "there is no option --lenghts; did you mean --lengths"),
    ],
)
def test_mistyped_words_are_answered_with_a_suggestion(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "evaluate a b --lengths 16 32 --no-plot",
        "evaluate --lengths 16 32 a --no-plot b",
        "evaluate a --lengths 16 32 b --no-plot",
        "--no-plot evaluate a b --lengths 16 32",
        "evaluate --no-plot --lengths 16 32 -- a b",
        "evaluate a --no-plot --lengths 16 32 -- b",
    ],
)
def test_options_may_stand_anywhere(words):
    options = build_parser().parse_args(words.split())
    assert (options.models, options.lengths, options.no_plot) == (["a", "b"], [16, 32], True)


def test_bench_measures_in_a_clone(capfd):
    assert main(["bench", "--only", "nothing"]) == 2
    assert "invalid choice: 'nothing'" in capfd.readouterr().err


def test_bench_outside_of_a_clone_says_where_it_is(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("seqpe_zoo.cli.__file__", str(tmp_path / "seqpe_zoo" / "cli.py"))
    assert main(["bench"]) == 2
    assert "clone it and run `make bench`" in capsys.readouterr().err


def test_list_shows_trained_models_of_a_clone_with_what_was_measured(capsys):
    assert main(["list"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "tiny-gpt2-seqpe-austen" in text
    assert "perplexity at 32:" in text
