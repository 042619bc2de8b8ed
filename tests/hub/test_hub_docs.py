"""What the pages on publishing say is true: their commands parse, their examples render."""

import re
import shlex
from pathlib import Path

import pytest

from seqpe_zoo.cli import build_parser
from seqpe_zoo.hub.card import render_card
from seqpe_zoo.hub.card_rules import card_problems
from tests.hub.helpers import write_card_folder

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "publishing.md", ROOT / "model_cards" / "README.md"]


COMMANDS = [line for page in PAGES for line in re.findall(r"^seqpe-zoo .+$", page.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_pages_parse(line):
    options = build_parser().parse_args(shlex.split(line)[1:])
    assert callable(options.handler)


def test_the_example_card_renders_and_passes_the_rules(tmp_path):
    text = PAGES[1].read_text()
    facts, shortest = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert card_problems(render_card(write_card_folder(tmp_path / "shortest", shortest))) == []
    folder = write_card_folder(tmp_path / "card", facts)
    (folder / "results.json").write_text(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])
    card = render_card(folder)
    assert card_problems(card) == []
    assert "positions 0 to 99999" in card


@pytest.mark.parametrize("folder", sorted(path.parent for path in ROOT.glob("model_cards/*/facts.yaml")))
def test_cards_are_fresh_and_pass_the_rules(folder):
    card = (folder / "README.md").read_text()
    assert card == render_card(folder), "stale: run `seqpe-zoo card` on it"
    assert card_problems(card) == []
