"""`MANIFEST.json`: what a staged folder holds and where it comes from.

It has the sha256 and size of every other file, the package version, the git commit, the portable-code version
and the source of the weights, and the logits fingerprint that every later load is compared with. It has no
date: staging the same thing twice gives the same bytes, so that a second push finds nothing to do.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from .errors import UsageError

MANIFEST = "MANIFEST.json"
_FORMAT = 1


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def git_sha1_of(path: Path) -> str:
    """Return the name git gives to this file's content, which the Hub reports for small files."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def list_files(folder: Path) -> list[str]:
    """Return every file below a folder, sorted, with forward slashes. Links are not followed."""
    found = []
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            found.append(path.relative_to(folder).as_posix())
    return sorted(found)


def package_version() -> str:
    """Return the version of seqpe_zoo, or `0+unknown` when it runs from a folder."""
    from importlib import metadata

    try:
        return metadata.version("seqpe_zoo")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def portable_version(portable: Path) -> str | None:
    """Read `PORTABLE_VERSION` from the portable code without importing it (importing would import torch)."""
    for path in sorted(portable.glob("*.py")):
        match = re.search(
            r"^PORTABLE_VERSION(?:\s*:\s*\w+)?\s*=\s*[\"']([^\"']+)[\"']", path.read_text(), re.M
        )
        if match:
            return match[1]
    return None


def git_sha(folder: Path) -> str | None:
    """Return the commit `folder` is checked out from (`+changes` when it differs), or None."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    sha = git("rev-parse", "HEAD")
    if not sha or not git("ls-files", "--", "."):  # installed into somebody's checkout, not part of it
        return None
    return sha + ("+changes" if git("status", "--porcelain", "--untracked-files=no", "--", ".") else "")


def build_manifest(
    folder: Path,
    *,
    published_as: dict[str, Any],
    source: dict[str, Any],
    version: str,
    code_commit: str | None,
    code_version: str | None,
    fingerprints: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe a staged folder.

    `published_as` is the repository and tag the card speaks of; `source` says where the weights come from, in
    words and hashes, never as a path of this machine.
    """
    files = {
        name: {"sha256": sha256_of(folder / name), "size": (folder / name).stat().st_size}
        for name in list_files(folder)
        if name != MANIFEST
    }
    return {
        "format": _FORMAT,
        "package": {
            "name": "seqpe_zoo",
            "version": version,
            "git_sha": code_commit,
            "portable_version": code_version,
        },
        "published_as": published_as,
        "source": source,
        "files": files,
        "fingerprints": fingerprints or {},
    }


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write `MANIFEST.json` with sorted keys."""
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a staged or downloaded folder."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{folder} has no {MANIFEST}", "make the folder with `seqpe-zoo stage`") from None
    except ValueError as error:
        raise UsageError(f"{path.name} is not JSON: {error}", "stage again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise UsageError(f"{path.name} has an unknown format", "stage again with this version of seqpe_zoo")
    return manifest


def compare_with_manifest(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """Return what differs between a folder and its manifest, as sentences."""
    problems = []
    listed = manifest["files"]
    present = set(list_files(folder)) - {MANIFEST}
    for name in sorted(set(listed) - present):
        problems.append(f"{name} is in {MANIFEST} but not in the folder")
    for name in sorted(present - set(listed)):
        problems.append(f"{name} is in the folder but not in {MANIFEST}")
    for name in sorted(present & set(listed)):
        if (folder / name).is_symlink() or not (folder / name).is_file():
            problems.append(f"{name} is not a regular file")
        elif sha256_of(folder / name) != listed[name]["sha256"]:
            problems.append(f"{name} has changed since it was staged (its sha256 differs from {MANIFEST})")
    return problems
