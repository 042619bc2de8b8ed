"""`MANIFEST.json`: what a staged folder holds and where it comes from.

It has the sha256 and size of every other file, the package version, the git commit, the portable-code version
and the source of the weights, and the logits fingerprint that every later load is compared with. It has no
date: staging the same thing twice gives the same bytes, so that a second push finds nothing to do.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from .errors import UsageError
from .files import list_files, read_json, sha256_of, write_json

MANIFEST = "MANIFEST.json"
PORTABLE = Path(__file__).parents[1] / "portable"
_FORMAT = 1


def package_facts(portable: Path) -> dict[str, Any]:
    """Return the version and git commit of seqpe_zoo and the version of the code that travels."""
    from importlib import metadata

    try:
        version = metadata.version("seqpe_zoo")
    except metadata.PackageNotFoundError:
        version = "0+unknown"
    return {
        "name": "seqpe_zoo",
        "version": version,
        "git_sha": git_sha(portable),
        "portable_version": portable_version(portable),
    }


def portable_version(portable: Path) -> str | None:
    """Read `PORTABLE_VERSION` from the portable code without importing it (importing would import torch)."""
    pattern = re.compile(r"^PORTABLE_VERSION(?:\s*:\s*\w+)?\s*=\s*[\"']([^\"']+)[\"']", re.M)
    found = (pattern.search(path.read_text(encoding="utf-8")) for path in sorted(portable.glob("*.py")))
    return next((match[1] for match in found if match), None)


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


def file_entry(path: Path) -> dict[str, Any]:
    """Return what the manifest says of a file."""
    return {"sha256": sha256_of(path), "size": path.stat().st_size}


def write_manifest(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Write `MANIFEST.json` with the hashes of the folder's files as they are now.

    Args:
        folder: a staged folder.
        manifest: `published_as`, the repository and tag the card speaks of; `source`, where the weights come
            from, in words and hashes, never as a path of this machine; `package`; `fingerprints`, by library.
    """
    files = {name: file_entry(folder / name) for name in list_files(folder) if name != MANIFEST}
    manifest = {**manifest, "format": _FORMAT, "files": files}
    write_json(folder / MANIFEST, manifest)
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a staged or downloaded folder."""
    try:
        manifest = read_json(folder / MANIFEST)
    except FileNotFoundError:
        raise UsageError(f"{folder} has no {MANIFEST}", "make the folder with `seqpe-zoo stage`") from None
    parts = [manifest.get(part) for part in ("files", "fingerprints", "published_as", "package")]
    entries = manifest["files"].values() if all(isinstance(part, dict) for part in parts) else [None]
    hashed = all(isinstance(entry, dict) and "sha256" in entry for entry in entries)
    if manifest.get("format") != _FORMAT or not hashed:
        raise UsageError(f"{MANIFEST} has an unknown format", "stage again with this version of seqpe_zoo")
    return manifest


def compare_with_manifest(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """Return what differs between a folder and its manifest, as sentences."""
    problems = []
    listed = manifest["files"]
    present = set(list_files(folder)) - {MANIFEST}
    for name in sorted(set(listed) | present):
        path = folder / name
        if name not in present:
            problems.append(f"{name} is in {MANIFEST} but not in the folder")
        elif name not in listed:
            problems.append(f"{name} is in the folder but not in {MANIFEST}")
        elif path.is_symlink() or not path.is_file():
            problems.append(f"{name} is not a regular file")
        elif sha256_of(path) != listed[name]["sha256"]:
            problems.append(f"{name} has changed since it was staged (its sha256 differs from {MANIFEST})")
    return problems
