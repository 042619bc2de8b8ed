"""Routes: who am I, may I; create, describe, change and delete repositories; collections and discussions."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from .protocol import MODEL, Hub, Reply, Request, route
from .store import StoreError


@route("GET", "/api/whoami-v2", "whoami", role="token")
def whoami(hub: Hub, request: Request) -> Reply:
    """Tell a token's owner and role."""
    token = {"displayName": "loopback", "role": request.role}
    return Reply(
        {
            "type": "user",
            "name": request.user,
            "orgs": [],
            "auth": {"type": "access_token", "accessToken": token},
        }
    )


@route("GET", MODEL + "/auth-check", "auth-check")
def auth_check(hub: Hub, request: Request) -> Reply:
    """Answer 200 when the repository may be read."""
    hub.store.load(request.groups["repo"])
    return Reply({})


@route("GET", MODEL + "/auth-check/write", "auth-check", role="write")
def auth_check_write(hub: Hub, request: Request) -> Reply:
    """Answer 200 when the repository may be written."""
    hub.store.load(request.groups["repo"])
    return Reply({})


@route("POST", "/api/repos/create", "create-repo", role="write")
def create_repo(hub: Hub, request: Request) -> Reply:
    """Create a model repository."""
    wanted = request.json()
    if wanted.get("type", "model") != "model":
        raise StoreError(400, "the loopback hub holds models only")
    repo = f"{wanted.get('organization') or request.user}/{wanted['name']}"
    private = wanted.get("private", wanted.get("visibility") == "private")
    url = {"url": f"{hub.url}/{repo}", "name": repo}
    try:
        hub.store.create(repo, bool(private), request.user or "")
    except StoreError as error:
        return Reply({**url, "error": error.message}, status=error.status)
    return Reply(url)


@route("DELETE", "/api/repos/delete", "delete-repo", role="write")
def delete_repo(hub: Hub, request: Request) -> Reply:
    """Delete a model repository."""
    wanted = request.json()
    hub.store.delete(f"{wanted.get('organization') or request.user}/{wanted['name']}")
    return Reply({})


@route("GET", "/api/models", "list-models", role="none")
def list_models(hub: Hub, request: Request) -> Reply:
    """List the public models."""
    states = (hub.store.load(repo) for repo in hub.store.repositories())
    author = request.query.get("author")
    public = [state for state in states if not state["private"]]
    return Reply([_info(hub, s, "main", False) for s in public if author in (None, s["id"].split("/")[0])])


@route("GET", MODEL, "repo-info")
def model_info(hub: Hub, request: Request) -> Reply:
    """Describe a repository at its main branch."""
    state = hub.store.load(request.groups["repo"])
    return Reply(_info(hub, state, "main", "blobs" in request.query))


@route("GET", MODEL + "/revision/(?P<revision>[^/]+)", "repo-info")
def model_info_at(hub: Hub, request: Request) -> Reply:
    """Describe a repository at a revision."""
    state = hub.store.load(request.groups["repo"])
    return Reply(_info(hub, state, request.groups["revision"], "blobs" in request.query))


@route("PUT", MODEL + "/settings", "settings", role="write")
def settings(hub: Hub, request: Request) -> Reply:
    """Change visibility or gating."""
    wanted = request.json()
    with hub.store.lock:
        state = hub.store.load(request.groups["repo"])
        if "visibility" in wanted or "private" in wanted:
            state["private"] = wanted.get("private", wanted.get("visibility") == "private")
        state["gated"] = wanted.get("gated", state["gated"])
        hub.store.save(state)
    return Reply({"private": state["private"], "gated": state["gated"]})


def _info(hub: Hub, state: dict[str, Any], revision: str, blobs: bool) -> dict[str, Any]:
    sha = hub.store.resolve(state, revision)
    commit = state["commits"][sha]
    siblings = [_sibling(path, entry, blobs) for path, entry in sorted(commit["tree"].items())]
    card = _card_data(hub, commit["tree"])
    tags = list((card or {}).get("tags") or [])
    return {
        "_id": "0" * 24,
        "id": state["id"],
        "modelId": state["id"],
        "author": state["id"].split("/")[0],
        "sha": sha,
        "private": state["private"],
        "gated": state["gated"],
        "disabled": False,
        "createdAt": state["created"],
        "lastModified": commit["date"],
        "downloads": 0,
        "likes": 0,
        "tags": tags,
        "pipeline_tag": (card or {}).get("pipeline_tag"),
        "library_name": (card or {}).get("library_name"),
        "cardData": card,
        "siblings": siblings,
    }


