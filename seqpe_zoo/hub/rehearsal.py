"""A staged folder as if it were published: a loopback hub inside this process, holding that one repository.

`check` lets the card's snippets run against it word for word, before anything leaves the machine.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .loopback.server import LoopbackServer
from .manifest import list_files, sha256_of

TOKEN = "hf_loopback_read"


@contextmanager
def rehearsal(folder: Path, repo_id: str, tag: str | None) -> Iterator[str]:
    """Give the endpoint of a hub on which `folder` is published as `repo_id`, tagged `tag`."""
    with tempfile.TemporaryDirectory(prefix="seqpe_zoo_rehearsal_") as root:
        server = LoopbackServer(Path(root))
        store = server.hub.store
        store.create(repo_id, private=True, author="rehearsal")
        operations = []
        for name in list_files(folder):
            path = folder / name
            if name.endswith(".safetensors"):
                sha256 = sha256_of(path)
                shutil.copyfile(path, store.blob(sha256))
                value = {"path": name, "oid": sha256, "size": path.stat().st_size}
                operations.append({"key": "lfsFile", "value": value})
            else:
                operations.append({"key": "file", "value": {"path": name, "content": path.read_bytes()}})
        made = store.commit(repo_id, "main", {"summary": "rehearsal"}, operations, "rehearsal", False)
        if tag:
            state = store.load(repo_id)
            state["tags"][tag] = made["oid"]
            store.save(state)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            server.server_close()
