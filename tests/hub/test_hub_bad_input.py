"""Damaged, deep, huge and recursive files and impossible arguments end with a sentence, not with a trace."""

import json
from contextlib import suppress

import pytest
import yaml
from safetensors.numpy import load_file

from seqpe_zoo.hub.card_facts import load_facts, load_results
from seqpe_zoo.hub.card_rules import card_problems
from seqpe_zoo.hub.check import check_static
from seqpe_zoo.hub.commands import main
from seqpe_zoo.hub.contents import find_problems
from seqpe_zoo.hub.errors import CheckFailed, HubError, UsageError
from seqpe_zoo.hub.files import parse_json, parse_yaml, read_safetensors_header
from seqpe_zoo.hub.manifest import read_manifest
from seqpe_zoo.hub.stage import stage
from tests.hub.helpers import FACTS, safetensors_bytes, write_card_folder
from tests.mutants import mutants

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", [DEEP, '{"a": ' * 50_000, "{", "[]", "1" * 10_000, b"\xff\xfe", "", "null"])
def test_json_that_is_no_object_is_refused_in_words(text):
    with pytest.raises(UsageError, match=r"x\.json (is not JSON|must be a JSON object)"):
        parse_json(text, "x.json")


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "a: &a [*a]",  # recursive
        "a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]",  # a few more lines make billions
        "a: [",
        "a: !!python/object/apply:os.system [x]",
        "a: !!int ''",
        "a: !!timestamp x",
        "a: 2026-99-99",
        "? [a]\n: b",
        "- a",
        "",
        "\x00",
        "a: 1\n" * 100_000,
    ],
)
def test_yaml_that_is_no_plain_mapping_is_refused_in_words(text):
    with pytest.raises(UsageError, match=r"x\.yaml (is|has|must)"):
        parse_yaml(text, "x.yaml")


def header_only(header):
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        header_only(DEEP.encode()),
        header_only(b'{"a": ' * 50_000),
        header_only(b"[]"),
        header_only(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'),  # no data
        header_only(b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}'),
        header_only(b'{"a": 1}'),
        (2**62).to_bytes(8, "little") + b"{}",
        b"\1\0",
        safetensors_bytes() + b"more",
    ],
)
def test_safetensors_files_that_are_none_are_refused_in_words(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        read_safetensors_header(folder / "model.safetensors")
    assert [problem for problem in find_problems(folder) if "model.safetensors" in problem]


@pytest.mark.parametrize(
    "config",
    [
        {"auto_map": ["a"]},
        {"model_type": "seqpe_gpt2", "architectures": 3},
        {"architecture": "x", "pretrained_cfg": [1]},
        {"model_type": "gpt2", "position_encoding_args": "a"},
        {"architecture": "x", "model_args": "a"},
        {"model_type": ["seqpe_gpt2"]},
    ],
)
def test_config_with_entries_of_another_type_is_refused_in_words(folder, tmp_path, config):
    (folder / "config.json").write_text(json.dumps(config))
    assert [problem for problem in find_problems(folder) if problem.startswith("config.json: ")]
    with pytest.raises(CheckFailed, match=r"config\.json: "):
        stage(folder, tmp_path / "out", card_folder=write_card_folder(tmp_path / "card"), fingerprint=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("title", 5),
        ("libraries", "timm"),
        ("position_encoding", ["name"]),
        ("tokenizer", "no"),
        ("tag", "a..b"),
        ("repo_id", "../evil"),
        ("limits", {"a": 1}),
        ("summary", None),
    ],
)
def test_facts_of_another_type_are_refused_in_words(tmp_path, key, value):
    card = write_card_folder(tmp_path, yaml.safe_dump(yaml.safe_load(FACTS) | {key: value}))
    with pytest.raises(UsageError, match=r"facts\.yaml: "):
        load_facts(card / "facts.yaml")


def test_a_result_that_is_no_number_is_refused(tmp_path):
    result = {"task": "t", "dataset": {"name": "d", "id": "i"}, "metric": "m", "value": float("nan")}
    card = write_card_folder(tmp_path, results={"results": [result | {"origin": "paper", "where": "1"}]})
    with pytest.raises(UsageError, match="value is nan"):
        load_results(card / "results.json")


