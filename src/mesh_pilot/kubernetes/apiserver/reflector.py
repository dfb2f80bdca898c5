"""A reflector lists and watches the objects of one resource, forever.

Theory of operation
===================

A list says at which version it is, a watch continues from there; where the server has forgotten that version it says
410 Gone, and the list is read again. Only the versions of objects are kept, so that of a second list only the
differences are told; the objects themselves belong to the listener.

* *Consistent lists.* Lists name no version. client-go's "0" is answered from the server's cache, which may lag: after a
  restart of ours, objects would go back in time.
* *Streaming lists* (a watch that begins with all objects) cost the server a fraction of a page. A server that does not
  know them refuses, or never ends the list; then this client lists in pages from there on.
* *Silence.* A watch that is cut without a word looks like a quiet one, so each silence has a limit: that of bookmarks
  where the server sends these, else that of the watch.
* *An older backup.* A restored server counts its versions on from lower ones, and a watch from ours would wait forever
  or miss changes. After any failure what is there is compared with what was told (``_check_history``).
* *Absence.* A server that starts may not know its CRDs yet: objects are gone once it has not known them for a while.

Source of the rules: Kubernetes, "API Concepts".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver.access import KubernetesError
from mesh_pilot.kubernetes.apiserver.client import (
    METADATA_EVENT,
    METADATA_LIST,
    PAGE,
    AnswerTooLarge,
    ApiClient,
    ApiServerError,
    selectors,
)
from mesh_pilot.kubernetes.apiserver.decoding import (
    INITIAL_EVENTS_END,
    is_before,
    object_key,
    object_version,
    read_event,
    read_object,
    read_page,
    read_status,
)
from mesh_pilot.kubernetes.apiserver.resource import ApiResource, Object, ResourceListener
from mesh_pilot.kubernetes.apiserver.watch_state import ListState, WatchState

WATCH_SECONDS = (180, 300)
"""The shortest and longest time that a watch is asked for: all begin at once, and must not end so."""

OPENING_SECONDS = 30.0
"""The longest wait for a watch to begin."""

LISTING_SECONDS = 20.0
"""The longest silence within a streaming list: a server that does not know of these never says that all is there."""

BOOKMARK_SECONDS = 150.0
"""The longest silence of a server that sends bookmarks: it does so each minute."""

GRACE_SECONDS = 30.0
"""The longest silence of another one, after the time at which it should have ended the watch."""

STEADY_SECONDS = 10.0
"""A watch of this length has worked, though nothing happened."""

ABSENT_SECONDS = 30.0
"""The interval at which a resource that the server does not know is tried again."""

NEWS_SECONDS = 1.0
"""The first of the intervals after news of CRDs: a server takes a short time to serve what it was told."""

DOUBT_SECONDS = 15.0
"""The time after which the objects of an absent resource are gone: a server that starts may not know its CRDs yet."""

MAX_RETRY_AFTER_SECONDS = 300.0

TURN_BYTES = 64 * 1024
"""JSON that is decoded before others have their turn: about a millisecond."""

_FORBIDDEN, _NOT_FOUND, _GONE = 403, 404, 410
_NO_STREAMING = (400, 405, 406, 415, 422, 500, 501)
"""Statuses of a server that does not know streaming lists, or cannot have them with its etcd."""

Transform = Callable[[Object], Any]


class _VersionExpired(Exception):
    """The version from which to go on is not one of the server's any more."""


class _NoStreamingLists(Exception):
    """The server has no streaming lists."""


async def reflect(
    client: ApiClient,
    resource: ApiResource,
    listener: ResourceListener,
    backoff: Backoff,
    *,
    namespace: str = "",
    label_selector: str = "",
    field_selector: str = "",
    metadata_only: bool = False,
    transform: Transform | None = None,
) -> None:
    """Read a resource until cancelled; failures are reported to the listener, and retried.

    ``metadata_only``: its objects have nothing but ``metadata``, and cost the server and us as little. ``transform``
    makes something smaller of each object before it is kept for a list; of one that went, nothing is made. It must not
    raise. Objects never have ``managedFields``.
    """
    selection = selectors(label_selector, field_selector)
    await _Reflector(client, resource, listener, backoff, namespace, selection, metadata_only, transform).run()


