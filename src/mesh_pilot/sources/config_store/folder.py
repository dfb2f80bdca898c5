"""A folder as a store: one file an object, ``NAMESPACE/KIND.NAME.yaml``, replaced by renaming.

A file is whole at any time, also after a crash: the new text is written next to it, synced and renamed. What a crash
leaves next to it is hidden, so that no source reads it, and goes with the next write. Control planes that share a
folder take turns by a lock on ``.mesh-pilot.lock``; an editor knows nothing of that, so the file is compared once more
under the lock.

An object in another file of the folder is changed there if it is alone in it. One that shares its file is not touched:
comments and order of the other documents are their author's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import trio

from mesh_pilot.istio.reading.yaml import Document
from mesh_pilot.model.config import ConfigError, ConfigKey, Origin
from mesh_pilot.sources.config_store.base import ConfigConflict, ConfigRefusal, ConfigStoreError, Object, Stored
from mesh_pilot.sources.config_store.documents import as_json, as_yaml, key_of, objects_in
from mesh_pilot.sources.files.roots import read_file

LOCK = ".mesh-pilot.lock"
_TEMPORARY = ".mesh-pilot-{}.tmp"

LOCK_SECONDS = 10.0
"""The longest wait for another process that writes."""
_LOOK_SECONDS = 0.01

MAX_FILE_NAME = 255
"""Bytes of a file's name in all common file systems."""


@attrs.frozen
class _File:
    """A file with one object, or with what cannot be read."""

    path: Path
    data: bytes
    document: Object | None

    @property
    def stored(self) -> Stored:
        return Stored(self.document, hashlib.sha256(self.data).hexdigest()[:32], str(self.path))


