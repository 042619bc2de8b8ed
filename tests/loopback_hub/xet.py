"""Xet storage on this machine: a folder is the store, and hf_xet itself writes to it and reads from it.

hf_xet knows addresses `local://FOLDER`, made for its own tests; the hub gives it one where the real Hub gives
the address of its storage. A commit names a file by its sha256 alone. Which xet hash that is, stands in the
shards the upload leaves behind; their layout is that of xet's public specification.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

_RECORD = 48  # bytes; every part of a shard's file section has this size
_WITH_VERIFICATION, _WITH_METADATA = 1 << 31, 1 << 30
_TOKEN_SECONDS = 3600


class XetFolder:
    """A store in a folder.

    Args:
        folder: made if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self._known: dict[str, str] = {}

    def connection(self) -> dict[str, str]:
        """Return what a token route answers: address, token and when it expires."""
        expires = str(int(time.time()) + _TOKEN_SECONDS)
        return {"casUrl": f"local://{self.folder}", "accessToken": "loopback", "exp": expires}

    def find(self, sha256: str) -> str | None:
        """Return the xet hash of the file with this sha256, if it was uploaded."""
        if sha256 not in self._known:
            for shard in self.folder.rglob("*.mdb"):
                self._known.update(files_in_shard(shard.read_bytes()))
        return self._known.get(sha256)

    def fetch(self, xet_hash: str, size: int, target: Path) -> None:
        """Put a file together from its chunks."""
        import hf_xet

        connection = self.connection()
        with hf_xet.XetSession().new_file_download_group(
            endpoint=connection["casUrl"],
            token=connection["accessToken"],
            token_expiry_unix_secs=int(connection["exp"]),
        ) as group:
            group.start_download_file(hf_xet.XetFileInfo(xet_hash, size), str(target.resolve()))


def files_in_shard(content: bytes) -> Iterator[tuple[str, str]]:
    """Give (sha256, xet hash) of every file that a shard describes with its sha256."""
    place = _RECORD  # after the shard's header
    while place + _RECORD <= len(content):
        name = content[place : place + 32]
        if name == b"\xff" * 32:
            return
        flags = int.from_bytes(content[place + 32 : place + 36], "little")
        segments = int.from_bytes(content[place + 36 : place + 40], "little")
        place += _RECORD * (1 + segments * (2 if flags & _WITH_VERIFICATION else 1))
        if flags & _WITH_METADATA:
            yield _hexadecimal(content[place : place + 32]), _hexadecimal(name)
            place += _RECORD


def _hexadecimal(hash_: bytes) -> str:
    """Write a hash as xet does: four numbers of eight bytes, each stored with its lowest byte first."""
    return b"".join(hash_[start : start + 8][::-1] for start in range(0, 32, 8)).hex()
