"""Writes what the reference pages say of the command line and of SeqPE's options, from the code itself.

python docs/hooks/reference_pages.py   # after a change of either; a test compares the pages with the code

The other reference pages are filled in from docstrings while the site is built. They say so to readers of the
plain file; mkdocs calls `on_page_markdown`, which takes that note out, for every page.
"""

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "reference"
MARK = "<!-- the rest of this page: python docs/hooks/reference_pages.py -->\n"
NOTE = (
    "> Lines that begin with `:::` become the signatures and docstrings of what they name when the site is "
    "built: `make docs`, then\n> open `site/index.html`. In Python `help(...)` prints the same.\n"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Takes the note for readers of the plain file out."""
    return markdown.replace(NOTE, "")


def write_pages() -> None:
    """Writes the generated part of each page below its mark."""
    for name, text in generated_parts().items():
        page = PAGES / name
        kept, _, _ = page.read_text(encoding="utf-8").partition(MARK)
        page.write_text(f"{kept}{MARK}\n{text}", encoding="utf-8")


def generated_parts() -> dict[str, str]:
    """Returns the generated part of each page by its name."""
    return {"command-line.md": command_line(), "options.md": options_of_seqpe()}


def command_line() -> str:
    """Returns a section for each command."""
    from seqpe_zoo.cli import build_parser

    found = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    subparsers = next(found)
    summaries = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
    return "\n".join(
        _section(name, parser, summaries.get(name, "")) for name, parser in subparsers.choices.items()
    )


def _section(name: str, parser: argparse.ArgumentParser, summary: str) -> str:
    said = parser.description or f"{summary[:1].upper()}{summary[1:]}."
    lines = [f"## {name}", "", said, ""]
    rows = [_row(parser, action) for action in parser._actions if "--help" not in action.option_strings]
    if rows:
        lines += ["| argument | what it does | default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines + ([parser.epilog, ""] if parser.epilog else []))


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.choices is not None:
        name += " {" + ",".join(str(choice) for choice in action.choices) + "}"
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    unsaid = action.default is None or isinstance(action.default, bool) or action.default == []
    default = "" if unsaid or action.default == argparse.SUPPRESS else f"`{action.default}`"
    return f"| `{_cell(name)}` | {_cell(text)} | {_cell(default)} |"


def options_of_seqpe() -> str:
    """Returns a table of the options, in the words of their docstring."""
    from seqpe_zoo.portable.seqpe import SeqPEOptions

    said = str(SeqPEOptions.__doc__).partition("Attributes:\n")[2]
    _, *parts = re.split(r"^ {8}(\w+): ", said, flags=re.MULTILINE)
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    rows = [
        f"| `{field.name}` | {_cell(' '.join(texts[field.name].split()))} | `{field.default!r}` |"
        for field in fields(SeqPEOptions)
    ]
    return "\n".join(["| option | what it does | default |", "|---|---|---|", *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    write_pages()
