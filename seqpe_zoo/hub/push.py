"""Send a staged folder: one commit on the planned parent, then the tag, then the collection, then visibility.

Every step can be repeated: a run that was killed anywhere is repaired by running the same command again. New
repositories are private; they are made public only after what was sent was downloaded again and verified.
How the commit itself is made exactly once is in `commit.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .check import check_static, require_receipt
from .client import Client, whoami
from .commit import Progress, require_tree, send_commit, set_tag
from .errors import Conflict, NotConfirmed, RepositoryMissing, TagExists, UnknownRemoteFiles
from .plan import Plan, Target, make_plan, read_remote


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
) -> str:
    """Publish a folder and return where it is, at which commit.

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
    commit, place = plan.parent or "", f"{client.endpoint}/{target.repo_id}"
    if plan.changes:
        progress(f"sending {len(plan.changes)} change(s) as one commit on {commit[:12]}")
        what = target.tag or ", ".join(file.path for file in plan.changes[:3])
        commit, pull_request = send_commit(client, folder, plan, message or f"seqpe_zoo: {what}")
        place = pull_request or place
        require_tree(client, plan, commit)
        progress(f"commit {commit[:12]} holds exactly what was planned")
    else:
        progress("the Hub has these files already; no commit is made")
    if target.tag:
        set_tag(client, target, commit, progress)
    api, repo_id = client.api, target.repo_id
    if collection:
        doing = f"adding {repo_id} to the collection {collection}"
        client.call(doing, api.add_collection_item, collection, repo_id, "model", exists_ok=True)
        progress(f"{repo_id} is in the collection {collection}")
    if verify is not None:
        progress("verifying: downloading and loading what is on the Hub now")
        verify(commit)
    if public and plan.private:
        client.call("making the repository public", api.update_repo_settings, repo_id, private=False)
        progress(f"{repo_id} is public")
    return f"{place} at {commit}{', private' if plan.private and not public else ''}"


def _refuse(plan: Plan) -> None:
    """Stop before anything is sent when the plan would surprise somebody."""
    if unknown := [file.path for file in plan.files if file.action == "unknown"]:
        what = f"files that are not in the staged folder: {', '.join(unknown[:8])}"
        raise UnknownRemoteFiles(f"{plan.target.repo_id} holds {what}")
    moved = plan.tag_commit is not None and (plan.changes or plan.tag_commit != plan.parent)
    if moved and not plan.target.move_tag:
        raise TagExists(f"the tag {plan.target.tag} names the commit {(plan.tag_commit or '')[:12]} already")


def _require_write_access(client: Client, plan: Plan) -> None:
    """Ask before data moves. create_repo(exist_ok=True) is no such test: it passes with a read-only token."""
    if plan.repo_exists:
        doing = f"asking for write access to {plan.target.repo_id}"
        with suppress(RepositoryMissing):  # a server without this check: the upload itself will tell
            client.call(doing, client.api.auth_check, plan.target.repo_id, write=True)


def _make_place(client: Client, folder: Path, plan: Plan, progress: Progress) -> Plan:
    """Create the repository (private) or branch if planned, and plan again on what is there then."""
    target, api = plan.target, client.api
    if plan.repo_exists and plan.branch_exists:
        return plan
    if not plan.repo_exists:
        try:
            doing = f"creating {target.repo_id}"
            client.call(doing, api.create_repo, target.repo_id, private=True, exist_ok=False)
            progress(f"created the private repository {target.repo_id}")
        except Conflict:  # a lost answer, or somebody was faster; the new plan shows what is there
            progress(f"{target.repo_id} exists already")
    if not read_remote(client, target).branch_exists:
        doing = f"creating the branch {target.revision}"
        client.call(doing, api.create_branch, target.repo_id, branch=target.revision, exist_ok=True)
        progress(f"created the branch {target.revision}")
    fresh = make_plan(client, folder, target)
    if not plan.repo_exists and not fresh.private:
        raise Conflict(f"{target.repo_id} was made by somebody else meanwhile, and it is public")
    _refuse(fresh)
    return fresh