def _sibling(path: str, entry: dict[str, Any], blobs: bool) -> dict[str, Any]:
    if not blobs:
        return {"rfilename": path}
    sibling = {"rfilename": path, "size": entry["size"], "blobId": entry["oid"]}
    if entry["lfs"]:
        sibling["lfs"] = {"sha256": entry["sha256"], "size": entry["size"], "pointerSize": 134}
    return sibling


def _card_data(hub: Hub, tree: dict[str, Any]) -> dict[str, Any] | None:
    if "README.md" not in tree:
        return None
    return card_metadata(hub.store.blob(tree["README.md"]["sha256"]).read_text(errors="replace"))


def card_metadata(text: str) -> dict[str, Any] | None:
    """Return the YAML block at the top of a card."""
    match = re.match(r"---\r?\n(.*?)\r?\n---(\r?\n|\Z)", text, re.DOTALL)
    if not match:
        return None
    try:
        data = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        raise StoreError(400, f"invalid YAML: {error}") from error
    return data if isinstance(data, dict) else None


@route("GET", MODEL + "/discussions", "discussions")
def discussions(hub: Hub, request: Request) -> Reply:
    """List discussions and pull requests."""
    state = hub.store.load(request.groups["repo"])
    repo = {"name": state["id"], "type": "model"}
    items = [{**d, "author": {"name": d["author"]}, "repo": repo} for d in state["discussions"]]
    return Reply({"discussions": items, "count": len(items), "start": 0})


@route("POST", MODEL + "/discussions", "discussions", role="write")
def create_discussion(hub: Hub, request: Request) -> Reply:
    """Open a discussion or an empty pull request."""
    wanted = request.json()
    with hub.store.lock:
        state = hub.store.load(request.groups["repo"])
        is_pull = bool(wanted.get("pullRequest"))
        title, text = wanted["title"], wanted.get("description", "")
        number = hub.store.open_discussion(state, title, text, request.user or "", is_pull)
        if is_pull:
            state["pulls"][f"refs/pr/{number}"] = state["branches"]["main"]
        hub.store.save(state)
    return Reply({"num": number, "title": title, "pullRequest": is_pull})


@route("POST", "/api/collections", "collections", role="write")
def create_collection(hub: Hub, request: Request) -> Reply:
    """Start a collection."""
    wanted = request.json()
    words = re.sub(r"[^a-z0-9]+", "-", wanted["title"].lower()).strip("-")
    slug = f"{wanted.get('namespace', request.user)}/{words}-{'0' * 24}"
    with hub.store.lock:
        table = _collections(hub)
        if slug in table:
            raise StoreError(409, "collection exists")
        table[slug] = {
            "slug": slug,
            "title": wanted["title"],
            "owner": {"name": wanted.get("namespace", request.user), "type": "user"},
            "lastUpdated": "2026-01-01T00:00:00.000Z",
            "position": 0,
            "private": bool(wanted.get("private")),
            "theme": "indigo",
            "upvotes": 0,
            "description": wanted.get("description"),
            "items": [],
        }
        _save_collections(hub, table)
    return Reply(table[slug])


@route("GET", "/api/collections/(?P<slug>[^/]+/[^/]+)", "collections", role="none")
def get_collection(hub: Hub, request: Request) -> Reply:
    """Return a collection."""
    table = _collections(hub)
    if request.groups["slug"] not in table:
        raise StoreError(404, "collection not found")
    return Reply(table[request.groups["slug"]])


@route("POST", "/api/collections/(?P<slug>[^/]+/[^/]+)/items?", "collections", role="write")
def add_collection_item(hub: Hub, request: Request) -> Reply:
    """Add an item to a collection."""
    item = request.json()["item"]
    with hub.store.lock:
        table = _collections(hub)
        if request.groups["slug"] not in table:
            raise StoreError(404, "collection not found")
        collection = table[request.groups["slug"]]
        if any(known["id"] == item["id"] for known in collection["items"]):
            raise StoreError(409, "item is in the collection already")
        position = len(collection["items"])
        known = {"_id": f"{position:024d}", "id": item["id"], "type": item["type"], "position": position}
        collection["items"].append({**known, "repoType": item["type"], "note": None})
        _save_collections(hub, table)
    return Reply(collection)


def _collections(hub: Hub) -> dict[str, Any]:
    path = hub.store.root / "collections.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _save_collections(hub: Hub, table: dict[str, Any]) -> None:
    path = hub.store.root / "collections.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(table))
    temporary.replace(path)
