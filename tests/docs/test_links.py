"""Links between pages, to files, to headings and to pictures resolve, without building the site."""

import re
from pathlib import Path

import pytest
import yaml

from .markdown_blocks import DOCS, REPOSITORY

PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "train_scripts/README.md")),
    *sorted(DOCS.rglob("*.md")),
]
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)[^)]*\)")
FENCED = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
SITE = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())


def links_of(page: Path) -> list[str]:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return [match["target"] for match in LINK.finditer(text)]


def anchors_of(page: Path) -> set[str]:
    """Anchors that Markdown makes of headings."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    kept = (re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles)
    return {re.sub(r"[-\s]+", "-", title) for title in kept}


def explain_link(page: Path, target: str) -> str | None:
    """Says what is wrong with a link of a page; None when nothing is."""
    if re.match(r"https?://|mailto:", target):
        return None
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"{target}: no such file"
    if DOCS in page.parents and DOCS not in file.parents:
        return f"{target}: leaves docs/, so it breaks on the site"
    if anchor and file.suffix == ".md" and anchor not in anchors_of(file):
        return f"{target}: no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_resolve(page: Path) -> None:
    problems = [problem for target in links_of(page) if (problem := explain_link(page, target))]
    assert problems == []


@pytest.mark.parametrize("target", ["none.md", "index.md#no-such-heading", "../README.md"])
def test_broken_links_are_noticed(target: str) -> None:
    assert explain_link(DOCS / "publishing.md", target) is not None


def nav_entries(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [name for part in inner for name in nav_entries(part)]


def test_navigation_names_pages_that_exist_and_leaves_none_out() -> None:
    named = set(nav_entries(SITE["nav"]))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert named - pages == set()
    assert {page for page in pages - named if not page.startswith("reproduction/")} == set()


def test_site_asks_nothing_of_others() -> None:
    assert SITE["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css"} & SITE.keys()
