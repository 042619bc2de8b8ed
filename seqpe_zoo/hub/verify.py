"""Fetch a published commit as a stranger would and compare it with what was meant to be there.

The download goes into an empty cache, pinned to the commit. The client accepts a corrupted file of the right
size without a word, so every hash is compared: with the local staged folder if given, else with the
repository's own manifest. Then the model is loaded from the Hub in each library, its tensors compared bit by
bit with the downloaded file, its logits with the recorded fingerprint.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .client import Client
from .config_rules import libraries_of
from .errors import DiskFull, HubError, VerificationFailed
from .manifest import MANIFEST, compare_with_manifest, git_sha1_of, list_files, read_manifest, sha256_of
from .plan import is_same, remote_tree


@dataclass
class Verified:
    """What was found right."""

    repo_id: str
    commit: str
    files: int
    libraries: dict[str, dict[str, Any]] = field(default_factory=dict)


def verify(
    client: Client, repo_id: str, revision: str = "main", *, folder: Path | None = None, load: bool = True
) -> Verified:
    """Download a revision into an empty cache; raise `VerificationFailed` unless all is as it should be.

    Args:
        client: an open client.
        repo_id: the repository.
        revision: a commit, tag or branch; it is pinned to a commit first.
        folder: the staged folder it was pushed from, if at hand.
        load: load the model in each library, too.
    """
    commit = str(client.call(f"looking up {repo_id}", client.api.repo_info, repo_id, revision=revision).sha)
    tree = remote_tree(client, repo_id, commit)
    _refuse_full_disk(sum(entry.size for entry in tree.values()))
    with tempfile.TemporaryDirectory(prefix="seqpe_zoo_verify_") as scratch:
        home = Path(scratch) / "home"
        snapshot = _download(client, repo_id, commit, home)
        problems = _file_problems(snapshot, tree, folder)
        if problems:
            raise VerificationFailed(_sentence(repo_id, commit, problems))
        done = Verified(repo_id, commit, len(tree))
        if load:
            problems = _load_problems(repo_id, commit, snapshot, home, done)
        if problems:
            raise VerificationFailed(_sentence(repo_id, commit, problems))
    return done


def _sentence(repo_id: str, commit: str, problems: list[str]) -> str:
    return "\n".join(
        [f"{repo_id} at {commit[:12]} is not what was published:", *(f"  - {p}" for p in problems)]
    )


def _refuse_full_disk(needed: int) -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < needed + 64 * 2**20:
        raise DiskFull(
            f"verifying needs {needed / 2**20:.0f} MiB of temporary space, {free / 2**20:.0f} MiB are free"
        )


def _download(client: Client, repo_id: str, commit: str, home: Path) -> Path:
    from huggingface_hub import snapshot_download

    # The client resumes a download that ends early, but not one whose connection is reset.
    return Path(
        client.call(
            f"downloading {repo_id} at {commit[:12]}",
            snapshot_download,
            repo_id,
            revision=commit,
            cache_dir=home / "hub",
            token=client.api.token,
        )
    )


def _file_problems(snapshot: Path, tree: dict[str, Any], folder: Path | None) -> list[str]:
    """Compare the download with the Hub's own hashes, with its manifest and with the folder it came from."""
    problems = []
    for name, entry in sorted(tree.items()):
        path = (snapshot / name).resolve()
        if not path.is_file():
            problems.append(f"{name} was not downloaded")
        elif not is_same(entry, sha256_of(path), git_sha1_of(path)):
            problems.append(f"{name} arrived corrupted: its hash is not the one the Hub lists")
    if problems:
        return problems
    try:
        listed = read_manifest(snapshot)["files"]
    except HubError as error:
        return [str(error.args[0])]
    for name, expected in sorted(listed.items()):
        path = (snapshot / name).resolve()
        if not path.is_file():
            problems.append(f"{name} is in {MANIFEST} but not in the repository")
        elif sha256_of(path) != expected["sha256"]:
            problems.append(f"{name} differs from {MANIFEST}")
    if folder is not None:
        problems += [
            f"staged folder: {problem}" for problem in compare_with_manifest(folder, read_manifest(folder))
        ]
        for name in list_files(folder):
            path = (snapshot / name).resolve()
            if not path.is_file() or sha256_of(path) != sha256_of(folder / name):
                problems.append(f"{name} differs from the staged folder")
    return problems


def _load_problems(repo_id: str, commit: str, snapshot: Path, home: Path, done: Verified) -> list[str]:
    from .clean_room import compare_fingerprints, probe

    problems = []
    recorded = read_manifest(snapshot)["fingerprints"]
    libraries = libraries_of(json.loads((snapshot / "config.json").read_text(encoding="utf-8")))
    reports = probe(libraries, repo_id, revision=commit, weights=snapshot, home=home)
    for library, report in reports.items():
        problems += [f"{library}: {problem}" for problem in report["problems"]]
        if report["problems"]:
            continue
        done.libraries[library] = {"class": report["class"], "tensors_equal": report["tensors_equal"]}
        if library not in recorded:
            problems.append(f"{library}: the manifest has no logits fingerprint to compare with")
        elif difference := compare_fingerprints(report["fingerprint"], recorded[library]):
            problems.append(f"{library}: {difference}")
    return problems
