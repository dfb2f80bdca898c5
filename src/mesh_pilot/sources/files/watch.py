"""Watching folders for changes, by the operating system."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Collection
from contextlib import aclosing, suppress
from pathlib import Path
from typing import cast

import attrs
import trio
from watchfiles import awatch

from mesh_pilot.sources.files import inotify
from mesh_pilot.sources.files.roots import is_config_file
from mesh_pilot.sources.files.secrets import FILE_NAMES
from mesh_pilot.sources.files.writers import Writers

STEP_MS = 20
"""Without inotify: how often the watching thread looks for events, and how long it waits for more of them."""
GROUP_MS = 200
"""Without inotify: how long events may keep coming before they are passed on all the same."""


@attrs.frozen
class Watched:
    """The folders and paths to watch."""

    folders: frozenset[str] = frozenset()
    """Real paths of folders; anything that happens right in them matters."""
    points: frozenset[str] = frozenset()
    """Absolute paths of which only the coming and going matters."""
    roots: frozenset[str] = frozenset()
    """Real paths of the roots, some of which are single files."""

    @classmethod
    def over(cls, folders: Collection[str], roots: Collection[str]) -> Watched:
        """These folders, and the roots themselves: each may vanish, come, or be reached by a link that changes."""
        points: set[str] = set()
        for root in map(Path, map(os.path.abspath, roots)):
            points |= {str(path) for path in (root, *root.parents) if path == root or path.is_symlink()}
        return cls(frozenset(folders), frozenset(points), frozenset(map(os.path.realpath, roots)))

    def paths(self) -> list[str]:
        """The folders to ask the operating system about."""
        return sorted(self.folders | {_nearest_folder(point) for point in self.points})

    def matters(self, path: str) -> bool:
        """True if a change at `path` is of interest."""
        if path in self.folders or str(Path(path).parent) in self.folders:
            return True
        return any(point == path or point.startswith(path + os.sep) for point in self.points)

    def may_hold(self, path: str) -> bool:
        """True if a file at `path` may be one that is read: a log in the folder of a mesh config is not."""
        name = Path(path).name
        return is_config_file(name) or name in FILE_NAMES or path in self.roots or path in self.points


class Watcher:
    """Calls `changed` whenever something may have changed in what it is set to watch.

    Runs in the nursery it is given; cancelling that ends it, and its thread, where it has one, within a step.
    State: what was last asked for, the scope that ends that watch, inotify's folders while they are followed, and if
    it failed, why and when to try again.
    """

    def __init__(
        self, nursery: trio.Nursery, changed: Callable[[], None], retry_seconds: float, writers: Writers
    ) -> None:
        """`writers` is kept up to date, where the operating system tells who writes."""
        self.failure = ""
        """Why nothing is watched; empty while something is, or before the first try."""
        self._writers = writers
        self._nursery = nursery
        self._changed = changed
        self._retry_seconds = retry_seconds
        self._wanted = Watched()
        self._again_at = math.inf
        self._scope = trio.CancelScope()
        self._folders: inotify.Folders | None = None

    def __repr__(self) -> str:
        return f"<Watcher of {', '.join(self._wanted.paths())}{': ' if self.failure else ''}{self.failure}>"

    async def over(self, watched: Watched) -> bool:
        """Watch this, and no longer what was watched before.

        Returns once every change from now on will be noticed, or the watch has failed. False: all is as it was.
        True: scan again, for changes before this watch were not noticed, and its folders may be gone.
        """
        if watched == self._wanted and trio.current_time() < self._again_at:
            return False
        if self._folders is not None and trio.current_time() < self._again_at:
            with suppress(OSError):  # which the new watch runs into as well, and tells
                self._folders.watch(watched.paths())
                self._wanted = watched
                return True
        self._scope.cancel()
        self._scope = trio.CancelScope()
        self._wanted, self._again_at, self.failure = watched, math.inf, ""
        ready = trio.Event()
        self._nursery.start_soon(self._watch, watched, self._scope, ready)
        await ready.wait()
        return True

    def catch_up(self) -> None:
        """Take in all events up to now, where the operating system has any."""
        if self._folders is not None:
            self._folders.catch_up()

    def take_touched(self) -> Collection[str] | None:
        """The files that something happened to since the last call; None: it is not known, or there is more."""
        return None if self._folders is None else self._folders.take_touched()

    async def _watch(self, watched: Watched, scope: trio.CancelScope, ready: trio.Event) -> None:
        tell = self._tell if inotify.is_there() else self._tell_from_thread
        reason = ""
        with scope:
            try:
                await tell(watched, ready)
            except* (OSError, RuntimeError) as errors:
                reason = str(errors.exceptions[0])
            self._again_at = trio.current_time()
            if reason:
                self.failure = reason
                self._again_at += self._retry_seconds
            self._changed()
        ready.set()

    async def _tell(self, watched: Watched, ready: trio.Event) -> None:
        with inotify.Inotify() as watches:
            folders = inotify.Folders(
                watches,
                lambda path: self._wanted.matters(path),
                lambda path: self._wanted.may_hold(path),
                self._writers,
            )
            folders.watch(watched.paths())
            self._folders = folders
            ready.set()
            try:
                await folders.follow(self._changed)
            finally:
                if self._folders is folders:
                    self._folders = None

    async def _tell_from_thread(self, watched: Watched, ready: trio.Event) -> None:
        stop = _Stop(trio.lowlevel.current_trio_token(), ready)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop.set_when_cancelled)
            await self._tell_steps(watched, stop)

    async def _tell_steps(self, watched: Watched, stop: _Stop) -> None:
        changes = awatch(
            *watched.paths(),
            watch_filter=lambda _, path: watched.matters(path),
            debounce=GROUP_MS,
            step=STEP_MS,
            stop_event=cast("trio.Event", stop),  # only ever asked whether it is set
            rust_timeout=0,
            recursive=False,
        )
        async with aclosing(changes):
            async for _ in changes:
                self._changed()


class _Stop:
    """The stop event that the watching thread asks at each step; at the first, its watches are in place."""

    def __init__(self, token: trio.lowlevel.TrioToken, ready: trio.Event) -> None:
        self._token = token
        self._ready = ready
        self._is_asked = False
        self._stop = threading.Event()

    def is_set(self) -> bool:
        if not self._is_asked:
            self._is_asked = True
            self._token.run_sync_soon(self._ready.set)
        return self._stop.is_set()

    def set(self) -> None:
        self._stop.set()

    async def set_when_cancelled(self) -> None:
        """The thread can't be cancelled; it asks this event."""
        try:
            await trio.sleep_forever()
        finally:
            self._stop.set()


def _nearest_folder(path: str) -> str:
    """The nearest folder above a path that exists."""
    return next(str(folder) for folder in Path(path).parents if folder.is_dir())
