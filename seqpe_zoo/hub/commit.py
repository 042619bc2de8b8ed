"""One commit exactly once, and its tag: what `push` and `sync-code` send.

The commit carries its parent, so the Hub itself refuses a second one (412). When the answer to it is lost,
the history is read to see whether it landed; it is never guessed and never sent blindly again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .client import ATTEMPTS, Client, request_path, retry_wait
from .errors import (
    Conflict,
    ConnectionLost,
    HubError,
    ParentMoved,
    ServerBusy,
    TagExists,
    VerificationFailed,
    chain,
)
from .plan import Plan, Target, is_same, remote_tree, tag_commit

logger = logging.getLogger(__name__)
Progress = Callable[[str], None]


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
            explained = client.explain(error, f"committing to {target.repo_id}")
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
    doing, read = "listing the pull requests", client.api.list_repo_refs
    refs = client.call(doing, read, repo_id, include_pull_requests=True).pull_requests or []
    numbered = {int(ref.ref.rsplit("/", 1)[1]): ref for ref in refs}
    for number, ref in sorted(numbered.items(), reverse=True):
        on_parent = plan.parent in _history(client, repo_id, ref.ref)[1:2]
        if on_parent and not _tree_problems(client, plan, ref.target_commit):
            return ref.target_commit, f"{client.endpoint}/{repo_id}/discussions/{number}"
    return None


def _history(client: Client, repo_id: str, revision: str) -> list[str]:
    doing, read = "reading the history", client.api.list_repo_commits
    commits = client.call(doing, read, repo_id, revision=revision, attempts=1)
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


def require_tree(client: Client, plan: Plan, commit: str) -> None:
    """Refuse to tag a commit that is not what was planned (a server-side .gitignore drops files silently)."""
    if problems := _tree_problems(client, plan, commit):
        raise VerificationFailed(f"the commit {commit[:12]} differs from the plan: {'; '.join(problems[:5])}")


def set_tag(client: Client, target: Target, commit: str, progress: Progress) -> None:
    """Tag the commit. An existing tag is moved only if told, and a tag on the same commit is fine."""
    api, repo_id, tag = client.api, target.repo_id, target.tag or ""
    current = tag_commit(client, repo_id, tag)
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
        if tag_commit(client, repo_id, tag) != commit:
            raise TagExists(
                f"the tag {tag} was set to another commit meanwhile; yours is {commit[:12]}"
            ) from None
    progress(f"tagged {commit[:12]} as {tag}")
