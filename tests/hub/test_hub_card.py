"""Cards are rendered from facts and results; the Hub's rules are checked offline."""

import copy
import subprocess
import sys

import pytest
import yaml

from model_cards.maintain import main as maintain
from seqpe_zoo.hub.card import render, render_card
from seqpe_zoo.hub.card_facts import load_facts, load_results, zoo_entries
from seqpe_zoo.hub.card_rules import LICENSES, card_problems, split_card
from seqpe_zoo.hub.check import python_blocks
from seqpe_zoo.hub.errors import UsageError
from tests.hub.helpers import FACTS, LIGHT, safetensors_bytes, write_card_folder

RESULTS = {
    "results": [
        {
            "task": "text-generation",
            "dataset": {"name": "WikiText-103", "id": "Salesforce/wikitext", "split": "test"},
            "metric": "perplexity",
            "value": 19.62,
            "origin": "paper",
            "where": "Table 1",
            "setting": {"length": 4096},
        },
        {
            "task": "text-generation",
            "dataset": {"name": "WikiText-103", "id": "Salesforce/wikitext", "split": "test"},
            "metric": "perplexity",
            "value": 21.5,
            "origin": "measured",
            "command": "seqpe-zoo evaluate zoo/tiny-gpt2 --lengths 8192",
            "setting": {"length": 8192},
            "git_sha": "0123456789abcdef",
            "seed": 0,
        },
        {
            "task": "text-generation",
            "dataset": {"name": "WikiText-103", "id": "Salesforce/wikitext", "split": "test"},
            "metric": "perplexity",
            "value": None,
            "origin": "measured",
            "setting": {"length": 16384},
        },
    ]
}


@pytest.fixture
def card(tmp_path):
    return render_card(write_card_folder(tmp_path / "card", FACTS, RESULTS))


def test_what_a_run_recorded_is_in_its_card(tmp_path):
    record = {"versions": {"seqpe-zoo": "0.2.0"}, "git_sha": "0123abc", "sample": "Where is this word? Here."}
    prompt = FACTS.replace("tokenizer: false", "prompt: Where?")
    card = render_card(write_card_folder(tmp_path / "card", prompt, {**RESULTS, **record}))
    assert "It prints:\n\n```\nWhere is this word? Here.\n```" in card
    assert 'tokenizer("Where?", return_tensors="pt")' in card
    assert "print(tokenizer.decode(tokens[0]))" in card
    assert "- package version: 0.2.0\n- git sha: 0123abc" in card
    write_card_folder(tmp_path / "wrong", FACTS, {**RESULTS, "sample": 7})
    with pytest.raises(UsageError, match="sample must be"):
        render_card(tmp_path / "wrong")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("text-classification", "AutoModelForSequenceClassification"),
        ("fill-mask", "AutoModelForMaskedLM"),
        ("feature-extraction", "import AutoModel\n"),
    ],
)
def test_snippets_load_the_class_of_the_task(tmp_path, task, words):
    facts = FACTS.replace("text-generation", task)
    assert words in render_card(write_card_folder(tmp_path / "card", facts, RESULTS))


def test_rendered_card_passes_the_rules(card):
    assert card_problems(card) == []


def test_every_number_says_where_it_is_from(card):
    assert "| length 4096 | perplexity | 19.62 | reported in the paper, Table 1 |" in card
    assert (
        "| length 8192 | perplexity | 21.5 | measured here, command 1, commit 0123456789ab, seed 0 |" in card
    )
    assert "seqpe-zoo evaluate zoo/tiny-gpt2 --lengths 8192" in card
    assert "| length 16384 | perplexity | not measured | not measured |" in card


def test_model_index_has_one_structured_entry_a_number(card):
    index = split_card(card)[0]["model-index"]
    results = index[0]["results"]
    assert [entry["metrics"][0]["value"] for entry in results] == [19.62, 21.5]
    assert [entry["dataset"]["args"] for entry in results] == [{"length": 4096}, {"length": 8192}]
    assert results[0]["source"]["url"].endswith("2506.13277")


