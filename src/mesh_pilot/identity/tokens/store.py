"""The record of join tokens, in a folder that commands and control planes share.

``keys.json`` is a JSON Web Key Set with private keys, ``ID.json`` a token without its text, ``lock`` is held while
something is read to be changed. Files are replaced whole and have mode 0600, the folder 0700. Where root writes into
another user's folder, the files are that user's.

All calls block, for ``LOCK_SECONDS`` at most where another process holds the lock: call them in a worker thread.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from mesh_pilot.identity.trust import private_files
from mesh_pilot.model.spiffe import Identity, parse_identity

KEYS, LOCK = "keys.json", "lock"
LOCK_SECONDS = 5.0
_ID = re.compile(r"[0-9a-f]{16}")
_OTHERS = 0o027
"""Permissions that the file of the keys must not have: the group's to write, and any of everybody's."""


class TokenStoreError(Exception):
    """A record that cannot be read or written, with the file and the reason."""


@attrs.frozen
class TokenRecord:
    """A join token, without its text. Times are in UTC."""

    id: str
    """16 hexadecimal digits."""
    identity: Identity
    """The workload that the token makes of its bearer."""
    digest: str
    """SHA-256 of the token's text, hexadecimal."""
    key_id: str
    """The key that signed it."""
    created: datetime
    created_by: str
    expires: datetime
    max_uses: int = 0
    """The number of times that it may be used; 0: any number."""
    networks: tuple[str, ...] = ()
    """The networks (CIDR) from which it may be used; empty: from anywhere."""
    revoked: datetime | None = None
    uses: int = 0
    last_used: datetime | None = None
    last_address: str = ""


class TokenStore:
    """The files of a folder, which is made when something is first written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<TokenStore {self.folder}>"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all other processes, and threads of this one, from changing anything. Raises TokenStoreError."""
        with _store_errors(self.folder):
            self._make_folder()
            descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with _store_errors(self.folder / LOCK):
                self._own(descriptor)
                _lock(descriptor, self.folder / LOCK)
            yield
        finally:
            os.close(descriptor)

    def get(self, id: str) -> TokenRecord | None:
        """The record of a token; None if there is none. Raises TokenStoreError."""
        if not _ID.fullmatch(id):
            return None
        data = self._read(self._file(id))
        return None if data is None else _decode(self._file(id), data)

    def put(self, record: TokenRecord) -> None:
        """Write a record; once this returns it outlives a crash. Raises TokenStoreError."""
        self._write(self._file(record.id), _encode(record))

    def remove(self, id: str) -> None:
        """Forget a token. Raises TokenStoreError."""
        with _store_errors(self._file(id)):
            self._file(id).unlink(missing_ok=True)

    def all(self) -> list[TokenRecord]:
        """All records, oldest first. Raises TokenStoreError."""
        with _store_errors(self.folder):
            ids = [file.stem for file in self.folder.glob("*.json")] if self.folder.is_dir() else []
        return sorted(filter(None, map(self.get, ids)), key=lambda record: (record.created, record.id))

    def keys(self) -> Mapping[str, Any]:
        """The JSON Web Key Set, private; without keys where none was made. Raises TokenStoreError."""
        file = self.folder / KEYS
        with _store_errors(file), suppress(FileNotFoundError):
            mode = file.stat().st_mode
            if mode & _OTHERS:
                raise TokenStoreError(
                    f"{file}: has mode {mode & 0o777:04o}; others must have no access: chmod 600 {file}"
                )
        data = self._read(file)
        return {"keys": []} if data is None else data

    def put_keys(self, keys: Mapping[str, Any]) -> None:
        """Replace the key set. Raises TokenStoreError."""
        self._write(self.folder / KEYS, keys)

    def _file(self, id: str) -> Path:
        return self.folder / f"{id}.json"

    def _make_folder(self) -> None:
        missing = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            if os.geteuid() == 0:
                owner = folder.parent.stat()
                os.chown(folder, owner.st_uid, owner.st_gid)

    def _own(self, descriptor: int) -> None:
        if os.geteuid() == 0:
            owner = self.folder.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)

    def _read(self, file: Path) -> Mapping[str, Any] | None:
        with _store_errors(file):
            try:
                data = json.loads(file.read_bytes())
            except FileNotFoundError:
                return None
            if not isinstance(data, dict):
                raise ValueError("not an object")
            return data

    def _write(self, file: Path, data: Mapping[str, Any]) -> None:
        with _store_errors(file):
            private_files.replace(file, json.dumps(data, indent=1).encode("ascii"), own=self._own)


@contextmanager
def _store_errors(file: Path) -> Iterator[None]:
    """Errors of files and of what they hold as TokenStoreError. What they hold is never quoted."""
    try:
        yield
    except OSError as error:
        raise TokenStoreError(f"{error.filename or file}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise TokenStoreError(f"{file}: is not a file of mesh-pilot's join tokens; remove it or restore it") from None


def _lock(descriptor: int, file: Path) -> None:
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise TokenStoreError(f"{file}: another process has held it for {LOCK_SECONDS:g} s") from None
            time.sleep(0.005)
        else:
            return


def _encode(record: TokenRecord) -> dict[str, Any]:
    fields = attrs.asdict(record, recurse=False) | {"identity": str(record.identity)}
    return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in fields.items()}


def _decode(file: Path, data: Mapping[str, Any]) -> TokenRecord:
    with _store_errors(file):
        times = {name: _time(data[name]) for name in ("created", "expires", "revoked", "last_used")}
        identity = parse_identity(data["identity"])
        if identity is None or data["id"] != file.stem:
            raise ValueError("another token's")
        return TokenRecord(**{**data, **times, "identity": identity, "networks": tuple(data["networks"])})


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
