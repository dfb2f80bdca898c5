"""A reflector lists and watches one kind at an API server, for ever.

Source of the rules: Kubernetes, "API Concepts": a list says at which version it is, a watch goes on from there; where
the server has forgotten that version it says 410 Gone, and the list is read again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

import httpx
import trio

from mesh_pilot.config.kinds import Kind
from mesh_pilot.sources.base import Backoff
from mesh_pilot.sources.kubernetes.access import Access, KubernetesError

Object = Mapping[str, Any]
"""An object of Kubernetes, as decoded JSON."""

PAGE = 500
"""Objects that are asked for at once."""

WATCH_SECONDS = 240
"""The length of a watch; the server ends it then, and the next goes on."""

READ_SECONDS = WATCH_SECONDS + 30.0
"""The longest silence of the server: it ends a watch in time, and sends bookmarks."""

ABSENT_SECONDS = 30.0
"""The interval at which a kind that the server does not know is tried again."""

GONE, NOT_FOUND = 410, 404


class KindListener(Protocol):
    """The receiver of the objects of a kind."""

    async def listed(self, kind: Kind, version: str, objects: list[Object]) -> None:
        """All there is."""

    async def changed(self, kind: Kind, version: str, found: Object, *, there: bool) -> None:
        """An object came, changed or, without ``there``, went."""

    def lost(self, kind: Kind, reason: str) -> None:
        """It can't be read at present."""

    def found(self, kind: Kind) -> None:
        """It can be read."""


class _VersionExpired(Exception):
    """The server has forgotten the version from which to go on."""


_ODD = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of reading an answer that is not Kubernetes'."""


async def reflect(access: Access, kind: Kind, listener: KindListener, backoff: Backoff) -> None:
    """Read a kind until cancelled; failures are reported to the listener, and retried."""
    reflector = _Reflector(access, kind, listener, backoff)
    while True:
        try:
            async with access.client(READ_SECONDS) as client:
                await reflector.read(client)
        except _VersionExpired:
            reflector.forget()
        except (httpx.HTTPError, KubernetesError, *_ODD) as error:
            listener.lost(kind, f"{access.server}: {str(error) or type(error).__name__}")
            await trio.sleep(backoff.next_seconds())


class _Reflector:
    """State: the version of the API in use, and the version up to which everything was reported."""

    def __init__(self, access: Access, kind: Kind, listener: KindListener, backoff: Backoff) -> None:
        self._access = access
        self._kind = kind
        self._listener = listener
        self._backoff = backoff
        self._version = ""
        self._position = ""

    def forget(self) -> None:
        """List again."""
        self._position = ""

    async def read(self, client: httpx.AsyncClient) -> None:
        """List where that is needed, and watch.

        Raises _VersionExpired, httpx.HTTPError, KubernetesError; one of _ODD for what is no Kubernetes.
        """
        while True:
            if not self._position and not await self._list(client):
                self._listener.found(self._kind)
                await trio.sleep(ABSENT_SECONDS)
                continue
            await self._watch(client)

    @property
    def _path(self) -> str:
        return f"/apis/{self._kind.group}/{self._version}/{self._kind.plural}"

    async def _list(self, client: httpx.AsyncClient) -> bool:
        """List all objects; False if the server does not know the kind."""
        self._version = await self._served_version(client)
        objects: list[Object] = []
        query: dict[str, str | int] = {"limit": PAGE}
        while self._version:
            reply = await client.get(self._path, params=query)
            if reply.status_code == NOT_FOUND:
                break
            page = _checked(reply)
            objects += page["items"] or ()
            if not page["metadata"].get("continue"):
                await self._listener.listed(self._kind, self._version, objects)
                self._position = page["metadata"]["resourceVersion"]
                self._backoff.reset()
                return True
            query["continue"] = page["metadata"]["continue"]
        await self._listener.listed(self._kind, "", [])
        return False

    async def _served_version(self, client: httpx.AsyncClient) -> str:
        """The newest version of the kind's group that both sides know; empty where there is none."""
        reply = await client.get(f"/apis/{self._kind.group}")
        if reply.status_code == NOT_FOUND:
            return ""
        served = {entry["version"] for entry in _checked(reply)["versions"]}
        return next((version for version in reversed(self._kind.versions) if version in served), "")

    async def _watch(self, client: httpx.AsyncClient) -> None:
        """Take changes until the server ends the watch."""
        query: dict[str, str | int] = {
            "watch": 1,
            "resourceVersion": self._position,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_SECONDS,
        }
        failure: Exception | None = None
        async with client.stream("GET", self._path, params=query) as reply:
            if reply.status_code != httpx.codes.OK:
                await reply.aread()
                _checked(reply)
            self._listener.found(self._kind)
            self._backoff.reset()
            inlet, outlet = trio.open_memory_channel[str | httpx.HTTPError](math.inf)
            async with outlet, trio.open_nursery() as nursery:
                nursery.start_soon(_read_lines, reply, inlet)
                try:
                    async for line in outlet:
                        if isinstance(line, httpx.HTTPError):
                            raise line
                        await self._take(json.loads(line))
                except Exception as error:  # not to be wrapped in a group by the nursery
                    failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _take(self, event: Object) -> None:
        found = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED" | "DELETED":
                await self._listener.changed(self._kind, self._version, found, there=event["type"] != "DELETED")
            case "BOOKMARK":
                pass
            case _:
                if found.get("code") == GONE:
                    raise _VersionExpired
                raise KubernetesError(f"watching {self._kind.plural}: {found.get('message') or found}")
        self._position = found["metadata"]["resourceVersion"]


async def _read_lines(reply: httpx.Response, inlet: trio.MemorySendChannel[str | httpx.HTTPError]) -> None:
    """Pass on the lines of a reply.

    Apart from what becomes of them: httpx does not let go of a body that is left in its middle, but by being cancelled.
    """
    with inlet:
        try:
            async for line in reply.aiter_lines():
                inlet.send_nowait(line)
        except httpx.HTTPError as error:
            inlet.send_nowait(error)


def _checked(reply: httpx.Response) -> Mapping[str, Any]:
    """The JSON of a reply. Raises _VersionExpired, KubernetesError, ValueError."""
    if reply.status_code == GONE:
        raise _VersionExpired
    if reply.status_code != httpx.codes.OK:
        try:
            reason = reply.json()["message"]
        except (ValueError, KeyError, TypeError):
            reason = reply.text[:200]
        raise KubernetesError(f"{reply.request.url.path}: {reply.status_code} {reason}")
    found = reply.json()
    if not isinstance(found, Mapping):
        raise KubernetesError(f"{reply.request.url.path}: not an object of Kubernetes")
    return found
