"""The reference of the command line is made from its parser, and misses nothing."""

import argparse
import importlib.util
from types import ModuleType

import pytest

from seqpe_zoo.cli import build_parser

from .markdown_blocks import DOCS


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    path = DOCS / "hooks" / "command_line_reference.py"
    spec = importlib.util.spec_from_file_location("command_line_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_and_option_is_in_the_reference(hook: ModuleType) -> None:
    page = hook.on_page_markdown((DOCS / "reference" / "command-line.md").read_text())
    sections = {part.split("\n", 1)[0]: part for part in page.split("\n## ")[1:]}
    (subparsers,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert sections.keys() == subparsers.choices.keys()
    for name, parser in subparsers.choices.items():
        for action in parser._actions:
            for option in set(action.option_strings) - {"-h", "--help"}:
                assert f"`{option}" in sections[name] or f", {option}" in sections[name]


def test_other_pages_are_left_alone(hook: ModuleType) -> None:
    assert hook.on_page_markdown("# A page\n") == "# A page\n"


def test_pages_made_from_docstrings_say_so_in_the_repository_only(hook: ModuleType) -> None:
    pages = [page.read_text() for page in DOCS.rglob("*.md")]
    made = [page for page in pages if page.startswith("::: ") or "\n::: " in page]
    assert len(made) >= 4
    assert all(hook.NOTE in page for page in made)
    assert all("`:::`" not in hook.on_page_markdown(page) for page in made)
