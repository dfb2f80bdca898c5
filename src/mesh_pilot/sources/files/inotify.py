"""Linux's inotify on Trio: each change is noticed as soon as it is complete.

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
from enum import Enum, auto
from functools import cache
from types import TracebackType
from typing import Self

import attrs
import structlog
import trio

from mesh_pilot.sources.files.content import printable
from mesh_pilot.sources.files.writers import Writers

log = structlog.get_logger(scope="sources")

CAME_SECONDS = 0.05
"""A file that came (with a writer, or as a link) is read after this time, unless another event comes first."""

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_IS_FOLDER = 0x40000000
_MASK = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_LOST = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _OVERFLOW | _IGNORED
_RELEASED = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE
_HEADER = struct.Struct("iIII")
_BUFFER = 64 * 1024


class What(Enum):
    """The kinds of changes of a path."""

    CAME = auto()
    """A file is there: with a writer, who writes next, or as a link."""
    WRITTEN = auto()
    """A file was written to or truncated: more may follow until its writer closes it."""
    RELEASED = auto()
    """A file was closed by its writer, moved or deleted."""
    TOLD = auto()
    """Times or permissions of a file changed."""
    FOLDER = auto()
    """A folder came, went, or changed itself."""
    WATCH_LOST = auto()
    """Later changes there may be missed: the folder is another one, or the event queue overflowed."""


@attrs.frozen
class Happening:
    """Something that happened to a path."""

    path: str
    what: What


@cache
def _libc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    return library if hasattr(library, "inotify_init1") else None


def is_there() -> bool:
    """True if this system has inotify."""
    return _libc() is not None


class Inotify:
    """A set of watched folders; leaving the block ends it. State: the file descriptor, the folders by watch."""

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

    def watch(self, folders: Collection[str]) -> None:
        """Watch these folders and their direct children, and no others. Raises OSError.

        Nothing is missed in a folder that was watched before.
        """
        known, wanted = set(self._folders.values()), set(folders)
        for folder in wanted:
            if folder not in known:
                number = self._library.inotify_add_watch(self._fd, os.fsencode(folder), ctypes.c_uint32(_MASK))
                self._folders[_checked(number, folder)] = folder
        for number, folder in list(self._folders.items()):
            if folder not in wanted:
                del self._folders[number]
                self._library.inotify_rm_watch(self._fd, number)

    async def wait(self) -> None:
        """Until something has happened that was not read."""
        await trio.lowlevel.wait_readable(self._fd)

    def read(self) -> Iterator[Happening]:
        """The changes since the last call."""
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
            folder = self._folders.get(number)
            if folder is not None or what & _OVERFLOW:
                yield Happening(f"{folder}/{name}" if name else folder or "", _meaning(what))


def _meaning(mask: int) -> What:
    if mask & _LOST:
        return What.WATCH_LOST
    if mask & _IS_FOLDER:
        return What.FOLDER
    if mask & _RELEASED:
        return What.RELEASED
    if mask & _MODIFY:
        return What.WRITTEN
    return What.CAME if mask & _CREATE else What.TOLD


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


class Folders:
    """Folders that are watched, and what their events come to.

    State: `_look_at`, when to look at a file that came; `_is_lost`, whether events were; `_is_news`, whether something
    is to be reported; `_touched`, the files to look at, None for all.
    """

    def __init__(
        self, inotify: Inotify, matters: Callable[[str], bool], may_hold: Callable[[str], bool], writers: Writers
    ) -> None:
        """``matters``: whether what happens at a path is of interest; ``may_hold``: whether what is written is."""
        self._inotify = inotify
        self._matters = matters
        self._may_hold = may_hold
        self._writers = writers
        self._look_at = math.inf
        self._is_lost = self._is_news = False
        self._touched: set[str] | None = None
        self._waiting = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Folders of {self._inotify!r}, {self._writers!r}>"

    def watch(self, folders: Collection[str]) -> None:
        """Follow these folders and no others. Raises OSError."""
        self._touched = None
        self._inotify.watch(folders)

    def take_touched(self) -> Collection[str] | None:
        """The files that something happened to since the last call; None: there may be more."""
        touched, self._touched = self._touched, set()
        return touched

    def catch_up(self) -> None:
        """Take in all events up to now, without waiting for more."""
        now = trio.current_time()
        for each in self._inotify.read():
            if each.what is What.WATCH_LOST:
                self._is_lost = True
                self._touched = None
            elif self._matters(each.path):
                self._take(each, now)
        self._waiting.cancel()

    def _take(self, each: Happening, now: float) -> None:
        if each.what is What.FOLDER:
            self._touched = None
        elif self._touched is not None:
            self._touched.add(each.path)
        match each.what:
            case What.WRITTEN if not self._may_hold(each.path):
                pass
            case What.WRITTEN if not self._writers.wrote(each.path, now):
                pass  # it counts once it is closed
            case What.CAME | What.WRITTEN:
                self._look_at = now + CAME_SECONDS
            case What.RELEASED:
                self._writers.released(each.path)
                self._is_news = True
            case _:
                self._is_news = True

    async def follow(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever something may have changed that matters.

        Returns when events may have been missed: the folders are to be scanned and watched again.
        """
        while not self._is_lost:
            with trio.CancelScope(deadline=min(self._look_at, self._writers.next_overdue)) as self._waiting:
                await self._inotify.wait()
            self.catch_up()
            now = trio.current_time()
            for path in self._writers.take_overdue(now):
                log.warning("file is still open for writing; it counts as it stands from now on", file=printable(path))
                self._is_news = True
                if self._touched is not None:
                    self._touched.add(path)
            if self._is_news or now >= self._look_at:
                self._look_at, self._is_news = math.inf, False
                changed()
        self._writers.forget()
