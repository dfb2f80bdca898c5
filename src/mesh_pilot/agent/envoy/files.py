"""Envoy's files: its bootstrap, and the file in which it says where its admin interface is.

They lie in the run folder, which is made again where it is missing. While that takes none (full, read-only, another
user's), they lie in memory: an Envoy that has died is not to wait for an operator.
"""

from __future__ import annotations

import errno
import os
import secrets
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import structlog

from mesh_pilot.agent.envoy import command
from mesh_pilot.identity.trust.private_files import own_folder, replace

log = structlog.get_logger(scope="agent")

IN_FORCE, CANDIDATE = "envoy-bootstrap.json", "envoy-bootstrap.candidate.json"
_ADMIN = "envoy-admin-"
_PROBE = b" " * 64
"""As many bytes as an address: without room for its own, Envoy does not start."""

T = TypeVar("T")


class EnvoyFiles:
    """The files of one agent's Envoys. State: why the run folder took none the last time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._trouble = ""

    def __repr__(self) -> str:
        return f"<EnvoyFiles in {self.folder}{f', not usable: {self._trouble}' if self._trouble else ''}>"

    @property
    def spare(self) -> Path:
        """The folder in memory: one for each user and run folder, found again after a restart."""
        number = zlib.crc32(os.fsencode(self.folder.absolute()))
        return command.SHARED_MEMORY / f"mesh-pilot-{os.geteuid()}-{number:08x}"

    def write(self, name: str, content: bytes) -> Path:
        """Write a file where it can be, unless it is there already. Raises OSError of the run folder."""

        def put(folder: Path) -> Path:
            path = folder / name
            if _content(path) != content:
                replace(path, content)
            return path

        return self._somewhere(put)

    def new_admin_file(self, base_id: int | None) -> Path:
        """An empty file that Envoy can write an address into. Raises OSError of the run folder."""

        def make(folder: Path) -> Path:
            path = folder / f"{_ADMIN}{base_id or 0}-{secrets.token_hex(4)}"
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if os.write(descriptor, _PROBE) < len(_PROBE):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
                os.ftruncate(descriptor, 0)
            except BaseException:
                remove(path)
                raise
            finally:
                os.close(descriptor)
            return path

        made = self._somewhere(make)
        if made.parent == self.folder:
            self._trouble = ""
        return made

    def in_force(self) -> bytes | None:
        """The content of the bootstrap that the last Envoy became ready on, in the run folder."""
        return _content(self.folder / IN_FORCE)

    def put_in_force(self, candidate: Path) -> None:
        """Give a bootstrap the name of the one in force. Where that fails, the next start writes it."""
        try:
            candidate.replace(candidate.with_name(IN_FORCE))
        except OSError as error:
            log.warning("the bootstrap in force keeps its old name", file=str(candidate), reason=error.strerror)

    def clean(self, used: Collection[Path]) -> None:
        """Remove what an agent that was killed has left, of Envoys that have ended with it."""
        for folder in (self.folder, self.spare):
            for file in _glob(folder, f"{_ADMIN}*"):
                if file not in used:
                    base_id = file.name.removeprefix(_ADMIN).partition("-")[0]
                    command.forget_shared_memory(int(base_id) if base_id.isdigit() else None)
                    remove(file)
        if not any(file.parent == self.spare for file in used):
            self.forget_spare()

    def forget_spare(self) -> None:
        """Remove the folder in memory, if it is ours."""
        with suppress(OSError):
            own_folder(self.spare, make=False)
            for file in self.spare.iterdir():
                remove(file)
            self.spare.rmdir()

    def _somewhere(self, act: Callable[[Path], T]) -> T:
        """Do something in the run folder, or in memory. Raises the OSError of the run folder."""
        try:
            own_folder(self.folder)
            done = act(self.folder)
        except OSError as error:
            try:
                own_folder(self.spare, parents=False)
                done = act(self.spare)
            except OSError:
                raise error from None
            reason = error.strerror or str(error)
            if reason != self._trouble:
                self._trouble = reason
                log.error(
                    "the run folder takes no files; those of envoy are in memory",
                    folder=str(self.folder),
                    reason=reason,
                    files=str(self.spare),
                )
        return done


def remove(file: Path) -> None:
    """Remove a file if that can be: what is left is removed at the next start."""
    with suppress(OSError):
        file.unlink(missing_ok=True)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _glob(folder: Path, pattern: str) -> Iterator[Path]:
    try:
        yield from list(folder.glob(pattern))
    except OSError:
        return
