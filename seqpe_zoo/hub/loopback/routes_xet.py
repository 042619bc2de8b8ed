"""Routes of xet storage: where it is, with a token. Without `--xet` the hub has none and answers 404."""

from __future__ import annotations

from .protocol import MODEL, Hub, Reply, Request, route
from .store import StoreError


@route("GET", MODEL + "/xet-write-token/(?P<revision>[^/]+)", "xet-write-token", role="write")
@route("GET", MODEL + "/xet-read-token/(?P<revision>[^/]+)", "xet-read-token")
def xet_token(hub: Hub, request: Request) -> Reply:
    """Tell a client of hf_xet where to go; it reads the body, huggingface_hub the headers."""
    if hub.store.xet is None:
        raise StoreError(404, "no xet storage here; set HF_HUB_DISABLE_XET=1")
    connection = hub.store.xet.connection()
    headers = {
        "X-Xet-Cas-Url": connection["casUrl"],
        "X-Xet-Access-Token": connection["accessToken"],
        "X-Xet-Token-Expiration": connection["exp"],
    }
    return Reply({**connection, "exp": int(connection["exp"])}, headers=headers)
