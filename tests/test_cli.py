import re

import pytest

from seqpe_zoo.cli import main


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    commands = "list info demo train evaluate compare diagnose plot convert graft stage check plan push"
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
    assert (
        "unknown position encoding 'rape' (did you mean rope?); the known ones are: nope"
        in capsys.readouterr().err
    )


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
