"""The modules on disk: a file for each, named by its checksum."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from pathlib import Path

from mesh_pilot.net.fetching import FetchError

SUFFIX = ".wasm"
_UNFINISHED = ".part"


class ModuleStore:
    """A folder of modules with a bound. Its methods block: they are for threads.

    Modules that nothing asks for any more stay until the room is needed, those used last the longest, so that going
    back to one needs no server.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"<ModuleStore {self.folder}>"

    def open(self) -> None:
        """Make the folder, for its owner alone, and drop what a crash has left. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self.folder.glob(f"*{_UNFINISHED}"):
            left.unlink(missing_ok=True)

    def put(self, body: bytes | bytearray, used: Collection[str]) -> tuple[str, str]:
        """Keep a module: its path and checksum. Those whose checksums are ``used`` are not dropped for it.

        Raises FetchError where it has no room or cannot be written.
        """
        checksum = hashlib.sha256(body).hexdigest()
        path = self.folder / f"{checksum}{SUFFIX}"
        try:
            if self.has(str(path), checksum):
                os.utime(path)
                return str(path), checksum
            self._make_room(len(body), used)
            unfinished = path.with_suffix(_UNFINISHED)
            with unfinished.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError as error:
            raise FetchError(f"cannot be kept in {self.folder}: {error.strerror or error}") from error
        return str(path), checksum

    def has(self, path: str, checksum: str) -> bool:
        """True if a file of this store is there, whole and unchanged."""
        if Path(path).parent != self.folder:
            return False
        try:
            with Path(path).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == checksum
        except OSError:
            return False

    def size(self) -> tuple[int, int]:
        """The number of modules that are kept, and their bytes."""
        sizes = [size for _, size, _ in self._kept()]
        return len(sizes), sum(sizes)

    def _kept(self) -> list[tuple[float, int, Path]]:
        """(time of last use, size, path) of each module."""
        found = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((status.st_mtime, status.st_size, path))
        return found

    def _make_room(self, needed: int, used: Collection[str]) -> None:
        kept = sorted(self._kept())
        total = sum(size for _, size, _ in kept)
        for _, size, path in kept:
            if total + needed <= self._max_bytes:
                return
            if path.stem not in used:
                path.unlink(missing_ok=True)
                total -= size
        if total + needed > self._max_bytes:
            raise FetchError(f"the modules in use take {total} of {self._max_bytes} bytes: see --wasm-cache-bytes")
