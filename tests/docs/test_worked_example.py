"""The page "Add a position encoding": its file and two lines, in a copy of the package, do what it says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .markdown_blocks import DOCS, REPOSITORY, read_blocks

PAGE = DOCS / "howto" / "add-an-encoding.md"
EXAMPLE = DOCS / "howto" / "pe_rope_partial.py"


def copy_of_the_tree(folder: Path) -> Path:
    """Copies what the page touches or runs."""
    junk = shutil.ignore_patterns("__pycache__")
    for name in ("seqpe_zoo", "tests/portable", "tests/docs"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=junk)
    for name in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py"):
        shutil.copyfile(REPOSITORY / name, folder / name)
    for name in ("docs", "train_scripts"):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


def apply_diff(diff: str, tree: Path) -> None:
    """Edits the file that the first line names; added lines go behind the line that is shown before them."""
    header, *changes = diff.splitlines()
    file = tree / header.removeprefix("--- ")
    lines, place = file.read_text().splitlines(), 0
    for change in changes:
        mark, line = change[0], change[1:]
        if mark == "+":
            lines.insert(place, line)
            place += 1
        else:
            place = lines.index(line) + 1
        if mark == "-":
            place -= 1
            del lines[place]
    file.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_the_page_works_in_a_copy_of_the_package(tmp_path: Path) -> None:
    tree = copy_of_the_tree(tmp_path)
    shutil.copyfile(EXAMPLE, tree / "seqpe_zoo" / "portable" / EXAMPLE.name)
    for block in read_blocks(PAGE):
        if block.language == "diff":
            apply_diff(block.text, tree)
    command = [sys.executable, "-m", "tests.docs.page_runner", str(tree / "docs" / "howto" / PAGE.name)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "PartialRotary(dim=64, num_dims=1, share=0.5)" in done.stdout
    assert " passed" in done.stdout
