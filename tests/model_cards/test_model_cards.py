"""The cards of the paper's models: fresh, allowed by the Hub, with the paper's numbers and true figures."""

import argparse
import json
import re
from pathlib import Path

import pytest
import timm
import torch
import yaml

import seqpe_zoo  # noqa: F401 (registers the models)
from model_cards.maintain import PAPER_MODELS, paper_results, render_collection
from seqpe_zoo.convert.commands import add_subcommands
from seqpe_zoo.hub.card import render_card
from seqpe_zoo.hub.card_facts import load_facts, load_results
from seqpe_zoo.hub.card_rules import card_problems, split_card
from seqpe_zoo.hub.check import check_static
from seqpe_zoo.hub.scan import scan
from seqpe_zoo.hub.stage import stage
from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "model_cards"
FOLDERS = sorted(path.parent for path in CARDS.glob("*/facts.yaml"))


def test_the_papers_models_have_cards() -> None:
    assert set(PAPER_MODELS) <= {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_card_is_fresh_and_passes_the_rules(folder: Path) -> None:
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card == render_card(folder), "stale: run `seqpe-zoo card` on it"
    assert card_problems(card) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_folder_may_be_published(folder: Path, tmp_path: Path) -> None:
    """Nothing in the zoo is taken for a secret, a path or a script; weights that others have are left out."""
    assert scan("README.md", render_card(folder)) == []
    if any(folder.glob("*.safetensors")):
        staged = stage(folder, tmp_path / "staged", card_folder=folder, fingerprint=False)
        assert {"README.md", "config.json", "model.safetensors", "MANIFEST.json"} <= set(staged.files)
        check_static(tmp_path / "staged")


def test_collection_is_fresh_and_has_every_model() -> None:
    page = (CARDS / "COLLECTION.md").read_text(encoding="utf-8")
    assert page == render_collection(CARDS), "stale: run `python model_cards/maintain.py pages`"
    for folder in FOLDERS:
        assert f"({folder.name}/README.md)" in page


@pytest.mark.parametrize("model", PAPER_MODELS)
def test_numbers_are_those_of_the_papers_tables(model: str) -> None:
    stored = json.loads((CARDS / model / "results.json").read_text(encoding="utf-8"))
    assert stored == paper_results(model), "stale: run `python model_cards/maintain.py pages`"
    assert all(result.value is not None for result in load_results(CARDS / model / "results.json"))


@pytest.mark.parametrize("model", PAPER_MODELS)
def test_every_number_of_a_card_is_marked_as_the_papers(model: str) -> None:
    card = (CARDS / model / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+\| (?:length|resolution) \d+ \|.*$", card, re.MULTILINE)
    assert len(rows) == len(paper_results(model)["results"])
    assert all("reported in the paper, Table" in row for row in rows)
    entries = split_card(card)[0]["model-index"][0]["results"]
    assert len(entries) == len(rows)
    assert all(entry["source"]["url"].startswith("https://arxiv.org/") for entry in entries)


def test_parameters_of_the_image_model_are_counted_right() -> None:
    facts = load_facts(CARDS / "vit_small_patch16_seqpe_224.mul_in1k" / "facts.yaml")
    with torch.device("meta"):
        model = timm.create_model("vit_small_patch16_seqpe_224")
    assert sum(p.numel() for p in model.parameters()) == facts.figures["parameters"]
    assert model.position_encoding.integration == facts.position_encoding["integration"]
    assert model.position_encoding.options.projection == facts.position_encoding["projection"]


@pytest.mark.parametrize("name", ["gpt2-seqpe-bias-wikitext103", "gpt2-seqpe-bias-squad-qa"])
def test_parameters_of_the_language_models_are_counted_right(name: str) -> None:
    facts = load_facts(CARDS / name / "facts.yaml")
    with torch.device("meta"):
        model = SeqPEGPT2LMHeadModel(SeqPEGPT2Config.paper())
    model.tie_weights()
    assert sum(p.numel() for p in model.parameters()) == facts.figures["parameters"]
    assert model.transformer.position_encoding.integration == facts.position_encoding["integration"]
    assert model.transformer.position_encoding.options.projection == facts.position_encoding["projection"]


@pytest.mark.parametrize("model", PAPER_MODELS)
def test_recipes_and_converters_that_cards_name_exist(model: str) -> None:
    facts = yaml.safe_load((CARDS / model / "facts.yaml").read_text(encoding="utf-8"))
    recipe = facts["training"]["recipe"].split(",")[0]
    assert (ROOT / recipe).is_file()
    parser = argparse.ArgumentParser()
    add_subcommands(parser.add_subparsers())
    words = facts["provenance"]["converter"].split()
    assert words[0] == "seqpe-zoo"
    assert parser.parse_args(words[1:]).subfolder in facts["provenance"]["source"]
