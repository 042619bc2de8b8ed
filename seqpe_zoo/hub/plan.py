"""What a push would do, computed from the staged folder and from what is on the Hub now. Sends nothing.

A plan names the exact commit it builds on. `push` makes its commit on that parent or not at all, so what was
shown is what happens. Nothing stored locally is trusted: a repeated run plans anew.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .client import Client
from .errors import RepositoryMissing, UsageError
from .files import git_sha1_of, list_files, sha256_of

_HUB_OWN_FILES = frozenset([".gitattributes"])  # made by the Hub, never ours


def require_repo_id(repo_id: str) -> None:
    """Refuse what is not OWNER/NAME, by the Hub's own rule."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
        good = repo_id.count("/") == 1 and repo_id.isascii()
    except HFValidationError:
        good = False
    if not good:
        remedy = "write OWNER/NAME, in letters, digits, '-', '_' and '.'"
        raise UsageError(f"{repo_id!r} cannot be a repository of the Hub", remedy)


def require_ref(name: str | None, kind: str) -> None:
    """Refuse a branch or tag that git would refuse, before anything is sent."""
    if name is None:
        return
    odd = not isinstance(name, str) or re.search(
        r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)|^[/.-]|[/.]$|^@$|^$", name
    )
    if odd or not name.isascii():
        raise UsageError(f"{name!r} cannot be the name of a {kind}", "give one such as v1.0")


@dataclass(frozen=True)
class PlannedFile:
    """One file: `add`, `update` or `same`; `delete`, `keep` or `unknown` for one that only the Hub has."""

    path: str
    action: str
    size: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True)
class Target:
    """Where a folder goes and under which conditions."""

    repo_id: str
    revision: str = "main"
    tag: str | None = None
    pull_request: bool = False
    create: bool = False
    unknown_files: str = "refuse"  # or "keep", "delete"
    move_tag: bool = False

    def __post_init__(self) -> None:
        require_repo_id(self.repo_id)
        require_ref(self.revision, "branch")
        require_ref(self.tag, "tag")
        if self.pull_request and (self.tag or self.revision != "main"):
            remedy = "tag after the pull request is merged"
            raise UsageError("--pr goes with neither --tag nor --revision", remedy)
        if self.unknown_files not in ("refuse", "keep", "delete"):
            raise UsageError(f"unknown_files={self.unknown_files!r} must be refuse, keep or delete")


@dataclass
class Plan:
    """What a push would do."""

    target: Target
    endpoint: str
    repo_exists: bool
    branch_exists: bool
    private: bool
    parent: str | None
    files: list[PlannedFile] = field(default_factory=list)
    tag_commit: str | None = None

    @property
    def changes(self) -> list[PlannedFile]:
        """Return the files that a commit would touch."""
        return [f for f in self.files if f.action in ("add", "update", "delete")]


def remote_tree(client: Client, repo_id: str, revision: str) -> dict[str, Any]:
    """Return path -> file (size, lfs, blob_id) at a revision."""
    tree = client.call(
        f"listing {repo_id} at {revision[:12]}",
        lambda: list(client.api.list_repo_tree(repo_id, recursive=True, revision=revision)),
        attempts=1,
    )
    return {entry.path: entry for entry in tree if hasattr(entry, "blob_id")}


def is_same(entry: Any, sha256: str, git_sha1: str) -> bool:
    """Say whether a file on the Hub has this content: LFS knows sha256, git its own sha1."""
    return bool(entry.lfs.sha256 == sha256 if entry.lfs else entry.blob_id == git_sha1)


def make_plan(client: Client, folder: Path, target: Target) -> Plan:
    """Compare a folder with the Hub."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "make it with `seqpe-zoo stage`")
    plan = read_remote(client, target)
    remote = remote_tree(client, target.repo_id, plan.parent) if plan.parent else {}
    names = list_files(folder)
    for name in names:
        sha256, git_sha1 = sha256_of(folder / name), git_sha1_of(folder / name)
        action = "add" if name not in remote else "update"
        if name in remote and is_same(remote[name], sha256, git_sha1):
            action = "same"
        plan.files.append(PlannedFile(name, action, (folder / name).stat().st_size, sha256, git_sha1))
    action = "unknown" if target.unknown_files == "refuse" else target.unknown_files
    for name in sorted(set(remote) - set(names) - _HUB_OWN_FILES):
        entry = remote[name]
        sha256, git_sha1 = (entry.lfs.sha256, None) if entry.lfs else (None, entry.blob_id)
        plan.files.append(PlannedFile(name, action, entry.size, sha256, git_sha1))
    return plan


def read_remote(client: Client, target: Target) -> Plan:
    """Return an empty plan that knows the repository, the branch's head and the tag."""
    api, repo_id = client.api, target.repo_id
    plan = Plan(target, client.endpoint, repo_exists=True, branch_exists=True, private=True, parent=None)
    try:
        info = client.call(f"looking up {repo_id}", api.repo_info, repo_id)
    except RepositoryMissing:
        if not target.create:
            raise
        plan.repo_exists = plan.branch_exists = False
        return plan
    plan.private = bool(info.private)
    refs = client.call(f"listing the branches of {repo_id}", api.list_repo_refs, repo_id)
    branches = {ref.name: ref.target_commit for ref in refs.branches}
    plan.parent = branches.get(target.revision)
    if plan.parent is None:
        if not target.create:
            raise RepositoryMissing(f"{repo_id} has no branch {target.revision!r}")
        plan.branch_exists, plan.parent = False, info.sha
    plan.tag_commit = tag_commit(client, repo_id, target.tag, refs) if target.tag else None
    return plan


def tag_commit(client: Client, repo_id: str, tag: str, refs: Any = None) -> str | None:
    """Return the commit a tag names, or None when there is no such tag."""
    refs = refs or client.call("listing the tags", client.api.list_repo_refs, repo_id)
    if not any(ref.name == tag for ref in refs.tags):
        return None
    # An annotated tag is an object of its own; asking for the revision gives the commit in every case.
    doing = f"looking up the tag {tag}"
    return str(client.call(doing, client.api.repo_info, repo_id, revision=tag).sha)


def format_plan(plan: Plan) -> str:
    """Return the plan as a table."""
    target = plan.target
    visibility = ("private" if plan.private else "PUBLIC") if plan.repo_exists else "private (to be created)"
    branch = target.revision + ("" if plan.branch_exists or not plan.repo_exists else " (to be created)")
    lines = [
        f"repository  {target.repo_id} at {plan.endpoint}, {visibility}",
        f"branch      {'a new pull request' if target.pull_request else branch}",
        f"parent      {plan.parent or 'none yet'}",
        f"tag         {_tag_line(plan)}",
        "",
        f"{'action':8} {'size':>12}  {'sha256 / git sha1':17}  path",
    ]
    for file in plan.files:
        name = (file.sha256 or file.git_sha1 or "")[:16]
        lines.append(f"{file.action:8} {file.size:>12,}  {name:17}  {file.path}")
    counts = Counter(file.action for file in plan.files)
    sent = sum(file.size for file in plan.files if file.action in ("add", "update"))
    summary = ", ".join(f"{count} {action}" for action, count in counts.items()) or "no files"
    nothing = "" if plan.changes else "; nothing to commit"
    return "\n".join([*lines, "", f"{summary}; {sent:,} bytes to commit{nothing}"])


def _tag_line(plan: Plan) -> str:
    tag = plan.target.tag
    if not tag:
        return "none"
    if plan.tag_commit is None:
        return f"{tag} (to be created)"
    return f"{tag} exists at {plan.tag_commit[:12]}" + ("; would be moved" if plan.target.move_tag else "")
