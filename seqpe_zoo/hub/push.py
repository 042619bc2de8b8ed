"""Send a staged folder: one commit on the planned parent, then the tag, then the collection, then visibility.

Every step can be repeated: a run that was killed anywhere is repaired by running the same command again. New
repositories are private; they are made public only after what was sent was downloaded again and verified.
How the commit itself is made exactly once is in `commit.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .check import check_static, require_receipt
from .client import Client, whoami
from .commit import Progress, require_tree, send_commit, set_tag
from .errors import (
    Conflict,
    NotConfirmed,
    RepositoryMissing,
    TagExists,
    UnknownRemoteFiles,
)
from .plan import Plan, Target, make_plan, read_remote

logger = logging.getLogger(__name__)


@dataclass
class Pushed:
    """What a push did."""

    repo_id: str
    commit: str
    committed: bool  # False when the Hub had everything already
    tag: str | None
    pull_request_url: str | None
    private: bool


def push(
    client: Client,
    folder: Path,
    target: Target,
    *,
    yes: bool,
    message: str | None = None,
    public: bool = False,
    verify: Callable[[str], None] | None = None,
    collection: str | None = None,
    checked: bool = True,
    show: Callable[[Plan], None] = lambda plan: None,
    progress: Progress = lambda line: None,
) -> Pushed:
    """Publish a folder.

    Args:
        client: an open client; its deadline holds for the whole push.
        folder: a folder that passed `check`.
        target: repository, branch, tag and conditions.
        yes: without it the plan is shown and `NotConfirmed` raised.
        message: of the commit.
        public: make the repository public at the end, after `verify`.
        verify: called with the new commit; raises if what is on the Hub is not what was sent.
        collection: slug of a collection to add the repository to.
        checked: ask for the receipt of `check`. The static checks are made in any case.
        show: called with the plan before anything is sent.
        progress: called with a line a step.
    """
    check_static(folder)
    if checked:
        require_receipt(folder)
    user, role = whoami(client)
    plan = make_plan(client, folder, target)
    show(plan)
    _refuse(plan)
    if not yes:
        raise NotConfirmed("this was the plan only")
    progress(f"signed in as {user} ({role})")
    _require_write_access(client, plan)
    plan = _make_place(client, folder, plan, progress)
    commit, pull_request = plan.parent or "", None
    if plan.changes:
        progress(f"sending {len(plan.changes)} change(s) as one commit on {commit[:12]}")
        commit, pull_request = send_commit(client, folder, plan, message or _default_message(plan))
        require_tree(client, plan, commit)
        progress(f"commit {commit[:12]} holds exactly what was planned")
    else:
        progress("the Hub has these files already; no commit is made")
    if target.tag:
        set_tag(client, target, commit, progress)
    if collection:
        _add_to_collection(client, collection, target.repo_id, progress)
    if verify is not None:
        progress("verifying: downloading and loading what is on the Hub now")
        verify(commit)
    private = plan.private
    if public and private:
        client.call(
            "making the repository public", client.api.update_repo_settings, target.repo_id, private=False
        )
        progress(f"{target.repo_id} is public")
        private = False
    return Pushed(target.repo_id, commit, bool(plan.changes), target.tag, pull_request, private)


def _default_message(plan: Plan) -> str:
    return f"seqpe_zoo: {plan.target.tag or ', '.join(file.path for file in plan.changes[:3])}"


def _refuse(plan: Plan) -> None:
    """Stop before anything is sent when the plan would surprise somebody."""
    if plan.unknown:
        names = ", ".join(file.path for file in plan.unknown[:8])
        raise UnknownRemoteFiles(
            f"{plan.target.repo_id} holds files that are not in the staged folder: {names}"
        )
    moved = plan.tag_commit is not None and (plan.changes or plan.tag_commit != plan.parent)
    if moved and not plan.target.move_tag:
        raise TagExists(f"the tag {plan.target.tag} names the commit {(plan.tag_commit or '')[:12]} already")


def _require_write_access(client: Client, plan: Plan) -> None:
    """Ask before data moves. create_repo(exist_ok=True) is no such test: it passes with a read-only token."""
    if not plan.repo_exists:
        return
    try:
        client.call(
            f"asking for write access to {plan.target.repo_id}",
            client.api.auth_check,
            plan.target.repo_id,
            write=True,
        )
    except RepositoryMissing:
        logger.info("this server has no write check; the upload itself will tell")


def _make_place(client: Client, folder: Path, plan: Plan, progress: Progress) -> Plan:
    """Create the repository (private) or branch if planned, and plan again on what is there then."""
    target = plan.target
    if plan.repo_exists and plan.branch_exists:
        return plan
    doing = f"creating {target.repo_id}"
    if not plan.repo_exists:
        try:
            client.call(doing, client.api.create_repo, target.repo_id, private=True, exist_ok=False)
            progress(f"created the private repository {target.repo_id}")
        except Conflict:  # a lost answer, or somebody was faster; the new plan shows what is there
            progress(f"{target.repo_id} exists already")
    if not read_remote(client, target).branch_exists:
        client.call(
            f"creating the branch {target.revision}",
            client.api.create_branch,
            target.repo_id,
            branch=target.revision,
            exist_ok=True,
        )
        progress(f"created the branch {target.revision}")
    fresh = make_plan(client, folder, target)
    if not plan.repo_exists and not fresh.private:
        raise Conflict(f"{target.repo_id} was made by somebody else meanwhile, and it is public")
    _refuse(fresh)
    return fresh


def _add_to_collection(client: Client, slug: str, repo_id: str, progress: Progress) -> None:
    client.call(
        f"adding {repo_id} to the collection {slug}",
        client.api.add_collection_item,
        slug,
        repo_id,
        "model",
        exists_ok=True,
    )
    progress(f"{repo_id} is in the collection {slug}")
