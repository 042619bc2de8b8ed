"""Routes of an upload, in order: card, preupload, LFS batch, PUT (whole or in parts), verify, commit; xet."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

from .protocol import MODEL, REPO, Hub, Reply, Request, route
from .routes_repos import card_metadata
from .store import StoreError, is_lfs


@route("POST", "/api/validate-yaml", "validate-yaml", role="none")
def validate_yaml(hub: Hub, request: Request) -> Reply:
    """Look at a card's metadata; the real Hub's list of rules is longer."""
    errors = []
    try:
        data = card_metadata(request.json()["content"])
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


@route("GET", MODEL + "/xet-write-token/(?P<revision>[^/]+)", "xet-write-token", role="write")
@route("GET", MODEL + "/xet-read-token/(?P<revision>[^/]+)", "xet-read-token")
def xet_token(hub: Hub, request: Request) -> Reply:
    """Tell a client of hf_xet where the storage is; it reads the body, huggingface_hub the headers."""
    if hub.store.xet is None:
        raise StoreError(404, "no xet storage here; set HF_HUB_DISABLE_XET=1")
    connection = hub.store.xet.connection()
    headers = {
        "X-Xet-Cas-Url": connection["casUrl"],
        "X-Xet-Access-Token": connection["accessToken"],
        "X-Xet-Token-Expiration": connection["exp"],
    }
    return Reply({**connection, "exp": int(connection["exp"])}, headers=headers)
