"""Bring the portable code of published repositories up to date. Weights, card and tokenizer are not touched.

For every repository: read its config, find the code files its `auto_map` needs today, show the difference,
prove that the published weights give the recorded logits with the new code, and commit code and manifest
together on the head that was read. Without `yes` only the difference is shown.
"""

from __future__ import annotations

import difflib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .client import Client
from .commit import send_commit, set_tag
from .config_rules import auto_map_modules, code_closure
from .errors import CheckFailed, UsageError
from .manifest import (
    MANIFEST,
    git_sha,
    git_sha1_of,
    package_version,
    portable_version,
    read_manifest,
    sha256_of,
    write_manifest,
)
from .plan import Plan, PlannedFile, Target, is_same, read_remote, remote_tree
from .stage import PORTABLE


@dataclass
class Synced:
    """What differs in one repository, and the commit that was made, if any."""

    repo_id: str
    diff: str
    changed: list[str] = field(default_factory=list)
    commit: str | None = None


def sync_code(
    client: Client,
    repo_id: str,
    *,
    yes: bool,
    tag: str | None = None,
    revision: str = "main",
    portable: Path = PORTABLE,
    load: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> Synced:
    """Compare, and with `yes` update, the code of one repository.

    Args:
        client: an open client.
        repo_id: a repository made by `push`.
        yes: make the commit.
        tag: put on the new commit.
        revision: the branch.
        portable: where the current portable code lies.
        load: before committing, run the published weights with the new code and compare the logits.
        progress: called with a line a step.
    """
    plan = read_remote(client, Target(repo_id, revision=revision, tag=tag))
    parent = plan.parent or ""
    tree = remote_tree(client, repo_id, parent)
    with tempfile.TemporaryDirectory(prefix="seqpe_zoo_sync_") as scratch:
        old = _download(client, repo_id, parent, Path(scratch) / "old", with_weights=False)
        new = Path(scratch) / "new"
        done = _prepare(repo_id, old, new, portable, plan, tree)
        if not done.changed or not yes:
            return done
        if load:
            progress(f"running the weights of {repo_id} with the new code")
            _require_same_logits(client, repo_id, parent, new, Path(scratch) / "full", plan)
        done.commit, _ = send_commit(
            client, new, plan, f"seqpe_zoo: portable code {portable_version(portable) or ''}".strip()
        )
        progress(f"{repo_id}: commit {done.commit[:12]} updates {', '.join(done.changed)}")
        if tag:
            set_tag(client, plan.target, done.commit, progress)
    return done


def _prepare(repo_id: str, old: Path, new: Path, portable: Path, plan: Plan, tree: dict[str, Any]) -> Synced:
    """Write the changed files into `new`, list them in the plan and describe the difference."""
    manifest = read_manifest(old)
    modules = auto_map_modules(json.loads((old / "config.json").read_text(encoding="utf-8")))
    if not modules:
        raise UsageError(f"{repo_id} carries no code: its config.json has no auto_map")
    wanted = {path.name: path for path in code_closure(portable, modules)}
    new.mkdir()
    done = Synced(repo_id, "")
    for name, path in wanted.items():
        entry = tree.get(name)
        if entry is None or not is_same(entry, sha256_of(path), git_sha1_of(path)):
            shutil.copyfile(path, new / name)
            done.changed.append(name)
            plan.files.append(_planned(new / name, "update" if entry else "add"))
            manifest["files"][name] = {"sha256": sha256_of(path), "size": path.stat().st_size}
    for name in sorted(n for n in manifest["files"] if n.endswith(".py") and n not in wanted):
        done.changed.append(name)
        plan.files.append(PlannedFile(name, "delete", tree[name].size, None, tree[name].blob_id))
        del manifest["files"][name]
    done.diff = "".join(_diff(old / name, new / name, name) for name in done.changed)
    if done.changed:
        manifest["package"].update(
            version=package_version(), git_sha=git_sha(portable), portable_version=portable_version(portable)
        )
        write_manifest(new, manifest)
        plan.files.append(_planned(new / MANIFEST, "update"))
    return done


def _planned(path: Path, action: str) -> PlannedFile:
    return PlannedFile(path.name, action, path.stat().st_size, sha256_of(path), git_sha1_of(path))


def _diff(old: Path, new: Path, name: str) -> str:
    before = old.read_text(encoding="utf-8").splitlines(True) if old.is_file() else []
    after = new.read_text(encoding="utf-8").splitlines(True) if new.is_file() else []
    return "".join(difflib.unified_diff(before, after, f"published/{name}", f"current/{name}"))


def _download(client: Client, repo_id: str, commit: str, place: Path, *, with_weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    # The client resumes a download that ends early, but not one whose connection is reset.
    return Path(
        client.call(
            f"downloading {repo_id}",
            snapshot_download,
            repo_id,
            revision=commit,
            local_dir=place,
            cache_dir=place.parent / "cache",
            ignore_patterns=None if with_weights else ["*.safetensors"],
            token=client.api.token,
        )
    )


def _require_same_logits(
    client: Client, repo_id: str, commit: str, new: Path, full: Path, plan: Plan
) -> None:
    from .clean_room import compare_fingerprints, probe

    _download(client, repo_id, commit, full, with_weights=True)
    recorded = read_manifest(full)["fingerprints"].get("transformers")
    for file in plan.files:
        if file.action == "delete":
            (full / file.path).unlink()
        else:
            shutil.copyfile(new / file.path, full / file.path)
    report = probe(["transformers"], full, weights=full)["transformers"]
    problems = list(report["problems"])
    if not problems and recorded and (difference := compare_fingerprints(report["fingerprint"], recorded)):
        problems.append(difference)
    if problems:
        raise CheckFailed(
            [f"{repo_id} with the new code: {problem}" for problem in problems],
            "the new code changes a published model; nothing was sent",
        )