class ConfigFolder:
    """Implements ``ConfigStore``. Without state."""

    def __init__(self, folder: Path, source: str = "files", default_namespace: str = "default") -> None:
        """``default_namespace``: of objects that name none."""
        self._folder = folder
        self._source = source
        self._default_namespace = default_namespace

    def __repr__(self) -> str:
        return f"<ConfigFolder {self._folder}>"

    @property
    def place(self) -> str:
        return f"folder {self._folder}"

    @property
    def source(self) -> str:
        return self._source

    async def read(self, key: ConfigKey, at: str = "") -> Stored | None:
        """See ``ConfigStore``."""
        found = await trio.to_thread.run_sync(self._find, key, at)
        return found.stored if found is not None else None

    async def write(
        self, key: ConfigKey, document: Object, instead_of: Stored | None, *, at: str = "", dry_run: bool = False
    ) -> Stored:
        """See ``ConfigStore``."""
        return await trio.to_thread.run_sync(self._write, key, document, instead_of, at, dry_run)

    async def delete(self, key: ConfigKey, instead_of: Stored, *, at: str = "", dry_run: bool = False) -> None:
        """See ``ConfigStore``."""
        await trio.to_thread.run_sync(self._delete, key, instead_of, at, dry_run)

    # -- in a thread

    def _own_path(self, key: ConfigKey) -> Path:
        """The file of an object of ours. Raises ConfigRefusal."""
        name = f"{key.kind}.{key.name}.yaml"
        for part in (key.namespace, name):
            if "/" in part or "\0" in part or part in (".", "..") or part.startswith((".", "#")):
                raise ConfigRefusal(f"{key} is not a name of an object")
        if len(name.encode()) > MAX_FILE_NAME:
            raise ConfigRefusal(
                f"{key}: {name} is too long for the name of a file, which may have {MAX_FILE_NAME} bytes; give the"
                " object a shorter name, or put it into a file by hand"
            )
        return self._folder / key.namespace / name if key.namespace else self._folder / name

    def _find(self, key: ConfigKey, at: str) -> _File | None:
        own = self._own_path(key)
        if at and Path(at) != own:
            if not self._is_inside(Path(at)):
                raise ConfigRefusal(f"{key} is at {at}, outside of {self._folder}: change it there")
            found = self._file(Path(at), key, is_own=False)
            if found is not None:
                return found
        return self._file(own, key, is_own=True)

    def _file(self, path: Path, key: ConfigKey, *, is_own: bool) -> _File | None:
        """The object in a file; None if it is not in it. Raises ConfigStoreError."""
        with self._errors(path, "read"):
            try:
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode):
                    raise ConfigRefusal(
                        f"{path} is not a plain file (a symbolic link?): change {key} where it comes from"
                    )
                data = read_file(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        found = objects_in(data, Origin(self._source, str(path)))
        if not found:
            return _File(path, data, None) if is_own else None
        good = [each for each in found if isinstance(each, Document)]
        keys = [key_of(each.data, self._default_namespace) for each in good]
        broken = [each for each in found if isinstance(each, ConfigError)]
        # A file that we would write to must not lose what somebody else put there. A file that is merely said to hold
        # the object may have changed since: without it, the object is looked for at its own place.
        if key not in keys:
            named = ", ".join(map(str, filter(None, keys)))
            if is_own and len(found) == 1 and not named:
                return _File(path, data, None)
            if is_own:
                raise ConfigRefusal(f"{path} holds {named or 'several broken objects'}, not {key}: rename it")
            if broken:
                raise ConfigRefusal(f"{broken[0]}: fix the file, of which {key} is in force as it was read before")
            return None
        document = good[keys.index(key)]
        if len(found) > 1:
            others = f"{len(found) - 1} other object" + "s" * (len(found) > 2)
            raise ConfigRefusal(
                f"{key} is at {path}:{document.line}, in a file with {others}: change it there, or move it to a"
                " separate file"
            )
        return _File(path, data, document.data)

    def _is_inside(self, path: Path) -> bool:
        """True if a file is in our folder, also once all links are followed."""
        real = os.path.realpath(path.parent)
        root = os.path.realpath(self._folder)
        return real == root or real.startswith(root.rstrip(os.sep) + os.sep)

    def _write(self, key: ConfigKey, document: Object, instead_of: Stored | None, at: str, dry_run: bool) -> Stored:
        at = instead_of.location if instead_of is not None else at
        with self._locked(dry_run):
            found = self._expected(key, at, instead_of)
            path = found.path if found is not None else self._own_path(key)
            if not self._is_inside(path):
                raise ConfigRefusal(f"{path.parent} is a symbolic link that leads out of {self._folder}")
            data = as_json(document) if path.suffix.lower() == ".json" else as_yaml(document)
            if not dry_run:
                with self._errors(path, "written"):
                    _replace(path, data, is_new=found is None)
            return _File(path, data, document).stored

    def _delete(self, key: ConfigKey, instead_of: Stored, at: str, dry_run: bool) -> None:
        with self._locked(dry_run):
            found = self._expected(key, instead_of.location or at, instead_of)
            assert found is not None
            if not dry_run:
                with self._errors(found.path, "removed"):
                    found.path.unlink()
                    if key.namespace and found.path.parent == self._folder / key.namespace:
                        _sweep(found.path.parent)
                        with suppress(OSError):  # it is not empty
                            found.path.parent.rmdir()
                    if found.path.parent.exists():
                        _sync_folder(found.path.parent)

    def _expected(self, key: ConfigKey, at: str, expected: Stored | None) -> _File | None:
        """The file as it is now, if that is what is expected. Raises ConfigConflict."""
        found = self._find(key, at)
        if (found.stored.version if found is not None else "") == (expected.version if expected is not None else ""):
            return found
        if found is None:
            raise ConfigConflict(f"{key} is not there any more")
        what = "has changed since it was read" if expected is not None else "is there already"
        raise ConfigConflict(f"{key} {what}, in {found.path}")

    @contextmanager
    def _locked(self, dry_run: bool) -> Iterator[None]:
        """Hold the lock of the folder; a dry run writes nothing, not even that. Raises ConfigStoreError."""
        if dry_run:
            with self._errors(self._folder, "written"):
                if not os.access(self._folder, os.W_OK | os.X_OK):
                    raise ConfigStoreError(
                        f"{self._folder} cannot be written: no permission, or it is mounted read-only"
                    )
            yield
            return
        path = self._folder / LOCK
        with self._errors(path, "written"):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            end = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise ConfigStoreError(
                            f"{path} is locked by another process for over {LOCK_SECONDS:g} s; nothing was written"
                        ) from None
                    time.sleep(_LOOK_SECONDS)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _errors(self, path: Path, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigStoreError(f"{path} cannot be {what}: {error.strerror or error}; nothing has changed") from None


def _replace(path: Path, data: bytes, *, is_new: bool) -> None:
    """Put a whole file in place. Raises OSError; then the old one, or none, is there, and nothing next to it."""
    folder = path.parent
    if not folder.exists():
        folder.mkdir()
        _sync_folder(folder.parent)
    _sweep(folder)
    temporary = folder / _TEMPORARY.format(secrets.token_hex(8))
    try:
        with temporary.open("xb") as file:
            if not is_new:
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            os.link(temporary, path)  # fails where somebody has made it meanwhile
            temporary.unlink()
        else:
            temporary.replace(path)
    except FileExistsError:
        _forget(temporary)
        raise ConfigConflict(f"{path} is there already") from None
    except OSError:
        _forget(temporary)
        raise
    _sync_folder(folder)


def _sweep(folder: Path) -> None:
    """Remove what writers that crashed have left. Only under the lock."""
    for file in folder.glob(_TEMPORARY.format("*")):
        _forget(file)


def _forget(file: Path) -> None:
    with suppress(OSError):
        file.unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
