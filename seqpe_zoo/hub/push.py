"""Send a staged folder: one commit on the planned parent, then the tag, then the collection, then visibility.

Every step can be repeated: a run that was killed anywhere is repaired by running the same command again. The
commit carries its parent, so the Hub itself refuses a second one (412). When the answer to the commit is
lost, the history is read to see whether it landed; it is never guessed and never sent blindly again. New
repositories are private; they are made public only after what was sent was downloaded again and verified.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .check import check_static, require_receipt
from .client import ATTEMPTS, Client, request_path, retry_wait, whoami
from .errors import (
    Conflict,
    ConnectionLost,
    HubError,
    NotConfirmed,
    ParentMoved,
    RepositoryMissing,
    ServerBusy,
    TagExists,
    UnknownRemoteFiles,
    VerificationFailed,
    chain,
    explain,
)
from .plan import Plan, Target, is_same, make_plan, read_remote, remote_tree

logger = logging.getLogger(__name__)
Progress = Callable[[str], None]


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
        _require_tree(client, plan, commit)
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
    _refuse(fresh)
    return fresh


# The commit -------------------------------------------------------------------------------------------------


def send_commit(client: Client, folder: Path, plan: Plan, message: str) -> tuple[str, str | None]:
    """Make the planned commit exactly once and return its hash and, for a pull request, its address.

    After a failure the history is read first: if the commit is there it is ours. Only if it is not, and the
    failure was one that passes, it is sent again, on the same parent. A pull request that holds the planned
    files already is taken as it is.
    """
    target = plan.target
    if target.pull_request and (open_one := _find_landed_pull_request(client, plan)) is not None:
        return open_one
    for attempt in range(1, ATTEMPTS + 1):
        try:
            info = client.api.create_commit(
                target.repo_id,
                _operations(folder, plan),
                commit_message=message,
                revision=target.revision,
                parent_commit=plan.parent,
                create_pr=target.pull_request or None,
            )
            return str(info.oid), info.pr_url
        except Exception as error:
            explained = explain(error, f"committing to {target.repo_id}")
            landed = _find_landed(client, plan, explained)
            if landed is not None:
                logger.warning("the answer to the commit was lost, but the commit is there: %s", landed[0])
                return landed
            wait = _commit_retry_wait(error, attempt)
            if target.pull_request and isinstance(explained, ConnectionLost):
                wait = None  # nothing on the server would refuse a second pull request that was sent blindly
            if wait is None or attempt == ATTEMPTS:
                raise explained from error
            client.wait(f"committing to {target.repo_id}", wait, attempt, error)
    raise AssertionError("unreachable")


def _commit_retry_wait(error: Exception, attempt: int) -> float | None:
    """Return the wait after a failure of the requests the client does not retry: validation, commit."""
    wait = retry_wait(error, attempt)
    paths = [path for path in map(request_path, chain(error)) if path is not None]
    unretried = any(path.endswith("/validate-yaml") or "/commit/" in path for path in paths)
    return wait if unretried else None


def _operations(folder: Path, plan: Plan) -> list[Any]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations: list[Any] = []
    for file in plan.changes:
        if file.action == "delete":
            operations.append(CommitOperationDelete(file.path))
        else:
            operations.append(CommitOperationAdd(file.path, str(folder / file.path)))
    return operations


def _find_landed(client: Client, plan: Plan, why: HubError) -> tuple[str, str | None] | None:
    """Look in the history for a commit on the planned parent that holds exactly the planned files.

    Only failures after which the commit may exist are looked into: a lost connection, a busy server, a moved
    parent.
    """
    if not isinstance(why, ParentMoved | ServerBusy | ConnectionLost):
        return None
    try:
        if plan.target.pull_request:
            return _find_landed_pull_request(client, plan)
        history = _history(client, plan.target.repo_id, plan.target.revision)
        for commit, parent in zip(history, [*history[1:], None], strict=True):
            if parent == plan.parent and not _tree_problems(client, plan, commit):
                return commit, None
    except HubError as error:
        raise type(error)(
            f"{why.args[0]}; afterwards the history could not be read ({error.args[0]})",
            "run the same command again: it finds out whether the commit landed and makes no second one",
        ) from error
    return None


def _find_landed_pull_request(client: Client, plan: Plan) -> tuple[str, str | None] | None:
    repo_id = plan.target.repo_id
    refs = client.call(
        "listing the pull requests", client.api.list_repo_refs, repo_id, include_pull_requests=True
    )
    for ref in sorted(refs.pull_requests or [], key=lambda ref: int(ref.ref.rsplit("/", 1)[1]), reverse=True):
        if plan.parent in _history(client, repo_id, ref.ref)[1:2] and not _tree_problems(
            client, plan, ref.target_commit
        ):
            return ref.target_commit, f"{client.endpoint}/{repo_id}/discussions/{ref.ref.rsplit('/', 1)[1]}"
    return None


def _history(client: Client, repo_id: str, revision: str) -> list[str]:
    commits = client.once("reading the history", client.api.list_repo_commits, repo_id, revision=revision)
    return [commit.commit_id for commit in commits]


def _tree_problems(client: Client, plan: Plan, commit: str) -> list[str]:
    """Return how the files at a commit differ from the plan."""
    remote = remote_tree(client, plan.target.repo_id, commit)
    problems = []
    for file in plan.files:
        entry = remote.get(file.path)
        if file.action == "delete":
            problems += [f"{file.path} is still there"] if entry else []
        elif entry is None:
            problems.append(f"{file.path} is missing")
        elif file.action != "keep" and not is_same(entry, file.sha256 or "", file.git_sha1 or ""):
            problems.append(f"{file.path} has other content")
    return problems


def _require_tree(client: Client, plan: Plan, commit: str) -> None:
    """Refuse to tag a commit that is not what was planned (a server-side .gitignore drops files silently)."""
    if problems := _tree_problems(client, plan, commit):
        raise VerificationFailed(f"the commit {commit[:12]} differs from the plan: {'; '.join(problems[:5])}")


# Tag and collection -----------------------------------------------------------------------------------------


def set_tag(client: Client, target: Target, commit: str, progress: Progress) -> None:
    """Tag the commit. An existing tag is moved only if told, and a tag on the same commit is fine."""
    api, repo_id, tag = client.api, target.repo_id, target.tag or ""
    current = _tag_commit(client, repo_id, tag)
    if current == commit:
        progress(f"the tag {tag} is on this commit already")
        return
    if current is not None:
        if not target.move_tag:
            raise TagExists(
                f"the tag {tag} names the commit {current[:12]} already; the new commit is {commit[:12]}"
            )
        client.call(f"removing the tag {tag}", api.delete_tag, repo_id, tag=tag)
    try:
        client.call(f"tagging {commit[:12]} as {tag}", api.create_tag, repo_id, tag=tag, revision=commit)
    except Conflict:
        # The answer to an earlier attempt was lost, or somebody else set the tag: look where it points.
        if _tag_commit(client, repo_id, tag) != commit:
            raise TagExists(
                f"the tag {tag} was set to another commit meanwhile; yours is {commit[:12]}"
            ) from None
    progress(f"tagged {commit[:12]} as {tag}")


def _tag_commit(client: Client, repo_id: str, tag: str) -> str | None:
    refs = client.call("listing the tags", client.api.list_repo_refs, repo_id)
    if not any(ref.name == tag for ref in refs.tags):
        return None
    return str(client.call(f"looking up the tag {tag}", client.api.repo_info, repo_id, revision=tag).sha)


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
