"""The CA's files in a folder, which replicas may share: keys are for their owner only, changes happen all at once.

A change is first written in full into a folder next to the files, which is then renamed to ``.commit``; from then on
it counts. Whoever reads next completes it if its writer died. Files that an operator copies in are read when they
have stopped changing. Symbolic links are followed for reading (mounted Kubernetes secrets are links) and replaced,
never followed, by writing. All of it happens in a worker thread, with a time limit: the folder may be on a network.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from mesh_pilot.identity.authority.material import FILES, KEYS
from mesh_pilot.identity.authority.store import StoreConflict, StoredFiles, StoreError
from mesh_pilot.identity.trust.private_files import sync_folder, write_new

POLL_SECONDS = 1.0
"""The interval at which files are looked at."""

STEADY_SECONDS = 0.05
"""The wait between attempts to read files that are changing."""

ATTEMPTS = 40

ANSWER_SECONDS = 10.0
"""The longest wait for the file system, which may be a network's; and for whoever holds the lock."""

_COMMIT, _LOCK = ".commit", ".lock"
_REMOVED = b""
"""The content of a file that a commit removes."""

MAX_BYTES = 1 << 20
"""Files over this size are refused."""

T = TypeVar("T")

_Stamps = tuple[tuple[str, int, int, int], ...]


class FolderStore:
    """A folder. Mutable state: the stamps of the files that were last read."""

    def __init__(self, folder: Path, files: frozenset[str] = FILES, keys: frozenset[str] = KEYS) -> None:
        """``files``: the names that it keeps; ``keys``: those of them that are private."""
        self._folder = folder
        self._files = files
        self._keys = keys
        self._seen: tuple[str, _Stamps] | None = None
        self._turn = trio.CapacityLimiter(1)

    def __repr__(self) -> str:
        return f"<FolderStore {self._folder}>"

    @property
    def place(self) -> str:
        return str(self._folder)

    async def read(self) -> StoredFiles:
        """The files. Raises StoreError for keys that others may read or write."""
        for _ in range(ATTEMPTS):
            found = await self._answer(self._read)
            if found is not None:
                stored, stamps = found
                self._seen = stored.version, stamps
                return stored
            await trio.sleep(STEADY_SECONDS)
        raise StoreError(f"{self._folder}: its files keep changing")

    async def write(self, files: Mapping[str, bytes], expected: str) -> None:
        """See ``MaterialStore``. If cancelled, or if it fails for the time that it took, it may be done later."""
        assert files.keys() <= self._files
        await self._answer(partial(self._write, files, expected))

    async def changed(self, version: str) -> None:
        while True:
            await trio.sleep(POLL_SECONDS)
            if self._seen is None or self._seen[0] != version or await self._answer(self._stamps) != self._seen[1]:
                return

    async def _answer(self, ask: Callable[[], T]) -> T:
        """The result of a function that asks the file system, which may be one that hangs. Raises StoreError.

        Later calls wait for a thread that hangs: there is never more than one.
        """
        with _as_store_errors(self._folder), trio.move_on_after(ANSWER_SECONDS):
            return await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=self._turn)
        raise StoreError(f"{self._folder}: its file system has not answered within {ANSWER_SECONDS:g} s")

    def _read(self) -> tuple[StoredFiles, _Stamps] | None:
        """The files and their stamps; None if they are changing."""
        if (self._folder / _COMMIT).exists():
            with _locked(self._folder):
                self._complete()
        before = self._stamps()
        with suppress(FileNotFoundError):
            files = {name: self._content(name) for name, *_ in before}
            if self._stamps() == before and not (self._folder / _COMMIT).exists():
                return StoredFiles(files), before
        return None

    def _write(self, files: Mapping[str, bytes], expected: str) -> None:
        _make(self._folder)
        with _locked(self._folder):
            self._complete()
            names = [name for name, *_ in self._stamps()]
            if StoredFiles({name: self._content(name) for name in names}).version != expected:
                raise StoreConflict(f"{self._folder}: its files have changed; try again")
            self._commit({**dict.fromkeys(names, _REMOVED), **files})
            self._complete()

    def _stamps(self) -> _Stamps:
        """A value that differs after any file was replaced or written: name, inode, mtime, size."""
        found = []
        for name in sorted(self._files):
            try:
                status = (self._folder / name).stat()
            except FileNotFoundError:
                continue
            found.append((name, status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)

    def _content(self, name: str) -> bytes:
        path = self._folder / name
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise StoreError(f"{path}: is not a file")
            if name in self._keys:
                _check_private(path, status)
                _check_folder(self._folder)
            if status.st_size > MAX_BYTES:
                raise StoreError(f"{path}: has {status.st_size} bytes, over {MAX_BYTES}")
            return file.read()

    def _commit(self, change: Mapping[str, bytes]) -> None:
        """Decide on a change; ``_complete`` carries it out. The lock is held."""
        folder = self._folder
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        try:
            for name, content in change.items():
                write_new(new / name, content, 0o600 if name in self._keys else 0o644)
            sync_folder(new)
            new.rename(folder / _COMMIT)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        sync_folder(folder)

    def _complete(self) -> None:
        """Carry out what ``.commit`` holds; safe to repeat. The lock is held."""
        commit = self._folder / _COMMIT
        if not commit.exists():
            return
        for name in sorted(self._files):
            staged = commit / name
            if staged.exists():
                if staged.stat().st_size:
                    staged.replace(self._folder / name)
                else:
                    (self._folder / name).unlink(missing_ok=True)
        sync_folder(self._folder)
        shutil.rmtree(commit)


def _check_private(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o027:
        raise StoreError(
            f"{path}: other users may read or change this private key (mode {mode:04o}); run chmod 600 on it, "
            "or give a mounted Kubernetes secret defaultMode: 0400"
        )
    if os.geteuid() and status.st_uid not in (0, os.geteuid()):
        raise StoreError(f"{path}: this private key is owned by another user (id {status.st_uid}); run chown on it")


def _check_folder(folder: Path) -> None:
    mode = folder.stat().st_mode
    if mode & 0o002 and not mode & stat.S_ISVTX:
        raise StoreError(f"{folder}: every user may replace the files of this folder; run chmod 700 on it")


def _make(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, against other threads and processes. Writers hold it for milliseconds."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _as_store_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "; is it mounted read-only?" if error.errno == errno.EROFS else ""
        raise StoreError(f"{error.filename or folder}: {error.strerror}{advice}") from None
