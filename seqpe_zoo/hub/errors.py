"""What can go wrong when publishing: one class a remedy, with an exit code and a sentence.

`explain` turns what huggingface_hub, httpx and the operating system raise into these classes. `redact`
removes tokens; `guard_output` makes logs, warnings and tracebacks of this process pass through it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import sys
import traceback
from typing import Any

UNEXPECTED = "this is unexpected; please report it"
_TOKEN = re.compile(r"\bhf_\w+")
# Names in code and settings that begin like a token. Everything else that does is treated as one.
_NOT_TOKENS = frozenset(
    "hf_hub hf_hub_download hf_hub_id hf_hub_url hf_xet hf_api hf_raise_for_status hf_transfer".split()
)


def redact(text: str) -> str:
    """Return the text with every Hub token replaced by `hf_***`."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        secret = os.environ.get(name)
        if secret and len(secret) > 3:
            text = text.replace(secret, "hf_***")
    return _TOKEN.sub(lambda match: match[0] if match[0] in _NOT_TOKENS else "hf_***", text)


class HubError(Exception):
    """A failure with a remedy. `str()` is safe to print: tokens are removed. Exit codes: see below."""

    exit_code = 1
    remedy = ""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return redact(f"{message}\n  what to do: {self.remedy}" if self.remedy else message)


class NotConfirmed(HubError):
    """`push` without `--yes`."""


class NotAuthenticated(HubError):
    """No token, or one the Hub does not know (401)."""


class NotPermitted(HubError):
    """The token may not do this (403)."""


class RepositoryMissing(HubError):
    """No such repository, revision or collection, or one this token may not see (404)."""


class WrongEndpoint(HubError):
    """Something answers at HF_ENDPOINT, but it is not a Hub."""


class XetUnavailable(HubError):
    """The server has no xet storage, and the client does not fall back by itself."""


class Conflict(HubError):
    """The Hub reports a conflict (409)."""


class ParentMoved(HubError):
    """Somebody committed since the plan was made (412)."""


class ServerBusy(HubError):
    """429 or 5xx, still so after the retries."""


class ConnectionLost(HubError):
    """The network failed, still so after the retries."""


class DeadlineExceeded(HubError):
    """The time given with --deadline is over."""


class OfflineMode(HubError):
    """HF_HUB_OFFLINE is set."""


class Refused(HubError):
    """The Hub refuses the content (400, 413, 422)."""


class UsageError(HubError):
    """Arguments that do not fit together, or a folder that is not what it should be."""


class CheckFailed(HubError):
    """The staged folder has defects, listed in `problems`."""

    def __init__(self, problems: list[str], remedy: str | None = None) -> None:
        super().__init__(
            "\n".join([f"{len(problems)} problem(s) found:", *(f"  - {p}" for p in problems)]), remedy
        )
        self.problems = problems


class DiskFull(HubError):
    """No room, or no permission to write more."""


class TagExists(HubError):
    """The tag names another commit already."""


class UnknownRemoteFiles(HubError):
    """The repository holds files that are not in the staged folder."""


class VerificationFailed(HubError):
    """What came back from the Hub is not what was sent."""


for _kind, _exit_code, _remedy in (
    (UsageError, 2, ""),
    (NotConfirmed, 3, "nothing was sent; read the plan above and repeat the command with --yes"),
    (NotAuthenticated, 10, "log in with `hf auth login`, or set HF_TOKEN to a valid token with write access"),
    (NotPermitted, 11, "use a token with write access to this repository (Settings > Access Tokens)"),
    (RepositoryMissing, 12, "check the spelling; to make a new private repository or branch, add --create"),
    (WrongEndpoint, 13, "check HF_ENDPOINT; unset it to speak to the Hugging Face Hub"),
    (XetUnavailable, 14, "set HF_HUB_DISABLE_XET=1 and run the same command again; nothing was committed"),
    (Conflict, 15, "run the same command again: the plan is made anew from what is on the Hub"),
    (ParentMoved, 16, "nothing was overwritten; run plan again, look at what changed, then push"),
    (ServerBusy, 17, "wait and run the same command again; finished uploads are not sent twice"),
    (ConnectionLost, 18, "check the connection, run the same command again; finished uploads stay"),
    (DeadlineExceeded, 19, "run the same command again, with a longer --deadline; finished uploads stay"),
    (OfflineMode, 20, "unset HF_HUB_OFFLINE to reach the Hub"),
    (Refused, 21, "correct what the Hub names, then stage and check again"),
    (CheckFailed, 30, "correct these, then stage again with --overwrite and check again; nothing was sent"),
    (DiskFull, 32, "free some space, then run the same command again; nothing half-made stays"),
    (TagExists, 40, "choose a new tag; or, if people who pinned the old one may be surprised, --move-tag"),
    (UnknownRemoteFiles, 41, "--keep-unknown leaves them there, --delete-unknown removes them"),
    (VerificationFailed, 50, "do not announce this commit; run verify again; if it fails again, push again"),
):
    _kind.exit_code, _kind.remedy = _exit_code, _remedy
