"""The Hub client as this package uses it: timeouts, a deadline, retries exactly where the client has none.

huggingface_hub retries uploads, listings and downloads itself, but waits without limit for a silent peer and
obeys any `Retry-After`. `open_client` gives its HTTP session timeouts and a deadline, and breaks off hf_xet,
which has a session of its own, when the deadline is over. The calls that the client does not retry (whoami,
create_repo, repo_info, refs, tags, settings, card validation, the commit itself) go through `Client.call`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .errors import (
    DeadlineExceeded,
    HubError,
    NotAuthenticated,
    OfflineMode,
    RepositoryMissing,
    UsageError,
    WrongEndpoint,
    chain,
    explain,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
RETRIED_STATUS = (408, 429, 500, 502, 503, 504)
ATTEMPTS = 5
TIMEOUTS = {"connect": 20.0, "read": 120.0, "write": 120.0, "pool": 60.0}  # seconds without a byte


class Deadline:
    """A point in time after which no request begins and no upload goes on."""

    def __init__(self, seconds: float) -> None:
        if not 0 < seconds < math.inf:
            raise UsageError(f"a deadline of {seconds} seconds is none", "give a number above zero")
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that remain."""
        return self.end - time.monotonic()

    def check(self, wait: float = 0.0) -> None:
        """Raise when the deadline is over, or would be after waiting."""
        if self.left() <= wait:
            asked = f" (the server asks to wait {wait:.0f} s)" if wait else ""
            raise DeadlineExceeded(f"the deadline of {self.seconds:.0f} s is over{asked}")


def _guarded_session(deadline: Deadline) -> Any:
    """Return an HTTP session that gives every request timeouts and stops at the deadline."""
    from huggingface_hub.utils import httpx
    from huggingface_hub.utils._http import hf_request_event_hook

    class GuardedStream(httpx.SyncByteStream):
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __iter__(self) -> Iterator[bytes]:
            for piece in self.stream:
                deadline.check()
                yield piece

        def close(self) -> None:
            self.stream.close()

    def before(request: Any) -> None:
        deadline.check()
        # Some calls of the client pass timeout=None, which would override the session's.
        given, left = request.extensions.get("timeout") or {}, max(deadline.left(), 0.1)
        timeout = {key: min(given.get(key) or value, left) for key, value in TIMEOUTS.items()}
        request.extensions = {**request.extensions, "timeout": timeout}
        request.stream = GuardedStream(request.stream)

    def after(response: Any) -> None:
        asked = response.headers.get("Retry-After", "")
        if response.status_code in RETRIED_STATUS and asked.isdigit():
            deadline.check(float(asked))

    hooks = {"request": [hf_request_event_hook, before], "response": [after]}
    return httpx.Client(event_hooks=hooks, follow_redirects=True)


class Client:
    """huggingface_hub's `HfApi` behind a deadline. Make one with `open_client`."""

    def __init__(self, api: Any, deadline: Deadline) -> None:
        self.api = api
        self.deadline = deadline

    @property
    def endpoint(self) -> str:
        """Return the address of the Hub."""
        return str(self.api.endpoint)

    def call(
        self, doing: str, function: Callable[..., T], *args: Any, attempts: int = ATTEMPTS, **kwargs: Any
    ) -> T:
        """Call an API function that may be repeated without harm; retry what may pass, explain what does not.

        Functions that the library retries by itself are called with `attempts=1`.
        """
        for attempt in range(1, attempts + 1):
            try:
                return function(*args, **kwargs)
            except Exception as error:
                wait = retry_wait(error, attempt)
                if wait is None or attempt == attempts:
                    raise self.explain(error, doing) from error
                self.wait(doing, wait, attempt, error)
        raise AssertionError("unreachable")

    def download(self, repo_id: str, commit: str, **options: Any) -> Path:
        """Download a commit. The client resumes what ends early, but not what a reset connection ends."""
        from huggingface_hub import snapshot_download

        doing = f"downloading {repo_id} at {commit[:12]}"
        token = self.api.token
        return Path(self.call(doing, snapshot_download, repo_id, revision=commit, token=token, **options))

    def explain(self, error: Exception, doing: str) -> HubError:
        """Translate an error; one of no known kind after the deadline is what breaking off hf_xet raises."""
        explained = explain(error, doing)
        if type(explained) is HubError and self.deadline.left() <= 0:
            return DeadlineExceeded(f"{doing}: the deadline of {self.deadline.seconds:.0f} s is over")
        return explained

    def wait(self, doing: str, seconds: float, attempt: int, error: BaseException) -> None:
        """Sleep before another attempt, unless the deadline comes first."""
        self.deadline.check(seconds)
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = f"status {status}" if status else type(error).__name__
        logger.warning("%s: %s; attempt %d of %d in %.0f s", doing, why, attempt + 1, ATTEMPTS, seconds)
        time.sleep(seconds)


def retry_wait(error: BaseException, attempt: int) -> float | None:
    """Return how long to wait before trying again, or None when trying again is useless."""
    from huggingface_hub.utils import httpx

    for link in chain(error):
        response = getattr(link, "response", None)
        if response is not None:
            if response.status_code not in RETRIED_STATUS:
                return None
            asked = response.headers.get("Retry-After", "")
            return float(asked) if asked.isdigit() else backoff(attempt)
        if isinstance(link, httpx.TransportError) and not isinstance(link, httpx.UnsupportedProtocol):
            return backoff(attempt)
    return None


def request_path(error: BaseException) -> str | None:
    """Return the path of the request an error belongs to, if it belongs to one."""
    try:
        request = getattr(getattr(error, "response", None), "request", None) or getattr(
            error, "request", None
        )
    except RuntimeError:  # httpx: the property was not set
        return None
    return str(request.url.path) if request is not None else None


def backoff(attempt: int) -> float:
    """Return 1, 2, 4, 8, 8 ... seconds."""
    return float(min(2 ** (attempt - 1), 8))


@contextmanager
def open_client(deadline: float = 7200.0, token: str | None = None) -> Iterator[Client]:
    """Give a client that stops after `deadline` seconds; afterwards restore the library's own session."""
    from huggingface_hub import HfApi, constants, get_token, set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    limit = Deadline(deadline)
    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise OfflineMode("HF_HUB_OFFLINE is set")
    known = token or get_token() or ""
    if not (known.isascii() and known.isprintable()) or " " in known:
        raise NotAuthenticated("the token has a character that no token has; copy it again")
    set_client_factory(lambda: _guarded_session(limit))
    alarm = threading.Timer(min(deadline, threading.TIMEOUT_MAX), _break_off_xet)
    alarm.daemon = True
    alarm.start()
    try:
        yield Client(HfApi(token=token), limit)
    finally:
        alarm.cancel()
        set_client_factory(default_client_factory)


def _break_off_xet() -> None:
    """End what hf_xet is doing, as an interrupt by the user would."""
    from huggingface_hub.utils._xet import abort_xet_session

    abort_xet_session()


def whoami(client: Client) -> tuple[str, str]:
    """Return the owner of the token and its role, or say that the endpoint is no Hub or the token no good."""
    try:
        answer = client.call("asking the Hub who you are", client.api.whoami)
    except RepositoryMissing as error:  # 404, though every Hub knows this route
        raise WrongEndpoint(f"{client.endpoint} does not answer as a Hub") from error
    role = answer.get("auth", {}).get("accessToken", {}).get("role", "unknown")
    return str(answer.get("name", "")), str(role)
