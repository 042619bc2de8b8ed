"""What README and docs show is true: their Python runs, their commands run, or at least are understood."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from seqpe_zoo.cli import build_parser
from seqpe_zoo.training.run_config import load_run

from .markdown_blocks import DOCS, REPOSITORY, Block, read_blocks
from .page_runner import clone, run_page, write_placeholders

README = REPOSITORY / "README.md"
WORKED_EXAMPLE = DOCS / "howto" / "add-an-encoding.md"  # run by test_worked_example.py
OF_RUNS = DOCS / "reproduction"  # commands of hours, on data that is not in the repository
PAGES = [README, *sorted(page for page in DOCS.rglob("*.md") if OF_RUNS not in page.parents)]
BLOCKS = [block for page in PAGES for block in read_blocks(page)]
RUN_HERE = [
    page
    for page in PAGES
    if page != WORKED_EXAMPLE
    and any(block.not_run is None and block.language in ("python", "sh") for block in read_blocks(page))
]
NOT_OURS = ("pip", "git", "cd", "export", "accelerate")
MAKEFILE = (REPOSITORY / "Makefile").read_text()


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_HERE, ids=name_of)
def test_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_placeholders(page, tmp_path)
    threads = torch.get_num_threads()
    with clone(tmp_path):
        run_page(page)
    torch.set_num_threads(threads)
    assert_figures_are_printed(page, capfd.readouterr().out)


def assert_figures_are_printed(page: Path, printed: str) -> None:
    """The scaling page shows what its own arithmetic prints, row by row."""
    if page.name == "scaling.md":
        rows = [line for line in printed.splitlines() if line.startswith("| ")]
        assert len(rows) >= 15
        assert [row for row in rows if row not in page.read_text().splitlines()] == []


def test_front_page_is_short_and_shows_what_it_prints() -> None:
    assert len(README.read_text().split()) < 900
    blocks = read_blocks(README)
    outputs = [below for block, below in pairwise(blocks) if below.is_output_of(block)]
    assert len(outputs) == sum(block.language == "python" for block in blocks) == 3
    assert all(len(block.text.strip().splitlines()) <= 7 for block in blocks if block.language == "python")


def test_results_of_the_front_page_are_those_that_were_measured() -> None:
    table = (OF_RUNS / "mini_llama" / "table.md").read_text().splitlines()
    rows = [line for line in README.read_text().splitlines() if "±" in line]
    assert len(rows) >= 6
    assert [row for row in rows if row not in table] == []


def test_every_kind_of_page_is_run() -> None:
    names = {name_of(page) for page in RUN_HERE}
    wanted = {"README.md", "docs/index.md", "docs/howto/graft.md", "docs/explanation/scaling.md"}
    assert names >= wanted | {f"docs/tutorials/{name}.md" for name in ("fine-tune-images", "extend-context")}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_code_escapes_the_tests(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = read_blocks(page)
    assert len(re.findall(r"^\s*```(?:python|sh)\b", text, re.MULTILINE)) == sum(
        block.language in ("python", "sh") for block in blocks
    )
    shown = [block for block in blocks if block.language in ("", "text", "console", "bash", "shell")]
    commands = re.compile(r"^\$? ?(seqpe-zoo|python|make|pip) ", re.MULTILINE)
    assert [block.place for block in shown if commands.search(block.text)] == []


COMMANDS = [(block, words) for block in BLOCKS if block.language == "sh" for words in block.commands()]


@pytest.mark.parametrize(
    ("block", "words"), COMMANDS, ids=[f"{block.place}-{words[0]}" for block, words in COMMANDS]
)
def test_command_is_understood(block: Block, words: list[str]) -> None:
    problem = explain_command([*words, *block.appended])
    assert problem is None, f"{block.place}: {shlex.join(words)}: {problem}"


def explain_command(words: list[str]) -> str | None:
    """Says what is wrong with a command, without carrying it out; None when nothing is."""
    program, *arguments = words
    if program == "make":
        missing = [word for word in arguments if not re.search(rf"^{word}:", MAKEFILE, re.MULTILINE)]
        return f"no target {missing}" if missing else None
    if program == "seqpe-zoo":
        try:
            options = build_parser().parse_args(arguments)
        except SystemExit:
            return "the parser refuses it"
        return explain_recipe(options) if options.command == "train" else None
    if program == "python" and arguments[0].endswith(".py"):
        return None if (REPOSITORY / arguments[0]).is_file() else f"no file {arguments[0]}"
    if program == "python" and arguments[0] == "-m":
        return None
    return None if program in NOT_OURS else f"{program} is not known here"


def explain_recipe(options: object) -> str | None:
    try:
        in_clone = REPOSITORY / options.recipe
        load_run(in_clone if in_clone.exists() else options.recipe, options.changes)
    except (ValueError, OSError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "command",
    [
        "make dem",
        "seqpe-zoo evaluat runs/x",
        "seqpe-zoo graft a b --integration no",
        "python examples/none.py",
        "seqpe-zoo train train_scripts/recipes/gpt2_seqpe.yaml data.lenght=3",
        "conda install x",
    ],
)
def test_wrong_commands_are_noticed(command: str) -> None:
    assert explain_command(shlex.split(command)) is not None
