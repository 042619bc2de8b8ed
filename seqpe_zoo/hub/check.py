"""Look at a staged folder with a stranger's eyes, offline, before anything is sent.

1. contents: names, links, pickles, secrets, sizes, references (`contents.py`), and the manifest's hashes;
2. the card: metadata schema, licence list, sections (`card_rules.py`);
3. a strict load and one forward pass in each library, in a fresh interpreter without seqpe_zoo, every
   tensor compared with the file and the logits with the fingerprint recorded by `stage`;
4. the card's python snippets, executed word for word in a Hub cache that holds the folder as published.

When all pass, a receipt is written beside the folder; `push` asks for it. Steps 1 and 2 need no torch.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .card_rules import card_problems
from .config_rules import libraries_of
from .contents import find_problems
from .errors import CheckFailed, UsageError
from .manifest import MANIFEST, compare_with_manifest, read_manifest, sha256_of

_NOT_RUN = "<!-- not run:"  # a snippet below this comment is not executed; the comment says why


@dataclass
class Checked:
    """What `check` looked at."""

    folder: Path
    libraries: dict[str, dict[str, Any]] = field(default_factory=dict)
    snippets_run: int = 0
    receipt: Path | None = None


def check(folder: Path, *, load: bool = True, snippets: bool = True) -> Checked:
    """Raise `CheckFailed` with every problem found, or return what was looked at.

    Args:
        folder: a folder made by `stage`.
        load: load the model in each library and run it.
        snippets: execute the card's python blocks.
    """
    check_static(folder)
    manifest = read_manifest(folder)
    done = Checked(folder)
    problems: list[str] = []
    if load:
        problems += _load_problems(folder, manifest, done)
    if snippets and not problems:
        problems += _snippet_problems(folder, manifest, done)
    if problems:
        raise CheckFailed(problems)
    if load and snippets:
        done.receipt = write_receipt(folder, done.libraries)
    return done


def check_static(folder: Path) -> None:
    """Do steps 1 and 2 only: a few file reads."""
    folder = Path(folder)
    problems = find_problems(folder)
    if not problems:
        problems = compare_with_manifest(folder, read_manifest(folder))
        problems += card_problems((folder / "README.md").read_text(encoding="utf-8"))
    if problems:
        raise CheckFailed(problems)


def _load_problems(folder: Path, manifest: dict[str, Any], done: Checked) -> list[str]:
    from .clean_room import compare_fingerprints, probe

    problems = []
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for library, report in probe(libraries_of(config), folder, weights=folder).items():
        problems += [f"{library}: {problem}" for problem in report["problems"]]
        if report["problems"]:
            continue
        done.libraries[library] = {"class": report["class"], "tensors_equal": report["tensors_equal"]}
        recorded = manifest["fingerprints"].get(library)
        if recorded is None:
            problems.append(f"{library}: no logits fingerprint was recorded; stage again")
        elif difference := compare_fingerprints(report["fingerprint"], recorded):
            problems.append(f"{library}: {difference}")
    return problems


def python_blocks(card: str) -> list[tuple[int, str]]:
    """Return a card's python blocks, numbered from 1, but those under `<!-- not run: reason -->`."""
    blocks = []
    for number, match in enumerate(re.finditer(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE), 1):
        before = card[: match.start()].rstrip().splitlines()
        if not (before and before[-1].startswith(_NOT_RUN)):
            blocks.append((number, match[1]))
    return blocks


def _snippet_problems(folder: Path, manifest: dict[str, Any], done: Checked) -> list[str]:
    from .clean_room import run_snippets

    blocks = python_blocks((folder / "README.md").read_text(encoding="utf-8"))
    if not blocks:
        return ["README.md: no python snippet shows how to use the model"]
    problems = run_snippets(blocks, folder, **manifest["published_as"])
    done.snippets_run = len(blocks)
    return problems


# The receipt ------------------------------------------------------------------------------------------------


def receipt_path(folder: Path) -> Path:
    """Return where the receipt of a folder lies: beside it, so that it is never uploaded."""
    folder = folder.resolve()
    return folder.parent / f"{folder.name}.checked.json"


def write_receipt(folder: Path, libraries: dict[str, Any]) -> Path:
    """Note that exactly this folder passed."""
    path = receipt_path(folder)
    temporary = path.with_suffix(".new")
    receipt = {"manifest_sha256": sha256_of(folder / MANIFEST), "libraries": libraries}
    temporary.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def require_receipt(folder: Path) -> None:
    """Refuse a folder that was not checked, or was changed since."""
    path = receipt_path(folder)
    try:
        receipt = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        receipt = {}
    if receipt.get("manifest_sha256") != sha256_of(folder / MANIFEST):
        raise UsageError(
            f"{folder.name} has not passed `seqpe-zoo check` since it was staged",
            "run `seqpe-zoo check` on it first",
        )