def test_model_index_is_read_by_huggingface_hub(card):
    from huggingface_hub import ModelCard

    results = ModelCard(card).data.eval_results
    assert [result.metric_value for result in results] == [19.62, 21.5]
    assert results[0].dataset_args == {"length": 4096}


def test_card_without_results_says_not_measured(tmp_path):
    card = render_card(write_card_folder(tmp_path / "card"))
    assert "Results: not measured." in card
    assert "model-index" not in card
    assert card_problems(card) == []


def test_capacity_is_computed(tmp_path):
    facts = FACTS.replace("{name: ape_learn}", "{name: seqpe, base: 10, num_digits: 5}")
    assert "positions 0 to 99999" in render_card(write_card_folder(tmp_path / "card", facts))


def test_rendering_twice_gives_the_same_bytes(tmp_path, card):
    assert render_card(write_card_folder(tmp_path / "again", FACTS, RESULTS)) == card


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "red"}, "unknown key"),
        ({"libraries": ["keras"]}, "must be among timm and transformers"),
        ({"libraries": []}, "must be among timm and transformers"),
        ({"position_encoding": {}}, "needs a name"),
        ({"title": ...}, "title"),
    ],
)
def test_wrong_facts_are_refused(tmp_path, change, words):
    values = yaml.safe_load(FACTS) | change
    values = {key: value for key, value in values.items() if value is not ...}
    folder = write_card_folder(tmp_path / "card", yaml.safe_dump(values))
    with pytest.raises(UsageError, match=words):
        load_facts(folder / "facts.yaml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"origin": "hearsay"}, "origin"),
        ({"origin": "measured", "where": None}, "has no command"),
        ({"where": None}, "needs 'where'"),
        ({"dataset": {"name": "x"}}, "name and id"),
        ({"velocity": 1}, "unknown key"),
    ],
)
def test_numbers_without_an_origin_are_refused(tmp_path, change, words):
    results = copy.deepcopy(RESULTS)
    results["results"] = [results["results"][0] | change]
    folder = write_card_folder(tmp_path / "card", FACTS, results)
    with pytest.raises(UsageError, match=words):
        load_results(folder / "results.json")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("license: mit", "license: MIT", "not on the Hub's list"),
        ("license: mit", "license: gpl-2.0-or-later", "not on the Hub's list"),
        ("license: mit", "license: other", "license 'other' needs license_name"),
        ("license: mit\n", "", "license is missing"),
        ("library_name: transformers", "library_name: keras", "none of timm, transformers"),
        ("pipeline_tag: text-generation", "pipeline_tag: dreaming", "unknown"),
        ("tags:\n- transformers", "datasets: null\ntags:\n- transformers", "datasets must be a list"),
        ("tags:\n- transformers", "base_model: a b c\ntags:\n- transformers", "not a Hub id"),
        ("value: 19.62", "value: good", "no number"),
        ("## Limits", "## Something", "section 'Limits' is missing"),
        ("---\nlicense", "license", "does not begin with a metadata block"),
        ("license: mit", "license: [mit", "not YAML"),
        ("Results", "[More Information Needed]\n\n## Results", "unfilled placeholder"),
    ],
)
def test_defects_of_a_card_are_named(card, old, new, words):
    assert old in card
    problems = card_problems(card.replace(old, new, 1))
    assert any(words in problem for problem in problems), problems


def test_the_licence_list_has_the_common_ones():
    assert {"apache-2.0", "mit", "cc-by-nc-4.0", "other"} <= LICENSES
    assert all(name == name.lower() for name in LICENSES)


@pytest.mark.parametrize("libraries", [["transformers"], ["timm"], ["timm", "transformers"]])
@pytest.mark.parametrize("task", ["text-generation", "image-classification"])
@pytest.mark.parametrize("tokenizer", [True, False])
def test_snippets_are_valid_python(tmp_path, libraries, task, tokenizer):
    values = yaml.safe_load(FACTS) | {"libraries": libraries, "pipeline_tag": task, "tokenizer": tokenizer}
    card = render(load_facts(write_card_folder(tmp_path / "c", yaml.safe_dump(values)) / "facts.yaml"), [])
    blocks = python_blocks(card)
    assert len(blocks) == 2 + len(libraries)
    for _, code in blocks:
        compile(code, "snippet", "exec")