@pytest.mark.parametrize("content", [{"results": 3}, {"results": [3]}, {"results": [{"task": []}]}])
def test_results_of_another_type_are_refused_in_words(tmp_path, content):
    card = write_card_folder(tmp_path, results=content)
    with pytest.raises(UsageError, match=r"results\.json"):
        load_results(card / "results.json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "FOLDER", "--repo", "../evil"], "'../evil' cannot be a repository"),
        (["plan", "FOLDER", "--repo", "zoo/ä"], "cannot be a repository"),
        (["verify", "../evil"], "'../evil' cannot be a repository"),
        (["sync-code", "../evil"], "'../evil' cannot be a repository"),
        (["plan", "FOLDER", "--tag", "a..b"], "'a..b' cannot be the name of a tag"),
        (["push", "FOLDER", "--tag", "v 1", "--yes"], "'v 1' cannot be the name of a tag"),
        (["push", "FOLDER", "--revision", "a.lock", "--yes"], "cannot be the name of a branch"),
        (["plan", "FOLDER", "--deadline", "nan"], "a deadline of nan seconds"),
        (["plan", "FOLDER", "--deadline", "-1"], "a deadline of -1.0 seconds"),
        (["verify", "a/b", "--deadline", "inf"], "a deadline of inf seconds"),
        (["stage", "FOLDER", "OUT", "--card", "FOLDER", "--source", "{"], "--source is not JSON"),
        (["stage", "FOLDER", "OUT", "--card", "FOLDER", "--source", "[]"], "--source must be a JSON object"),
    ],
)
def test_impossible_arguments_end_with_a_sentence(folder, tmp_path, capsys, words, said):
    places = {"FOLDER": str(folder), "OUT": str(tmp_path / "out")}
    assert main([places.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_tag_that_git_refuses_stops_before_anything_is_sent(hub, folder):
    ran = hub.push(folder, "--tag", "a..b")
    assert (ran.code, hub.steps(), hub.exists()) == (2, [], False)


@pytest.mark.parametrize("token", ["hf_ä" + "a1B2" * 9, "hf_ " + "a1B2" * 9])
def test_a_token_with_odd_characters_is_refused_in_words(hub, folder, token):
    ran = hub.push(folder, token=token)
    assert ran.code == 10, ran.text
    assert "the token has a character that no token has" in ran.err
    assert (hub.steps(), hub.exists()) == ([], False)


def test_deep_files_in_a_staged_folder_end_with_a_sentence(folder):
    for name in ("config.json", "MANIFEST.json", "tokenizer.json"):
        before = (folder / name).read_bytes() if (folder / name).is_file() else b"{}"
        (folder / name).write_text('{"a": ' + DEEP + "}")
        with pytest.raises(CheckFailed, match=f"{name} is not JSON: nested too deeply"):
            check_static(folder)
        (folder / name).write_bytes(before)


# Mutants: a right result or our error --------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_mutants_of_a_staged_file_are_refused_in_words(folder, name):
    path = folder / name
    original = path.read_bytes()
    for mutant in mutants(original, 120):
        if mutant != original:  # every byte counts: its hash stands in the manifest
            path.write_bytes(mutant)
            with pytest.raises(CheckFailed, match=name):
                check_static(folder)


def test_mutants_of_the_manifest_are_read_alike_or_refused_in_words(folder):
    path = folder / "MANIFEST.json"
    original = path.read_bytes()
    hashes = {name: entry["sha256"] for name, entry in json.loads(original)["files"].items()}
    for mutant in mutants(original, 120):
        path.write_bytes(mutant)
        with suppress(HubError):
            check_static(folder)
            files = read_manifest(folder)["files"]
            assert {name: entry["sha256"] for name, entry in files.items()} == hashes


def test_mutants_of_weights_are_read_alike_or_refused_in_words(tmp_path):
    path = tmp_path / "model.safetensors"
    for mutant in mutants(safetensors_bytes(bytes(range(64))), 300):
        path.write_bytes(mutant)
        try:
            header, _ = read_safetensors_header(path)
        except UsageError:
            continue
        assert set(load_file(path)) == set(header) - {"__metadata__"}


def test_mutants_of_a_card_folder_are_read_or_refused_in_words(tmp_path):
    result = {
        "task": "t",
        "dataset": {"name": "d", "id": "i"},
        "metric": "m",
        "value": 1.5,
        "origin": "paper",
    }
    card = write_card_folder(tmp_path, results={"results": [result | {"where": "Table 1"}]})
    for name, read in (("facts.yaml", load_facts), ("results.json", load_results)):
        path = card / name
        for mutant in mutants(path.read_bytes(), 150):
            path.write_bytes(mutant)
            try:
                assert read(path)
            except UsageError as error:
                assert name in str(error)  # noqa: PT017


def test_mutants_of_card_metadata_are_judged_in_words(folder):
    for mutant in mutants((folder / "README.md").read_bytes()[:600], 150):
        problems = card_problems(mutant.decode("utf-8", "replace"))
        assert all(problem.startswith("README.md: ") for problem in problems)
