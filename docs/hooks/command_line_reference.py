"""Writes the reference of the command line from its parser while the site is built: it cannot go stale.

mkdocs calls `on_page_markdown` for every page; the page that holds `MARK` gets the text in its place. Pages
that are filled in from docstrings say so to readers of the plain file; the built site does not need it.
"""

import argparse
import functools
from typing import Any

from seqpe_zoo.cli import build_parser

MARK = "<!-- command line reference -->"
WIDTH = 100
NOTE = (
    "> Lines that begin with `:::` become the signatures and docstrings of what they name when the site is "
    "built: `make docs`, then\n> open `site/index.html`. In Python `help(...)` prints the same.\n"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts the reference in the place of its mark, and takes the note for readers of the plain file out."""
    markdown = markdown.replace(NOTE, "")
    return markdown.replace(MARK, command_line_reference()) if MARK in markdown else markdown


def command_line_reference() -> str:
    """Returns a section of Markdown for each command."""
    return "\n".join(_section(name, parser, summary) for name, parser, summary in _commands())


def _commands() -> list[tuple[str, argparse.ArgumentParser, str]]:
    found = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    subparsers = next(found)
    summaries = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
    return [(name, parser, summaries.get(name, "")) for name, parser in subparsers.choices.items()]


def _section(name: str, parser: argparse.ArgumentParser, summary: str) -> str:
    parser.formatter_class = functools.partial(argparse.HelpFormatter, width=WIDTH)
    said = parser.description or f"{summary[:1].upper()}{summary[1:]}."
    lines = [f"## {name}", "", said, "", "```text", parser.format_usage().strip(), "```", ""]
    rows = [_row(parser, action) for action in parser._actions if "--help" not in action.option_strings]
    if rows:
        lines += ["| argument | what it does | default |", "|---|---|---|", *rows, ""]
    if parser.epilog:
        lines += [parser.epilog, ""]
    return "\n".join(lines)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.choices is not None:
        name += " {" + ",".join(str(choice) for choice in action.choices) + "}"
    text = formatter._expand_help(action) if action.help else ""
    unsaid = action.default is None or isinstance(action.default, bool) or action.default == []
    default = "" if unsaid or action.default == argparse.SUPPRESS else f"`{action.default}`"
    return f"| `{_cell(name)}` | {_cell(text)} | {_cell(default)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