def test_snippets_marked_as_not_run_are_left_out():
    card = "```python\na\n```\n\n<!-- not run: needs a GPU -->\n```python\nb\n```\n\n```python\nc\n```\n"
    assert [number for number, _ in python_blocks(card)] == [1, 3]


def test_card_command_writes_and_notices_stale_cards(tmp_path):
    folder = write_card_folder(tmp_path / "card", FACTS, RESULTS)

    def run(*options):
        return subprocess.run(
            [sys.executable, LIGHT, "card", folder, *options], capture_output=True, text=True
        )

    assert run("--fresh").returncode == 1
    assert run().returncode == 0
    assert run("--fresh").returncode == 0
    (folder / "README.md").write_text("typed by hand")
    stale = run("--fresh")
    assert stale.returncode == 1
    assert "seqpe-zoo card" in stale.stderr


# Models trained here, several times ---------------------------------------------------------------


def write_run(folder, seed, perplexities):
    """Write `results.json` as an evaluation writes it."""
    from seqpe_zoo.evaluation.report import Measurement, Report

    data = {"name": "Six novels", "id": "austen", "split": "test"}
    measurements = [
        Measurement("seqpe", "text-generation", data, "perplexity", {"length": length}, value)
        for length, value in perplexities.items()
    ]
    return Report("seqpe-zoo compare --recipe mini_lm", seed, measurements).write(folder)


@pytest.fixture
def repeated(tmp_path):
    """A card folder of a model that was trained with three seeds, weights beside it."""
    folder = write_card_folder(tmp_path / "model_cards" / "tiny", FACTS)
    (folder / "model.safetensors").write_bytes(safetensors_bytes())
    runs = [write_run(tmp_path / str(s), s, {512: 20.0 + s, 32: 10.0 + 2 * s}) for s in range(3)]
    assert maintain(["seeds", str(folder / "results.json"), *map(str, runs)]) == 0
    return folder


def test_card_shows_the_published_run_and_the_mean_over_seeds(repeated):
    card = render_card(repeated)
    assert card_problems(card) == []
    assert "| length 32 | perplexity | 10; 12 ± 2 over 3 seeds | measured here, command 1" in card
    assert "over seeds 0, 1, 2." in card
    entries = split_card(card)[0]["model-index"][0]["results"]
    assert [entry["metrics"][0]["value"] for entry in entries] == [20.0, 10.0]


def test_zoo_entries_are_the_cards_with_weights(repeated):
    write_card_folder(repeated.parent / "paper", FACTS, RESULTS)  # no weights
    (entry,) = zoo_entries(repeated.parent)
    assert (entry.name, entry.encoding, entry.metric) == ("tiny", "ape_learn", "perplexity")
    assert list(entry.measured.items()) == [("length 32", 12.0), ("length 512", 21.0)]
    assert zoo_entries(repeated.parent / "nothing") == []


def test_runs_that_cannot_be_averaged_are_refused(tmp_path, capsys):
    first, second = write_run(tmp_path / "0", 0, {32: 1.0}), write_run(tmp_path / "1", 1, {64: 1.0})
    target = tmp_path / "results.json"
    assert maintain(["seeds", str(target), str(first), str(second)]) == 2
    assert "not every run has a number for perplexity" in capsys.readouterr().err
    assert maintain(["seeds", str(target), str(first), str(first)]) == 2
    assert "different seeds" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize("change", [{"mean": 1.0}, {"mean": 1.0, "spread": 0.1, "seeds": [0]}])
def test_a_mean_needs_its_spread_and_seeds(tmp_path, change):
    results = copy.deepcopy(RESULTS)
    results["results"][1] |= change
    folder = write_card_folder(tmp_path / "card", FACTS, results)
    with pytest.raises(UsageError, match="mean and spread go together"):
        load_results(folder / "results.json")
