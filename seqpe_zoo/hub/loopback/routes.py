"""The Hub's HTTP interface, as far as the clients use it: one function a route, found by method and path.

Each route has a step name (`preupload`, `lfs-put`, `commit`, ...): the word under which it is logged and
under which a fault is injected. A route takes the hub and a `Request` and returns a `Reply`; refusals are
raised as `StoreError`.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import yaml

from .store import Store, StoreError, is_lfs

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


# Who am I, may I --------------------------------------------------------------------------------------------


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


@route("GET", MODEL + "/xet-(?:write|read)-token/(?P<revision>[^/]+)", "xet-token")
def xet_token(hub: Hub, request: Request) -> Reply:
    """Refuse: like most self-hosted hubs this one has no xet storage."""
    raise StoreError(404, "no xet storage here; set HF_HUB_DISABLE_XET=1")


# Repositories -----------------------------------------------------------------------------------------------


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
    return _metadata(hub.store.blob(tree["README.md"]["sha256"]).read_text(errors="replace"))


def _metadata(text: str) -> dict[str, Any] | None:
    match = re.match(r"---\r?\n(.*?)\r?\n---(\r?\n|\Z)", text, re.DOTALL)
    if not match:
        return None
    try:
        data = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        raise StoreError(400, f"invalid YAML: {error}") from error
    return data if isinstance(data, dict) else None


# Upload -----------------------------------------------------------------------------------------------------


@route("POST", "/api/validate-yaml", "validate-yaml", role="none")
def validate_yaml(hub: Hub, request: Request) -> Reply:
    """Look at a card's metadata; the real Hub's list of rules is longer."""
    errors = []
    try:
        data = _metadata(request.json()["content"])
    except StoreError as error:
        return Reply({"errors": [{"message": error.message}], "warnings": []}, status=400)
    warnings = [] if data else [{"message": "empty or missing yaml metadata in repo card"}]
    for key in ("license", "pipeline_tag", "library_name"):
        if data and not isinstance(data.get(key, ""), str):
            errors.append({"message": f'"{key}" must be a string'})
    for key in ("tags", "datasets", "metrics"):
        if data and not isinstance(data.get(key, []), list | str):
            errors.append({"message": f'"{key}" must be a list'})
    return Reply({"errors": errors, "warnings": warnings}, status=400 if errors else 200)


@route("POST", MODEL + "/preupload/(?P<revision>[^/]+)", "preupload", role="write")
def preupload(hub: Hub, request: Request) -> Reply:
    """Say for every file whether it goes to LFS, and what is there already."""
    state = hub.store.load(request.groups["repo"])
    tree = hub.store.tree(state, request.groups["revision"])
    files = []
    for wanted in request.json()["files"]:
        path = wanted["path"]
        answer = {
            "path": path,
            "uploadMode": "lfs" if is_lfs(path, wanted["size"]) else "regular",
            "shouldIgnore": False,
        }
        if path in tree:
            answer["oid"] = tree[path]["sha256"] if tree[path]["lfs"] else tree[path]["oid"]
        files.append(answer)
    return Reply({"files": files})


@route("POST", f"/{REPO}\\.git/info/lfs/objects/batch", "lfs-batch", role="write")
def lfs_batch(hub: Hub, request: Request) -> Reply:
    """Give upload addresses: none for content that is here, one a part for large files."""
    hub.store.load(request.groups["repo"])
    wanted = request.json()
    objects, transfer = [], "basic"
    for item in wanted["objects"]:
        oid, size = item["oid"], item["size"]
        answer: dict[str, Any] = {"oid": oid, "size": size}
        if not hub.store.blob(oid).is_file():
            ticket = hub.ticket(oid)
            upload: dict[str, Any] = {"href": f"{hub.url}/__lfs__/{oid}?ticket={ticket}"}
            if size > hub.multipart_above and "multipart" in wanted.get("transfers", []):
                transfer = "multipart"
                parts = -(-size // hub.chunk_size)
                header = {str(n): f"{hub.url}/__lfs__/{oid}/{n}?ticket={ticket}" for n in range(1, parts + 1)}
                upload = {
                    "href": f"{hub.url}/__lfs__/{oid}/complete?ticket={ticket}",
                    "header": {"chunk_size": str(hub.chunk_size), **header},
                }
            verify = {"href": f"{hub.url}/{request.groups['repo']}.git/info/lfs/verify"}
            answer["actions"] = {"upload": upload, "verify": verify}
        objects.append(answer)
    return Reply({"transfer": transfer, "objects": objects})


@route("PUT", "/__lfs__/(?P<oid>[0-9a-f]{64})", "lfs-put", role="none")
def lfs_put(hub: Hub, request: Request) -> Reply:
    """Take a whole file."""
    upload = _ticketed(hub, request)
    hub.store.accept(upload, request.groups["oid"])
    return Reply({})


@route("PUT", r"/__lfs__/(?P<oid>[0-9a-f]{64})/(?P<part>\d+)", "lfs-part", role="none")
def lfs_part(hub: Hub, request: Request) -> Reply:
    """Take one part of a file."""
    upload = _ticketed(hub, request)
    folder = hub.store.root / "incoming" / f"{request.groups['oid']}.parts"
    folder.mkdir(exist_ok=True)
    upload.replace(folder / request.groups["part"])
    return Reply({}, headers={"ETag": f'"{request.groups["part"]}"'})


@route("POST", "/__lfs__/(?P<oid>[0-9a-f]{64})/complete", "lfs-complete", role="none")
def lfs_complete(hub: Hub, request: Request) -> Reply:
    """Join the parts."""
    oid = request.groups["oid"]
    if not hmac.compare_digest(request.query.get("ticket", ""), hub.ticket(oid)):
        raise StoreError(403, "expired or forged upload address")
    folder = hub.store.root / "incoming" / f"{oid}.parts"
    joined = hub.store.incoming()
    with joined.open("wb") as out:
        for part in sorted(request.json()["parts"], key=lambda part: part["partNumber"]):
            out.write((folder / str(part["partNumber"])).read_bytes())
    hub.store.accept(joined, oid)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return Reply({})


def _ticketed(hub: Hub, request: Request) -> Path:
    if not hmac.compare_digest(request.query.get("ticket", ""), hub.ticket(request.groups["oid"])):
        raise StoreError(403, "expired or forged upload address")
    if request.upload is None:
        raise StoreError(400, "no content")
    return request.upload


@route("POST", f"/{REPO}\\.git/info/lfs/verify", "lfs-verify", role="write")
def lfs_verify(hub: Hub, request: Request) -> Reply:
    """Confirm that an object arrived whole."""
    wanted = request.json()
    blob = hub.store.blob(wanted["oid"])
    if not blob.is_file() or blob.stat().st_size != wanted["size"]:
        raise StoreError(404, f"object {wanted['oid']} is not here")
    return Reply({})


@route("POST", MODEL + "/commit/(?P<revision>[^/]+)", "commit", role="write")
def commit(hub: Hub, request: Request) -> Reply:
    """Make one commit from newline-separated JSON."""
    lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
    if not lines or lines[0]["key"] != "header":
        raise StoreError(400, "the first line of a commit must be its header")
    for line in lines[1:]:
        if line["key"] == "file":
            encoded = line["value"]["content"]
            line["value"]["content"] = base64.b64decode(encoded)
    repo, create_pr = request.groups["repo"], request.query.get("create_pr") == "1"
    made = hub.store.commit(
        repo, request.groups["revision"], lines[0]["value"], lines[1:], request.user or "", create_pr
    )
    answer = {
        "success": True,
        "commitOid": made["oid"],
        "commitUrl": f"{hub.url}/{repo}/commit/{made['oid']}",
    }
    if made["pull"]:
        answer["pullRequestUrl"] = f"{hub.url}/{repo}/discussions/{made['pull']}"
    return Reply(answer)


# Refs and history -------------------------------------------------------------------------------------------


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


# Download ---------------------------------------------------------------------------------------------------


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
    blob, size = hub.store.blob(entry["sha256"]), entry["size"]
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if not asked or request.method == "HEAD":
        return Reply(status=200, headers=headers, file=blob, length=size)
    start, end = int(asked[1]), min(int(asked[2] or size - 1), size - 1)
    if start >= size:
        return Reply({"error": "range"}, status=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{end}/{size}"
    return Reply(status=206, headers=headers, file=blob, start=start, length=end - start + 1)


# Discussions and collections --------------------------------------------------------------------------------


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