del _kind


_BY_STATUS = {
    401: NotAuthenticated,
    403: NotPermitted,
    404: RepositoryMissing,
    409: Conflict,
    412: ParentMoved,
}


def _status_of(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None)


def chain(error: BaseException) -> list[BaseException]:
    """Return the error and what caused it, outermost first (LFS uploads wrap theirs in RuntimeError)."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def explain(error: BaseException, doing: str) -> HubError:
    """Return the error of this module that says what `error` means for somebody who was `doing` something."""
    for link in chain(error):
        known = _explain_one(link, doing)
        if known is not None:
            return known
    return HubError(f"{doing} failed: {type(error).__name__}: {error}", UNEXPECTED)


def _explain_one(error: BaseException, doing: str) -> HubError | None:
    from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.utils import httpx

    if isinstance(error, HubError):
        return error
    if isinstance(error, OfflineModeIsEnabled):
        return OfflineMode(f"{doing}: the Hub may not be reached in offline mode")
    if isinstance(error, LocalTokenNotFoundError):
        return NotAuthenticated(f"{doing}: no token found")
    if _status_of(error) is not None:
        return _explain_status(error, doing)
    if isinstance(error, json.JSONDecodeError):
        return WrongEndpoint(f"{doing}: the answer is not JSON; this is no Hub, or a proxy answered for it")
    if isinstance(error, httpx.TransportError):
        return ConnectionLost(f"{doing}: {type(error).__name__}: {error}")
    if re.search(r"404.*xet-(write|read)-token", str(error)):
        return XetUnavailable(f"{doing}: this server has no xet storage")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(f"{doing}: {error.strerror}")
    if isinstance(error, ConnectionError):
        return ConnectionLost(f"{doing}: {error}")
    if isinstance(error, OSError) and error.filename:
        return HubError(f"{doing}: {error.strerror}: {error.filename}", "look at this file or folder")
    if isinstance(error, ValueError) and "Invalid metadata in README.md" in str(error):
        return Refused(f"{doing}: {error}", "correct facts.yaml, then stage and check again")
    return None


def _explain_status(error: Any, doing: str) -> HubError:
    status = _status_of(error)
    said = error.response.headers.get("X-Error-Message") or getattr(error, "server_message", None) or ""
    text = f"{doing}: the Hub answered {status}" + (f" ({said})" if said else "")
    kind = str(error.response.headers.get("Content-Type", ""))
    if status == 404 and "html" in kind and "X-Error-Code" not in error.response.headers:
        return WrongEndpoint(f"{doing}: {error.response.url.host} answers with a web page, not as a Hub")
    if error.response.headers.get("X-Error-Code") == "RepoNotFound":
        return RepositoryMissing(text)
    busy = status in (408, 429) or (status or 0) >= 500
    return _BY_STATUS.get(status or 0, ServerBusy if busy else Refused)(text)


def guard_output() -> None:
    """Pass log records, warnings and uncaught tracebacks of this process through `redact`."""
    factory = logging.getLogRecordFactory()
    if getattr(factory, "redacts", False):
        return

    def redacting(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = factory(*args, **kwargs)
        record.msg, record.args = redact(record.getMessage()), ()
        return record

    redacting.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(redacting)

    def report(kind: Any, error: Any, trace: Any) -> None:
        sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = report
