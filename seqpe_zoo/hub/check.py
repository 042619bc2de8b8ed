"""Check a staged folder offline, as its users will load it, before anything is sent.

1. contents: names, links, pickles, secrets, sizes, references (`contents.py`), and the manifest's hashes;
2. the card: metadata schema, licence list, sections (`card_rules.py`);
3. a strict load and one forward pass in each library, in a fresh interpreter without seqpe_zoo, every
   tensor compared with the file and the logits with the fingerprint recorded by `stage`;
4. the card's python snippets, executed word for word with the folder in the Hub's cache.

When all pass, a receipt is written beside the folder; `push` asks for it. Steps 1 and 2 need no torch.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from .card_rules import card_problems
from .contents import find_problems
from .errors import CheckFailed, UsageError
from .files import read_json, read_text, sha256_of, write_json
from .manifest import MANIFEST, compare_with_manifest, read_manifest
from .plan import Target

_NOT_RUN = "<!-- not run:"  # a snippet below this comment is not executed; the comment says why


def check(folder: Path, *, load: bool = True, snippets: bool = True) -> list[str]:
    """Raise `CheckFailed` with every problem found, or return what was looked at, as sentences.

    Args:
        folder: a folder made by `stage`.
        load: load the model in each library and run it.
        snippets: execute the card's python blocks.
    """
    check_static(folder)
    manifest, done, problems = read_manifest(folder), ["contents and card are fine"], []
    if load:
        from .clean_room import loading_problems, probe

        reports = probe(read_json(folder / "config.json"), folder, weights=folder)
        problems, fine = loading_problems(reports, manifest["fingerprints"])
        done += fine
    if snippets and not problems:
        from .clean_room import run_snippets

        blocks = python_blocks(read_text(folder / "README.md"))
        if not blocks:
            problems.append("README.md: no python snippet shows how to use the model")
        named = manifest["published_as"]
        target = Target(str(named.get("repo_id")), tag=named.get("tag"))
        problems += run_snippets(blocks, folder, target.repo_id, target.tag)
        done.append(f"{len(blocks)} snippets of the card ran")
    if problems:
        raise CheckFailed(problems)
    if load and snippets:
        write_receipt(folder)
        return [*done, "ready to push"]
    return [*done, "not complete: push asks for a check with loading and snippets"]


def check_static(folder: Path) -> None:
    """Do steps 1 and 2 only: a few file reads."""
    problems = find_problems(folder)
    if not problems:
        problems = compare_with_manifest(folder, read_manifest(folder))
        problems += card_problems(read_text(folder / "README.md"))
    if problems:
        raise CheckFailed(problems)


def python_blocks(card: str) -> list[tuple[int, str]]:
    """Return a card's python blocks, numbered from 1, but those under `<!-- not run: reason -->`."""
    blocks = []
    for number, match in enumerate(re.finditer(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE), 1):
        before = card[: match.start()].rstrip().splitlines()
        if not (before and before[-1].startswith(_NOT_RUN)):
            blocks.append((number, match[1]))
    return blocks


def receipt_path(folder: Path) -> Path:
    """Return where the receipt of a folder lies: beside it, so that it is never uploaded."""
    folder = folder.resolve()
    return folder.parent / f"{folder.name}.checked.json"


def write_receipt(folder: Path) -> None:
    """Note that exactly this folder passed."""
    path = receipt_path(folder)
    temporary = path.with_suffix(".new")
    write_json(temporary, {"manifest_sha256": sha256_of(folder / MANIFEST)})
    os.replace(temporary, path)


def require_receipt(folder: Path) -> None:
    """Refuse a folder that was not checked, or was changed since."""
    receipt: dict[str, Any] = {}
    with suppress(FileNotFoundError, UsageError):
        receipt = read_json(receipt_path(folder))
    if receipt.get("manifest_sha256") != sha256_of(folder / MANIFEST):
        raise UsageError(
            f"{folder.name} has not passed `seqpe-zoo check` since it was staged",
            "run `seqpe-zoo check` on it first",
        )
