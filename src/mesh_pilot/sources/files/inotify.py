"""Linux's inotify on Trio: being told of a change the moment it is complete.

Source: the manual pages ``inotify(7)``, ``inotify_init(2)`` and ``inotify_add_watch(2)``.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import struct
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from types import TracebackType
from typing import Self

import attrs
import trio

OPEN_SECONDS = 0.05
"""A file that is being written is looked at once its writer closes it, or has written nothing for so long."""

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_IS_FOLDER = 0x40000000
_MASK = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_LOST = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _OVERFLOW | _IGNORED
_HEADER = struct.Struct("iIII")
_BUFFER = 64 * 1024


@attrs.frozen
class Happening:
    """Something that happened to a path."""

    path: str
    is_going_on: bool
    """A file came, or was written to: more follows when its writer closes it."""
    is_watch_lost: bool
    """What happens there from now on may not be told: the folder is another one, or there was more than was kept."""


@cache
def _libc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    return library if hasattr(library, "inotify_init1") else None


def is_there() -> bool:
    """Whether this system has inotify."""
    return _libc() is not None


class Inotify:
    """Watches folders, each by itself; leaving the block ends that. State: the file descriptor, the watched folders."""

    def __init__(self) -> None:
        """Raises OSError."""
        library = _libc()
        assert library is not None
        self._library = library
        self._folders: dict[int, str] = {}
        self._fd = _checked(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "")

    def __repr__(self) -> str:
        return f"<Inotify of {len(self._folders)} folders>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        trio.lowlevel.notify_closing(self._fd)
        os.close(self._fd)

    def watch(self, folder: str) -> None:
        """Be told of what happens to a folder and right in it. Raises OSError."""
        number = self._library.inotify_add_watch(self._fd, os.fsencode(folder), ctypes.c_uint32(_MASK))
        self._folders[_checked(number, folder)] = folder

    async def happenings(self, deadline: float) -> list[Happening]:
        """What has happened since the last call, waiting for something until the deadline; then it is nothing."""
        with trio.move_on_at(deadline):
            await trio.lowlevel.wait_readable(self._fd)
            return list(self._read())
        return []

    def _read(self) -> Iterator[Happening]:
        try:
            data = os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            number, what, _, size = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            name = os.fsdecode(data[at : at + size].rstrip(b"\0"))
            at += size
            folder = self._folders.get(number, "")
            is_going_on = bool(what & (_MODIFY | _CREATE)) and not what & _IS_FOLDER
            yield Happening(f"{folder}/{name}" if name else folder, is_going_on, bool(what & _LOST))


def _checked(result: int, path: str) -> int:
    if result >= 0:
        return result
    number = ctypes.get_errno()
    if number == errno.ENOSPC:
        raise OSError(number, "the system allows no more watches; raise the sysctl fs.inotify.max_user_watches", path)
    if number == errno.EMFILE:
        raise OSError(
            number, "the system allows no more watchers; raise the sysctl fs.inotify.max_user_instances", path
        )
    raise OSError(number, os.strerror(number), path)


async def follow(
    folders: Collection[str],
    matters: Callable[[str], bool],
    *,
    ready: Callable[[], None],
    changed: Callable[[], None],
) -> None:
    """Call ``changed`` whenever something that matters has happened in these folders. Raises OSError.

    ``ready`` is called once that is so. Returns when it is no longer sure to be: the folders are to be looked at, and
    to be watched anew. If cancelled, nothing is left.
    """
    with Inotify() as inotify:
        for folder in folders:
            inotify.watch(folder)
        ready()
        look_at = math.inf
        while True:
            found = [each for each in await inotify.happenings(look_at) if each.is_watch_lost or matters(each.path)]
            if any(each.is_watch_lost for each in found):
                return
            if any(not each.is_going_on for each in found) or trio.current_time() >= look_at:
                look_at = math.inf
                changed()
            elif found:
                look_at = trio.current_time() + OPEN_SECONDS
