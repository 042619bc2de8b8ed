"""Routes that read: refs and tags (also set here), history, listings, and files, whole or by range."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs

from .protocol import MODEL, REPO, Hub, Reply, Request, route
from .store import StoreError


@route("POST", MODEL + "/tag/(?P<revision>[^/]+)", "tag", role="write")
def create_tag(hub: Hub, request: Request) -> Reply:
    """Tag a commit; an existing tag is never moved."""
    return _create_ref(hub, request, "tags", request.json()["tag"], request.groups["revision"])


@route("DELETE", MODEL + "/tag/(?P<name>[^/]+)", "tag", role="write")
def delete_tag(hub: Hub, request: Request) -> Reply:
    """Remove a tag."""
    return _delete_ref(hub, request, "tags")


@route("POST", MODEL + "/branch/(?P<name>[^/]+)", "branch", role="write")
def create_branch(hub: Hub, request: Request) -> Reply:
    """Start a branch."""
    return _create_ref(
        hub, request, "branches", request.groups["name"], request.json().get("startingPoint", "main")
    )


@route("DELETE", MODEL + "/branch/(?P<name>[^/]+)", "branch", role="write")
def delete_branch(hub: Hub, request: Request) -> Reply:
    """Remove a branch."""
    return _delete_ref(hub, request, "branches")


def _create_ref(hub: Hub, request: Request, table: str, name: str, revision: str) -> Reply:
    with hub.store.lock:
        state = hub.store.load(request.groups["repo"])
        if name in state[table]:
            raise StoreError(409, f"Reference {name} already exists")
        state[table][name] = hub.store.resolve(state, revision)
        hub.store.save(state)
    return Reply({})


def _delete_ref(hub: Hub, request: Request, table: str) -> Reply:
    with hub.store.lock:
        state = hub.store.load(request.groups["repo"])
        if state[table].pop(request.groups["name"], None) is None:
            raise StoreError(404, f"no such reference {request.groups['name']}", "RevisionNotFound")
        hub.store.save(state)
    return Reply({})


@route("GET", MODEL + "/refs", "refs")
def refs(hub: Hub, request: Request) -> Reply:
    """List branches, tags and, when asked, pull requests."""
    state = hub.store.load(request.groups["repo"])

    def listed(table: str, prefix: str) -> list[dict[str, str]]:
        return [{"name": n, "ref": prefix + n, "targetCommit": sha} for n, sha in state[table].items()]

    answer = {
        "branches": listed("branches", "refs/heads/"),
        "converts": [],
        "tags": listed("tags", "refs/tags/"),
    }
    if "include_prs" in request.query:
        answer["pullRequests"] = listed("pulls", "")
    return Reply(answer)


@route("GET", MODEL + "/commits/(?P<revision>[^/]+)", "commits")
def commits(hub: Hub, request: Request) -> Reply:
    """List a revision's history, newest first."""
    state = hub.store.load(request.groups["repo"])
    sha: str | None = hub.store.resolve(state, request.groups["revision"])
    history = []
    while sha:
        entry = state["commits"][sha]
        author = {"user": entry["author"]}
        history.append(
            {
                "id": sha,
                "title": entry["title"],
                "message": entry["message"],
                "authors": [author],
                "date": entry["date"],
            }
        )
        sha = entry["parent"]
    return Reply(history)


@route("GET", MODEL + "/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", "tree")
def tree(hub: Hub, request: Request) -> Reply:
    """List the files at a revision."""
    state = hub.store.load(request.groups["repo"])
    prefix = request.groups.get("folder", "").rstrip("/")
    prefix = prefix + "/" if prefix else ""
    recursive = request.query.get("recursive", "").lower() == "true"
    entries: dict[str, dict[str, Any]] = {}
    for path, entry in sorted(hub.store.tree(state, request.groups["revision"]).items()):
        if not path.startswith(prefix):
            continue
        inner = path[len(prefix) :].split("/")
        for depth in range(1, len(inner)):
            folder = prefix + "/".join(inner[:depth])
            if depth == 1 or recursive:
                entries[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
        if len(inner) == 1 or recursive:
            entries[path] = _tree_entry(path, entry)
    return Reply(list(entries.values()))


@route("POST", MODEL + "/paths-info/(?P<revision>[^/]+)", "paths-info")
def paths_info(hub: Hub, request: Request) -> Reply:
    """Describe some files at a revision; those that do not exist are left out."""
    state = hub.store.load(request.groups["repo"])
    files = hub.store.tree(state, request.groups["revision"])
    paths = parse_qs(request.body.decode()).get("paths", [])
    return Reply([_tree_entry(path, files[path]) for path in paths if path in files])


def _tree_entry(path: str, entry: dict[str, Any]) -> dict[str, Any]:
    answer = {"type": "file", "path": path, "oid": entry["oid"], "size": entry["size"]}
    if entry["lfs"]:
        answer["lfs"] = {"oid": entry["sha256"], "size": entry["size"], "pointerSize": 134}
    return answer


@route("HEAD", f"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve-head")
@route("GET", f"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve")
def resolve(hub: Hub, request: Request) -> Reply:
    """Send a file, or the asked range of it."""
    state = hub.store.load(request.groups["repo"])
    sha = hub.store.resolve(state, request.groups["revision"])
    entry = state["commits"][sha]["tree"].get(request.groups["path"])
    headers = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
    if entry is None:
        error = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
        return Reply({"error": "Entry not found"}, status=404, headers={**headers, **error})
    headers["ETag"] = '"' + (entry["sha256"] if entry["lfs"] else entry["oid"]) + '"'
    if entry["lfs"]:
        headers.update({"X-Linked-Size": str(entry["size"]), "X-Linked-Etag": headers["ETag"]})
        if hub.store.xet and (xet_hash := hub.store.xet.find(entry["sha256"])):
            token = f"{hub.url}/api/models/{request.groups['repo']}/xet-read-token/{sha}"
            headers.update({"X-Xet-Hash": xet_hash, "X-Xet-Refresh-Route": token})
    blob, size = hub.store.blob(entry["sha256"]), entry["size"]
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if not asked or request.method == "HEAD":
        return Reply(status=200, headers=headers, file=blob, length=size)
    start, end = int(asked[1]), min(int(asked[2] or size - 1), size - 1)
    if start >= size:
        return Reply({"error": "range"}, status=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{end}/{size}"
    return Reply(status=206, headers=headers, file=blob, start=start, length=end - start + 1)
