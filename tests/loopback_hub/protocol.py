"""How a request becomes an answer: requests, replies, and the table of routes, filled by `routes_*.py`.

Each route has a step name (`preupload`, `lfs-put`, `commit`, ...): the word under which it is logged and
under which a fault is injected. A route takes the hub and a `Request` and returns a `Reply`; refusals are
raised as `StoreError`.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .store import Store, StoreError

REPO = r"(?P<repo>[^/]+/[^/]+)"
MODEL = r"/api/models/" + REPO


@dataclass
class Request:
    """One request, its body already read (or, for uploads, already written to `upload`)."""

    method: str
    path: str
    query: dict[str, str]
    headers: Any
    groups: dict[str, str]
    user: str | None
    role: str
    body: bytes = b""
    upload: Path | None = None

    def json(self) -> Any:
        """Return the body as JSON."""
        try:
            return json.loads(self.body or b"{}")
        except json.JSONDecodeError as error:
            raise StoreError(400, f"body is not JSON: {error}") from error


@dataclass
class Reply:
    """One answer: a JSON value, bytes or a file."""

    value: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    file: Path | None = None
    start: int = 0
    length: int | None = None


@dataclass
class Hub:
    """What the routes know of the server."""

    store: Store
    url: str
    secret: bytes
    multipart_above: int
    chunk_size: int

    def ticket(self, oid: str) -> str:
        """Sign an upload address, as S3 signs its own: such a PUT carries no token."""
        return hmac.new(self.secret, oid.encode(), "sha256").hexdigest()[:32]


@dataclass
class Route:
    """A method, a path pattern, the step's name, the least role and the function."""

    method: str
    pattern: re.Pattern[str]
    step: str
    role: str
    call: Callable[[Hub, Request], Reply]


ROUTES: list[Route] = []


def route(method: str, pattern: str, step: str, role: str = "read") -> Callable[[Any], Any]:
    """Register a function. Roles: `none`, `token`, `read` (as the repo allows), `write`."""

    def register(call: Callable[[Hub, Request], Reply]) -> Callable[[Hub, Request], Reply]:
        ROUTES.append(Route(method, re.compile(pattern + r"\Z"), step, role, call))
        return call

    return register


def find_route(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route for a request and the unquoted parts of its path."""
    for candidate in ROUTES:
        match = candidate.pattern.match(path)
        if match and candidate.method == method:
            return candidate, {k: unquote(v) for k, v in match.groupdict().items() if v is not None}
    return None
