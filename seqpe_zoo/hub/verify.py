"""Download a published commit as its users do and compare it with what was meant to be there.

The download goes into an empty cache, pinned to the commit. The client accepts a corrupted file of the right
size without a word, so every hash is compared: with the Hub's list, with the repository's own manifest and
with the local staged folder if given. Then the model is loaded from the Hub in each library, its tensors
compared bit by bit with the downloaded file, its logits with the recorded fingerprint.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from .client import Client
from .errors import HubError, VerificationFailed
from .files import list_files, read_json, require_space, sha256_of
from .manifest import MANIFEST, compare_with_manifest, read_manifest
from .plan import remote_tree


def verify(
    client: Client, repo_id: str, revision: str = "main", *, folder: Path | None = None, load: bool = True
) -> list[str]:
    """Download a revision into an empty cache; raise `VerificationFailed` unless all is as it should be.

    Args:
        client: an open client.
        repo_id: the repository.
        revision: a commit, tag or branch; it is pinned to a commit first.
        folder: the staged folder it was pushed from, if at hand.
        load: load the model in each library, too.

    Returns:
        What was found right, as sentences.
    """
    commit = str(client.call(f"looking up {repo_id}", client.api.repo_info, repo_id, revision=revision).sha)
    tree = remote_tree(client, repo_id, commit)
    size = sum(entry.size for entry in tree.values())
    require_space(Path(tempfile.gettempdir()), size + 64 * 2**20, "verifying")
    with tempfile.TemporaryDirectory(prefix="seqpe_zoo_verify_") as scratch:
        home = Path(scratch) / "home"
        snapshot = client.download(repo_id, commit, cache_dir=home / "hub")
        done, problems = [f"{repo_id} at {commit}: {len(tree)} files as published"], []
        found = client.call(
            f"comparing {repo_id} with the Hub's hashes",
            client.api.verify_repo_checksums,
            repo_id,
            revision=commit,
            cache_dir=home / "hub",
            attempts=1,
        )
        names = [bad["path"] for bad in found.mismatches]
        problems += [f"{name} arrived corrupted: its hash is not the one the Hub lists" for name in names]
        problems += [f"{name} was not downloaded" for name in found.missing_paths]
        problems = problems or _manifest_problems(snapshot, set(tree), folder)
        if load and not problems:
            from .clean_room import loading_problems, probe

            config, recorded = read_json(snapshot / "config.json"), read_manifest(snapshot)["fingerprints"]
            reports = probe(config, repo_id, revision=commit, weights=snapshot, home=home)
            problems, fine = loading_problems(reports, recorded)
            done += fine
    if problems:
        lines = [f"{repo_id} at {commit[:12]} is not what was published:", *(f"  - {p}" for p in problems)]
        raise VerificationFailed("\n".join(lines))
    return done


def _manifest_problems(snapshot: Path, names: set[str], folder: Path | None) -> list[str]:
    """Compare the download with its manifest and with the folder it came from."""
    try:
        listed = read_manifest(snapshot)["files"]
    except HubError as error:
        return [str(error.args[0])]
    expected = {name: (entry["sha256"], MANIFEST) for name, entry in listed.items()}
    problems = []
    if folder is not None:
        changed = compare_with_manifest(folder, read_manifest(folder))
        problems += [f"staged folder: {problem}" for problem in changed]
        expected |= {name: (sha256_of(folder / name), "the staged folder") for name in list_files(folder)}
    for name, (sha256, where) in sorted(expected.items()):
        if name not in names:
            problems.append(f"{name} is in {where} but not in the repository")
        elif sha256_of((snapshot / name).resolve()) != sha256:
            problems.append(f"{name} differs from {where}")
    return problems
