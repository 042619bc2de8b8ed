"""What the loopback hub remembers: repositories, commits and blobs, as files below one root folder.

Every change of a repository is one atomic replacement of its `state.json`; a blob is renamed into place only
when its hash is right. So a killed server never shows half a commit, and a restarted one continues where it
was.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .xet import XetFolder

_LFS_SUFFIXES = "safetensors bin pt pth ckpt onnx h5 msgpack npz npy parquet arrow tar gz zip model".split()
_GITATTRIBUTES = "".join(f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in _LFS_SUFFIXES)
_LFS_FROM_BYTES = 10 * 1024 * 1024  # the real Hub, too, moves larger text files to LFS


class StoreError(Exception):
    """A request the hub refuses: the HTTP status, the Hub's error code (may be empty) and a sentence."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def git_blob_sha1(content: bytes) -> str:
    """Return the name git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_lfs(path: str, size: int) -> bool:
    """Say whether a file goes to large-file storage rather than into the commit itself."""
    return size > 0 and (path.rsplit(".", 1)[-1] in _LFS_SUFFIXES or size >= _LFS_FROM_BYTES)


class Store:
    """Repositories below `root`. All methods may be called from several threads."""

    def __init__(self, root: Path, xet: bool = False) -> None:
        self.root = root
        self.xet = XetFolder(root / "xet") if xet else None
        self.lock = threading.RLock()
        for name in ("repos", "blobs", "incoming"):
            (root / name).mkdir(parents=True, exist_ok=True)

    # Blobs ------------------------------------------------------------------------------------------

    def blob(self, sha256: str) -> Path:
        """Return where the content with this hash lies, or would lie."""
        return self.root / "blobs" / sha256

    def incoming(self) -> Path:
        """Return a fresh path for an upload under way."""
        return self.root / "incoming" / uuid.uuid4().hex

    def accept(self, upload: Path, sha256: str) -> None:
        """Move a finished upload among the blobs; refuse it when its hash is not the promised one."""
        digest = hashlib.sha256()
        with upload.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        if digest.hexdigest() != sha256:
            upload.unlink()
            raise StoreError(400, f"uploaded content has sha256 {digest.hexdigest()}, announced was {sha256}")
        os.replace(upload, self.blob(sha256))

    def add_blob(self, content: bytes) -> str:
        """Store a small file that came inside a commit and return its hash."""
        sha256 = hashlib.sha256(content).hexdigest()
        upload = self.incoming()
        upload.write_bytes(content)
        self.accept(upload, sha256)
        return sha256

    # Repositories -----------------------------------------------------------------------------------

    def _state_path(self, repo: str) -> Path:
        return self.root / "repos" / repo / "state.json"

    def load(self, repo: str) -> dict[str, Any]:
        """Return the state of a repository."""
        path = self._state_path(repo)
        if not path.is_file():
            raise StoreError(404, "Repository not found", "RepoNotFound")
        return json.loads(path.read_text())

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state of a repository atomically."""
        path = self._state_path(state["id"])
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{uuid.uuid4().hex}")
        temporary.write_text(json.dumps(state))
        os.replace(temporary, path)

    def exists(self, repo: str) -> bool:
        """Say whether the repository exists."""
        return self._state_path(repo).is_file()

    def create(self, repo: str, private: bool, author: str) -> dict[str, Any]:
        """Create a repository with the initial commit the Hub makes (`.gitattributes`)."""
        with self.lock:
            if self.exists(repo):
                raise StoreError(409, "You already created this model repo")
            state = {
                "id": repo,
                "private": private,
                "gated": False,
                "created": _now(),
                "branches": {},
                "tags": {},
                "pulls": {},
                "commits": {},
                "discussions": [],
            }
            entry = self._regular_entry(_GITATTRIBUTES.encode())
            state["branches"]["main"] = _new_commit(
                state, None, {".gitattributes": entry}, "initial commit", "", author
            )
            self.save(state)
            return state

    def delete(self, repo: str) -> None:
        """Forget a repository."""
        with self.lock:
            self.load(repo)
            shutil.rmtree(self._state_path(repo).parent)

    def repositories(self) -> list[str]:
        """List all repository ids."""
        return sorted(
            str(p.parent.relative_to(self.root / "repos")) for p in self.root.glob("repos/*/*/state.json")
        )

    def resolve(self, state: dict[str, Any], revision: str) -> str:
        """Return the commit a branch, tag, pull-request ref or (short) hash names."""
        for table in ("branches", "tags", "pulls"):
            if revision in state[table]:
                return state[table][revision]
        if revision.startswith("refs/heads/"):
            return self.resolve(state, revision.removeprefix("refs/heads/"))
        matches = [sha for sha in state["commits"] if len(revision) >= 7 and sha.startswith(revision)]
        if len(matches) != 1:
            raise StoreError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return matches[0]

    def tree(self, state: dict[str, Any], revision: str) -> dict[str, dict[str, Any]]:
        """Return path -> entry at a revision."""
        return state["commits"][self.resolve(state, revision)]["tree"]

    def commit(
        self,
        repo: str,
        revision: str,
        header: dict[str, Any],
        operations: list[dict[str, Any]],
        author: str,
        create_pr: bool,
    ) -> dict[str, Any]:
        """Apply all operations as one commit, or none of them."""
        with self.lock:
            state = self.load(repo)
            head = self.resolve(state, revision)
            parent = header.get("parentCommit")
            if parent and create_pr:
                head = self.resolve(state, parent)
            elif parent and not head.startswith(parent):
                raise StoreError(412, "A commit has happened since. Please refresh and try again.")
            if not create_pr and revision not in state["branches"] and revision not in state["pulls"]:
                raise StoreError(403, f"{revision} is not a branch")
            tree = dict(state["commits"][head]["tree"])
            for operation in operations:
                self._apply(tree, operation["key"], operation["value"])
            title, text = header.get("summary", ""), header.get("description", "")
            sha = _new_commit(state, head, tree, title, text, author)
            pull = None
            if create_pr:
                pull = self.open_discussion(state, title, text, author, is_pull=True)
                state["pulls"][f"refs/pr/{pull}"] = sha
            elif revision in state["branches"]:
                state["branches"][revision] = sha
            else:
                state["pulls"][revision] = sha
            self.save(state)
            return {"oid": sha, "pull": pull}

    def open_discussion(
        self, state: dict[str, Any], title: str, text: str, author: str, is_pull: bool
    ) -> int:
        """Number a new discussion or pull request in `state`, which the caller saves."""
        number = len(state["discussions"]) + 1
        state["discussions"].append(
            {
                "num": number,
                "title": title,
                "text": text,
                "author": author,
                "createdAt": _now(),
                "status": "open",
                "isPullRequest": is_pull,
            }
        )
        return number

    def _regular_entry(self, content: bytes) -> dict[str, Any]:
        sha256 = self.add_blob(content)
        return {"sha256": sha256, "size": len(content), "oid": git_blob_sha1(content), "lfs": False}

    def _fetch_from_xet(self, sha256: str, size: int) -> bool:
        """Take a file that came by xet among the blobs; say whether it came."""
        xet_hash = self.xet.find(sha256) if self.xet else None
        if self.xet is None or xet_hash is None:
            return False
        upload = self.incoming()
        self.xet.fetch(xet_hash, size, upload)
        self.accept(upload, sha256)
        return True

    def _apply(self, tree: dict[str, Any], key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if key in ("file", "lfsFile"):
            _refuse_odd_path(path)
        if key == "file":
            tree[path] = self._regular_entry(value["content"])
        elif key == "lfsFile":
            sha256, size = value["oid"], value["size"]
            if not self.blob(sha256).is_file() and not self._fetch_from_xet(sha256, size):
                raise StoreError(400, f"LFS object {sha256} of {path} was never uploaded")
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
            tree[path] = {"sha256": sha256, "size": size, "oid": git_blob_sha1(pointer.encode()), "lfs": True}
        elif key == "deletedFile":
            if tree.pop(path, None) is None:
                raise StoreError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        elif key == "deletedFolder":
            for name in [name for name in tree if name.startswith(path.rstrip("/") + "/")]:
                del tree[name]
        else:
            raise StoreError(400, f"unknown commit operation {key!r}")


def _refuse_odd_path(path: str) -> None:
    parts = path.split("/")
    if not path or "\\" in path or any(part in ("", ".", "..", ".git") for part in parts):
        raise StoreError(400, f"invalid path {path!r}")


def _new_commit(
    state: dict[str, Any], parent: str | None, tree: dict[str, Any], title: str, text: str, author: str
) -> str:
    body = {"parent": parent, "tree": tree, "title": title, "message": text, "author": author, "date": _now()}
    sha = hashlib.sha1(json.dumps([state["id"], uuid.uuid4().hex, body]).encode()).hexdigest()
    state["commits"][sha] = body
    return sha


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
