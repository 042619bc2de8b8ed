"""Carries out a page of the documentation from top to bottom: Python blocks and commands, in one folder.

Commands run by their own entry points in this process: starting an interpreter that imports torch for each of
them would take minutes. The folder looks like the root of a clone, with a model and data under the names that
pages use as placeholders.
"""

import io
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from .markdown_blocks import REPOSITORY, Block, read_blocks

CLONE = ("train_scripts", "examples", "model_cards", "docs", "tests", "benchmarks", "constraints.txt")
ENDLESS = ("app", "loopback-hub")


def run_page(page: Path) -> None:
    """Runs all blocks of a page in the current folder; names live on from block to block."""
    names: dict[str, object] = {"__name__": "page"}
    blocks = read_blocks(page)
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.not_run is not None:
            continue
        printed = io.StringIO()
        with redirect_stdout(printed):
            run_block(block, names)
        sys.stdout.write(printed.getvalue())
        if following is not None and following.is_output_of(block):
            assert printed.getvalue().strip() == following.text.strip(), (
                f"{following.place} shows other output"
            )


def run_block(block: Block, names: dict[str, object]) -> None:
    """Runs one block, or writes its file; an error of Python points at the line of the page."""
    if block.file is not None:
        path = Path(block.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return
    if block.language == "python":
        code = "\n" * (block.line - 1) + block.code()
        exec(compile(code, block.place, "exec"), names)
    if block.language == "sh":
        for words in block.commands():
            exit_code = run_command([*words, *block.appended])
            assert exit_code == 0, f"{block.place}: {' '.join(words)} ended with {exit_code}"


def run_command(words: list[str]) -> int:
    """Carries out a command and returns its exit code.

    Raises:
        ValueError: it is none that tests can run; the page must say so by `<!-- not run: ... -->`.
    """
    program, *arguments = words
    if program == "seqpe-zoo" and arguments[0] not in ENDLESS:
        from seqpe_zoo.cli import main

        return main(arguments)
    if program == "python" and arguments[:2] == ["-m", "pytest"]:
        import pytest

        return int(pytest.main(arguments[2:]))
    if program == "python" and arguments[0].endswith(".py"):
        return _run_script(arguments)
    raise ValueError(f"{' '.join(words)!r} cannot be run by the tests; write <!-- not run: WHY --> above it")


def _run_script(arguments: list[str]) -> int:
    before = sys.argv
    sys.argv = list(arguments)
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    return 0


@contextmanager
def clone(folder: Path) -> Iterator[Path]:
    """Makes a folder look like the root of a clone, and works in it."""
    for name in CLONE:
        if not (folder / name).exists():
            (folder / name).symlink_to(REPOSITORY / name)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


def write_placeholders(page: Path, folder: Path) -> None:
    """Writes what a page calls ORG/TEXT-MODEL, TEXTS, ORG/IMAGE-MODEL and PICTURES: real, and tiny."""
    text = page.read_text(encoding="utf-8")
    if "ORG/TEXT-MODEL" in text:
        _write_text_model(folder / "ORG" / "TEXT-MODEL", folder / "TEXTS")
    if "ORG/IMAGE-MODEL" in text:
        _write_image_model(folder / "ORG" / "IMAGE-MODEL", folder / "PICTURES")


def _write_text_model(model: Path, texts: Path) -> None:
    from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
    from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
    from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel

    SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(vocab_size=256)).save_pretrained(model)
    build_byte_tokenizer().save_pretrained(model)
    texts.mkdir()
    for split in ("train", "valid", "test"):
        (texts / f"{split}.txt").write_text((REPOSITORY / "CONTRIBUTING.md").read_text())


def _write_image_model(model: Path, pictures: Path) -> None:
    import timm

    from seqpe_zoo.convert.zoo_checkpoint import Converted, write_checkpoint
    from seqpe_zoo.data.digits_images import write_image_folder

    arguments = {"pos_embed": "seqpe", "img_size": 16, "dynamic_img_size": True, "embed_dim": 32, "depth": 2}
    built = timm.create_model("vit_pico_patch4_pe_32", **arguments)
    write_checkpoint(Converted(built, "timm", arguments), model)
    write_image_folder(pictures, size=24, train=40, test=20)


if __name__ == "__main__":
    run_page(Path(sys.argv[1]).absolute())
