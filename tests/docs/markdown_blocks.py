"""Reads the fenced blocks of a Markdown page, with what a comment above a block tells the tests.

    <!-- not run: REASON -->        the block is shown, and its commands are checked but not carried out
    <!-- tests append: WORDS -->    the tests add these words to each command, to make a long run short
    <!-- file: PATH -->             the block is a file that the reader is told to write

A block `text` right below a block of Python, with no line between them, is what that prints.

`--8<-- "FILE"` in a block stands for the file, as it does on the built site.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
_FENCE = re.compile(r"^```(?P<language>[a-z]*)\s*$")
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->")
_APPEND = re.compile(r"<!-- tests append: (?P<words>.+) -->")
_FILE = re.compile(r"<!-- file: (?P<path>\S+) -->")
_INCLUDE = re.compile(r'^--8<-- "(?P<path>[^"]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block: where it begins (the line after its fence), what it is, and what the tests do."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None = None
    appended: tuple[str, ...] = ()
    file: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"

    def is_output_of(self, other: "Block") -> bool:
        """Tells whether this block shows what the one right above it prints."""
        below = other.line + len(other.text.splitlines()) + 2
        return (self.language, self.line, other.language) == ("text", below, "python")

    def code(self) -> str:
        """The text with included files, as readers of the site see it."""
        return _INCLUDE.sub(lambda match: (REPOSITORY / match["path"]).read_text(), self.text)

    def commands(self) -> list[list[str]]:
        """The commands of a block of shell lines, cut into words."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def read_blocks(page: Path) -> list[Block]:
    """Returns the blocks of a page in their order."""
    blocks: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        number += 1
        if opened is None:
            continue
        end = lines.index("```", number)
        comment = lines[number - 2] if number >= 2 else ""
        not_run, append, file = (rule.search(comment) for rule in (_NOT_RUN, _APPEND, _FILE))
        blocks.append(
            Block(
                page,
                number + 1,
                opened["language"],
                "\n".join(lines[number:end]) + "\n",
                not_run["reason"] if not_run else None,
                tuple(shlex.split(append["words"])) if append else (),
                file["path"] if file else None,
            )
        )
        number = end + 1
    return blocks