@attrs.define(eq=False)
class _Reflector:
    """State: the version of the API in use; that up to which everything was reported; those of all objects reported."""

    client: ApiClient
    resource: ApiResource
    listener: ResourceListener
    backoff: Backoff
    namespace: str
    selection: dict[str, str | int]
    metadata_only: bool
    transform: Transform | None
    _version: str = ""
    _position: str = ""
    """Empty: it must be listed."""
    _known: dict[str, str] = attrs.field(factory=dict)
    """Versions by namespace and name."""
    _is_told: bool = False
    """The listener knows all of `_known`."""
    _is_told_absent: bool = False
    _is_doubtful: bool = False
    """The server may be another since the last watch: one of an older backup."""
    _has_worked: bool = True
    """A watch has worked since the last list."""
    _has_bookmarks: bool = False
    _is_missing: bool = False
    """The last request found nothing, though discovery had said it was there."""
    _may_stream: bool = True
    """False without permission to watch: objects are listed, at least."""
    _absent_since: float | None = None
    _absent_pause: float = ABSENT_SECONDS
    _page: int = PAGE
    _decoded: int = 0
    """Bytes since the others' last turn."""

    async def run(self) -> None:
        while True:
            try:
                await self._read()
            except _NoStreamingLists:
                self.client.streams_lists = False
            except _VersionExpired:
                self._position = ""
                if not self._has_worked:  # a list that is too old at once: not as fast as it can be read
                    await trio.sleep(self.backoff.next_seconds())
                self._has_worked = False
            except KubernetesError as error:
                await self._pause(error)

    async def _pause(self, error: KubernetesError) -> None:
        self._is_doubtful = True
        wait = 0.0
        if isinstance(error, ApiServerError):
            if error.status in (_GONE, _NOT_FOUND):
                self._position = ""
            if error.status == _NOT_FOUND and not self._is_missing:
                self._is_missing = True  # its CRD goes, or comes: discovery will say
                await trio.sleep(self.backoff.next_seconds())
                return
            wait = min(error.retry_after_seconds, MAX_RETRY_AFTER_SECONDS) * random.uniform(1.0, 1.25)
        server, reason = self.client.access.server, str(error)
        self.listener.lost(self.resource, reason if reason.startswith(server) else f"{server}: {self._path}: {reason}")
        await trio.sleep(max(wait, self.backoff.next_seconds()))

    @property
    def _path(self) -> str:
        return self.resource.path(self._version, self.namespace)

    async def _read(self) -> None:
        """List where that is needed, and watch once.

        Raises _VersionExpired, _NoStreamingLists and KubernetesError.
        """
        if not self._position:
            self._version = await self.client.served_version(self.resource)
            if not self._version:
                await self._be_absent()
                return
            self._absent_since = None
            if self.client.streams_lists and self._may_stream:
                await self._watch(ListState())
                return
            await self._list()
        elif self._is_doubtful:
            await self._check_history()
        await self._watch(None)

    async def _be_absent(self) -> None:
        """The server does not know the resource."""
        now = trio.current_time()
        if self._absent_since is None:
            self._absent_since = now
        if self._known and now < self._absent_since + DOUBT_SECONDS:
            server, name = self.client.access.server, f"{self.resource.plural}.{self.resource.group}"
            raise KubernetesError(f"{server}: it does not know {name} any more; their objects stay for now")
        if not self._is_told_absent:
            self._known, self._is_told = {}, False
            await self.listener.listed(self.resource, "", [])
            self._is_told_absent = True
        self._is_missing = False
        self.listener.found(self.resource)
        self.backoff.reset()
        if await self.client.discovery.changed(self._absent_pause * random.uniform(0.75, 1.25)):
            self._absent_pause = NEWS_SECONDS
        else:
            self._absent_pause = min(self._absent_pause * 2, ABSENT_SECONDS)

    # -- lists

    async def _list(self) -> None:
        """List in pages."""
        listing, token = ListState(), ""
        accept = METADATA_LIST if self.metadata_only else ""
        while True:
            params: dict[str, str | int] = {**self.selection, "limit": self._page}
            if token:
                params["continue"] = token
            try:
                text = await self.client.request_text("GET", self._path, params=params, accept=accept)
            except AnswerTooLarge:
                if self._page == 1:
                    raise
                self._page = max(1, self._page // 4)
                continue
            except ApiServerError as error:
                if error.status != _GONE or not token:
                    raise
                self._page *= 4  # it took too long: from the beginning, in fewer requests
                raise _VersionExpired from None
            page = read_page(text)
            for item in page.items or ():
                await self._take_turns(len(item))
                await self._listed_one(listing, read_object(item))
            token = page.metadata.token
            if not token:
                await self._listed_all(listing, page.metadata.resource_version)
                return

    async def _listed_one(self, listing: ListState, found: Object) -> None:
        key, version = object_key(found), object_version(found)
        listing.versions[key] = version
        if not self._is_told:
            listing.objects[key] = self.transform(found) if self.transform else found
        elif self._known.get(key) != version:
            await self._tell(key, version, found)

    async def _listed_all(self, listing: ListState, position: str) -> None:
        if not position:
            raise KubernetesError("a list without a resourceVersion")
        if self._is_told:
            for key in [key for key in self._known if key not in listing.versions]:
                del self._known[key]
                namespace, _, name = key.rpartition("/")
                gone = {"metadata": {"name": name, **({"namespace": namespace} if namespace else {})}}
                await self.listener.changed(self.resource, self._version, gone, there=False)
        else:
            await self.listener.listed(self.resource, self._version, [*listing.objects.values()])
            self._known, self._is_told, self._is_told_absent = listing.versions, True, False
        self._position, self._has_worked, self._is_doubtful, self._is_missing = position, False, False, False
        self.listener.found(self.resource)

    async def _check_history(self) -> None:
        """Have everything listed if what we have read is not what the server has had: it is of an older backup.

        Its version is lower then, but not for long. So objects are compared, too: all if they are one page, else those
        of the first one.
        """
        params: dict[str, str | int] = {**self.selection, "limit": PAGE}
        page = read_page(await self.client.request_text("GET", self._path, params=params, accept=METADATA_LIST))
        if is_before(page.metadata.resource_version, self._position):
            raise _VersionExpired
        keys = set()
        for item in page.items or ():
            await self._take_turns(len(item))
            found = read_object(item)
            keys.add(key := object_key(found))
            if not is_before(self._position, object_version(found)) and self._known.get(key) != object_version(found):
                raise _VersionExpired
        if not page.metadata.token and not keys >= self._known.keys():
            raise _VersionExpired
        self._is_doubtful = False

    # -- watches

    async def _watch(self, listing: ListState | None) -> None:
        """Take changes until the server ends the watch; at first all objects, into ``listing``."""
        seconds = random.randint(*WATCH_SECONDS)
        params: dict[str, str | int] = {
            **self.selection,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        if listing is None:
            params["resourceVersion"] = self._position
        else:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        watch = WatchState(listing, trio.current_time(), seconds)
        try:
            with trio.CancelScope(deadline=watch.began + OPENING_SECONDS) as watch.silence:
                await self.client.stream(
                    self._path,
                    lambda part: self._take(watch, part),
                    params=params,
                    accept=METADATA_EVENT if self.metadata_only else "",
                    opened=lambda: self._opened(watch),
                )
        except ApiServerError as error:
            if error.status == _GONE:
                raise _VersionExpired from None
            if listing is not None and error.status in _NO_STREAMING:
                raise _NoStreamingLists from None
            if listing is not None and error.status == _FORBIDDEN:
                self._may_stream = False
                return
            if error.status == _FORBIDDEN:
                self._position = ""  # lists are all there is
            raise
        lived = trio.current_time() - watch.began
        if watch.silence.cancelled_caught:
            if watch.listing is not None and watch.is_open:
                raise _NoStreamingLists
            raise KubernetesError(f"a watch was silent for {lived:.0f} s")
        if watch.listing is not None:
            raise KubernetesError("a list was broken off")
        if not watch.has_news and lived < 1.0:
            raise KubernetesError("a watch ended as soon as it began")
        self._worked()
        self._is_doubtful = lived < seconds - 5.0

    def _opened(self, watch: WatchState) -> None:
        watch.is_open = True
        self._wait_on(watch)
        if watch.listing is None:
            self.listener.found(self.resource)

    def _wait_on(self, watch: WatchState) -> None:
        now = trio.current_time()
        if watch.listing is not None:
            watch.silence.deadline = now + LISTING_SECONDS
        elif self._has_bookmarks:
            watch.silence.deadline = now + BOOKMARK_SECONDS
        else:
            watch.silence.deadline = max(now, watch.began + watch.seconds) + GRACE_SECONDS

    async def _take(self, watch: WatchState, part: bytes) -> None:
        """Take a part of the text; the server may be silent until that is done."""
        watch.silence.deadline = float("inf")
        if trio.current_time() >= watch.began + STEADY_SECONDS:
            self._worked()
        for line in watch.lines.feed(part):
            await self._take_turns(len(line))
            await self._take_event(watch, line)
        self._wait_on(watch)

    async def _take_event(self, watch: WatchState, line: bytes) -> None:
        event = read_event(line)
        match event.type:
            case "ADDED" | "MODIFIED" if watch.listing is not None:
                await self._listed_one(watch.listing, read_object(event.object))
            case "DELETED" if watch.listing is not None:  # since the list began: it is not at its end yet
                found = read_object(event.object)
                watch.listing.forget(object_key(found))
                await self._tell(object_key(found), "", found, there=False)
            case "ADDED" | "MODIFIED" | "DELETED":
                found = read_object(event.object)
                self._check_order(object_version(found))
                await self._tell(object_key(found), object_version(found), found, there=event.type != "DELETED")
                self._position = object_version(found)
            case "BOOKMARK":
                found = read_object(event.object)
                position = object_version(found)
                if watch.listing is None:
                    self._check_order(position)
                    self._position, self._has_bookmarks = position, True
                elif (found["metadata"].get("annotations") or {}).get(INITIAL_EVENTS_END) == "true":
                    listing, watch.listing, watch.has_news = watch.listing, None, True
                    await self._listed_all(listing, position)
                    return
            case _:
                self._refused(watch, bytes(event.object))
        if watch.listing is None:
            watch.has_news = True
            self._worked()

    def _refused(self, watch: WatchState, text: bytes) -> None:
        """Raises _VersionExpired, _NoStreamingLists and KubernetesError."""
        status = read_status(text)
        if status.code == _GONE:
            raise _VersionExpired
        if watch.listing is not None and status.code in _NO_STREAMING:
            raise _NoStreamingLists
        raise KubernetesError(f"a watch was ended: {status.code} {status.message}")

    def _check_order(self, position: str) -> None:
        if not position:
            raise KubernetesError("an event without a resourceVersion")
        if is_before(position, self._position):
            raise _VersionExpired

    async def _tell(self, key: str, version: str, found: Object, *, there: bool = True) -> None:
        """Tell the listener, unless it knows."""
        if there and self._known.get(key) != version:
            self._known[key] = version
            kept = self.transform(found) if self.transform else found
            await self.listener.changed(self.resource, self._version, kept, there=True)
        elif not there and self._known.pop(key, None) is not None:
            await self.listener.changed(self.resource, self._version, found, there=False)

    def _worked(self) -> None:
        self._has_worked = True
        self.backoff.reset()

    async def _take_turns(self, size: int) -> None:
        self._decoded += size
        if self._decoded >= TURN_BYTES:
            self._decoded = 0
            await trio.lowlevel.checkpoint()
