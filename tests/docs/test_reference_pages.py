"""The reference pages say what the code says, and miss nothing."""

import argparse
import importlib.util
from types import ModuleType

import pytest

from seqpe_zoo.cli import build_parser

from .markdown_blocks import DOCS


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    path = DOCS / "hooks" / "reference_pages.py"
    spec = importlib.util.spec_from_file_location("reference_pages", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_those_of_the_code(hook: ModuleType) -> None:
    for name, text in hook.generated_parts().items():
        written = (hook.PAGES / name).read_text().partition(hook.MARK)[2].strip()
        assert written == text.strip(), f"{name} is stale: run python docs/hooks/reference_pages.py"


def test_every_command_and_option_is_in_the_reference(hook: ModuleType) -> None:
    sections = {part.split("\n", 1)[0]: part for part in f"\n{hook.command_line()}".split("\n## ")[1:]}
    (subparsers,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert sections.keys() == subparsers.choices.keys()
    for name, parser in subparsers.choices.items():
        for action in parser._actions:
            for option in set(action.option_strings) - {"-h", "--help"}:
                assert f"`{option}" in sections[name] or f", {option}" in sections[name]


def test_pages_made_from_docstrings_say_so_in_the_repository_only(hook: ModuleType) -> None:
    pages = [page.read_text() for page in DOCS.rglob("*.md")]
    made = [page for page in pages if page.startswith("::: ") or "\n::: " in page]
    assert len(made) >= 4
    assert all(hook.NOTE in page for page in made)
    assert all("`:::`" not in hook.on_page_markdown(page) for page in made)
