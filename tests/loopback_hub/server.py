"""The process behind the loopback hub: HTTP, tokens, faults, the request log and the command line.

It listens on 127.0.0.1 only. Two tokens are known: `hf_loopback_write` and `hf_loopback_read`; every other
token is answered with 401, so that a real token sent here by mistake is refused and, like all tokens, never
logged.
"""

from __future__ import annotations

import argparse
import json
import secrets
import socket
import struct
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from . import routes_read, routes_repos, routes_upload  # noqa: F401 (they fill the routes)
from .faults import Fault, Faults
from .protocol import Hub, Reply, Request, find_route
from .store import Store, StoreError

TOKENS = {"hf_loopback_write": ("rehearsal", "write"), "hf_loopback_read": ("reader", "read")}
_HTML_404 = b"<!doctype html><html><body><h1>404 Not Found</h1>this is not a Hub</body></html>"
_PIECE = 1 << 16


class _ConnectionDropped(Exception):
    """The fault says: hang up without an answer."""


class LoopbackServer(ThreadingHTTPServer):
    """The hub listening on a port. `port=0` picks a free one; see `url`."""

    daemon_threads = True

    def __init__(
        self,
        root: Path,
        port: int = 0,
        faults: list[dict[str, Any]] | None = None,
        multipart_above: int = 64 << 20,
        chunk_size: int = 16 << 20,
        xet: bool = False,
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults = Faults(faults)
        self.hub = Hub(Store(root, xet), self.url, secrets.token_bytes(16), multipart_above, chunk_size)
        self.log_path = root / "requests.jsonl"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent about clients that hang up; report everything else."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LoopbackServer

    def _serve(self) -> None:
        address = urlsplit(self.path)
        if address.path.startswith("/__control__/"):
            return self._control(address.path)
        found = find_route(self.command, address.path)
        if found is None:
            self._read_body()
            return self._answer(
                Reply({"error": "Sorry, we can't find the page you are looking for."}, status=404)
            )
        route, groups = found
        fault = self.server.faults.take(route.step, groups.get("path"))
        reply: Reply | None = None
        try:
            try:
                reply = self._fault_before(fault)
                if reply is None:
                    reply = self._call(route, self._request(address, groups, fault))
            finally:
                self._log(route.step, reply.status if reply else 0, fault)
            if fault and fault.action == "lost-answer":
                raise _ConnectionDropped
            self._answer(reply, fault)
        except _ConnectionDropped:
            self._hang_up()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    # One request --------------------------------------------------------------------------------------------

    def _call(self, route: Any, request: Request) -> Reply:
        try:
            self._authorise(route, request)
            return route.call(self.server.hub, request)
        except StoreError as error:
            headers = {"X-Error-Message": error.message.replace("\n", " ")}
            if error.code:
                headers["X-Error-Code"] = error.code
            return Reply({"error": error.message}, status=error.status, headers=headers)
        finally:
            if request.upload is not None:
                request.upload.unlink(missing_ok=True)

    def _authorise(self, route: Any, request: Request) -> None:
        sent = self.headers.get("Authorization", "")
        if sent and request.user is None and route.role != "none":
            raise StoreError(401, "Invalid credentials in Authorization header")
        if route.role == "none":
            return
        if route.role in ("token", "write") and request.user is None:
            raise StoreError(401, "Invalid username or password.")
        if route.role == "write" and request.role != "write":
            raise StoreError(403, "this token may only read; a token with write access is needed")
        repo = request.groups.get("repo")
        if repo and request.user is None and self._is_hidden(repo):
            raise StoreError(401, "Repository not found", "RepoNotFound")

    def _is_hidden(self, repo: str) -> bool:
        store = self.server.hub.store
        return store.exists(repo) and bool(store.load(repo)["private"])

    def _request(self, address: Any, groups: dict[str, str], fault: Fault | None) -> Request:
        user, role = TOKENS.get(self.headers.get("Authorization", "").removeprefix("Bearer "), (None, "none"))
        request = Request(
            self.command, address.path, dict(parse_qsl(address.query, True)), self.headers, groups, user, role
        )
        if self.command == "PUT" and address.path.startswith("/__lfs__/"):
            request.upload = self._receive(fault)
        else:
            request.body = self._read_body()
        return request

    def _pieces(self) -> Any:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left > 0:
            piece = self.rfile.read(min(left, _PIECE))
            if not piece:
                raise ConnectionResetError("client hung up")
            left -= len(piece)
            yield piece

    def _read_body(self) -> bytes:
        return b"".join(self._pieces())

    def _receive(self, fault: Fault | None) -> Path:
        """Write an upload to disk; nothing of it stays when the client or a fault breaks it off."""
        upload = self.server.hub.store.incoming()
        received = 0
        try:
            with upload.open("wb") as out:
                for piece in self._pieces():
                    out.write(piece)
                    received += len(piece)
                    if fault and fault.action == "reset" and received >= fault.after_bytes:
                        raise _ConnectionDropped
        except BaseException:
            upload.unlink(missing_ok=True)
            raise
        return upload

    # Faults -------------------------------------------------------------------------------------------------

    def _fault_before(self, fault: Fault | None) -> Reply | None:
        if fault is None:
            return None
        if fault.action == "delay":
            time.sleep(fault.seconds)
        if fault.action == "reset" and fault.after_bytes == 0:
            raise _ConnectionDropped
        if fault.action == "html":
            self._read_body()
            return Reply(_HTML_404, status=404, headers={"Content-Type": "text/html"})
        if fault.action == "status":
            self._read_body()
            headers = {"X-Error-Message": fault.message}
            if fault.retry_after is not None:
                headers["Retry-After"] = str(fault.retry_after)
            return Reply({"error": fault.message}, status=fault.status, headers=headers)
        return None

    def _hang_up(self) -> None:
        """Reset the connection (RST, not FIN), as a crashed proxy does."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    # Answers ------------------------------------------------------------------------------------------------

    def _answer(self, reply: Reply, fault: Fault | None = None) -> None:
        content, kind = b"", "application/json"
        if reply.file is not None:
            kind = "application/octet-stream"
            with reply.file.open("rb") as file:
                file.seek(reply.start)
                content = file.read(reply.length) if self.command != "HEAD" else b""
        elif isinstance(reply.value, bytes):
            content = reply.value
        else:
            content = json.dumps(reply.value).encode()
        length = len(content) if self.command != "HEAD" else (reply.length or len(content))
        if fault and fault.action == "corrupt" and content:
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.send_response(reply.status)
        headers = {"Content-Type": kind, "Content-Length": str(length), **reply.headers}
        for name, value in headers.items():
            self.send_header(name, value.encode("ascii", "replace").decode())
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault and fault.action == "truncate":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            raise _ConnectionDropped
        self.wfile.write(content)

    def _control(self, path: str) -> None:
        body = self._read_body()
        if (self.command, path) == ("POST", "/__control__/faults"):
            self.server.faults.add(json.loads(body))
        elif (self.command, path) == ("DELETE", "/__control__/faults"):
            self.server.faults.clear()
        self._answer(Reply({"ok": True}))

    def _log(self, step: str, status: int, fault: Fault | None) -> None:
        line = {"step": step, "method": self.command, "path": self.path.split("?")[0], "status": status}
        if fault:
            line["fault"] = fault.action
        with self.server.hub.store.lock, self.server.log_path.open("a") as log:
            log.write(json.dumps(line) + "\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on the terminal: the log file has it."""


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.loopback_hub", description="A Hub on this machine to rehearse a push."
    )
    parser.add_argument(
        "--root", type=Path, required=True, help="folder that holds the repositories; made if missing"
    )
    parser.add_argument(
        "--port", type=int, default=8899, help="port on 127.0.0.1; 0 picks a free one (default 8899)"
    )
    parser.add_argument(
        "--faults", type=Path, help="JSON file with a list of faults to commit; see faults.py"
    )
    parser.add_argument(
        "--multipart-above", type=int, default=64 << 20, help="bytes from which uploads come in parts"
    )
    parser.add_argument("--chunk-size", type=int, default=16 << 20, help="bytes of one part")
    parser.add_argument("--xet", action="store_true", help="offer xet storage, in a folder; needs hf_xet")
    options = parser.parse_args(argv)
    injected = json.loads(options.faults.read_text()) if options.faults else None
    sizes = (options.multipart_above, options.chunk_size)
    server = LoopbackServer(options.root, options.port, injected, *sizes, xet=options.xet)
    sys.stdout.write(f"loopback hub at {server.url}, its repositories in {options.root}\n")
    without = "" if options.xet else "HF_HUB_DISABLE_XET=1 "
    sys.stdout.write(f"  export HF_ENDPOINT={server.url} {without}HF_TOKEN=hf_loopback_write\n")
    sys.stdout.flush()
    try:
        server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        return 0
    return 0
