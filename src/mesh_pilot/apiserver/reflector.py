"""A reflector lists and watches the objects of one resource, for ever.

Source of the rules: Kubernetes, "API Concepts": a list says at which version it is, a watch goes on from there; where
the server has forgotten that version it says 410 Gone, and the list is read again.
"""

from __future__ import annotations

import json
import math
from typing import Protocol

import httpx
import trio

from mesh_pilot.apiserver.access import KubernetesError
from mesh_pilot.apiserver.client import METADATA_EVENT, METADATA_LIST, PAGE, ApiClient, ApiServerError, selectors
from mesh_pilot.apiserver.resource import ApiResource, Object

WATCH_SECONDS = 240
"""The length of a watch; the server ends it then, and the next goes on."""

READ_SECONDS = WATCH_SECONDS + 30.0
"""The longest silence of the server: it ends a watch in time, and sends bookmarks."""

ABSENT_SECONDS = 30.0
"""The interval at which a resource that the server does not know is tried again."""

GONE, NOT_FOUND = 410, 404


class ResourceListener(Protocol):
    """The receiver of the objects of a resource; ``version`` is that of the API in which they are."""

    async def listed(self, resource: ApiResource, version: str, objects: list[Object]) -> None:
        """All there is; none in version ``""`` if the server does not know the resource."""

    async def changed(self, resource: ApiResource, version: str, found: Object, *, there: bool) -> None:
        """An object came, changed or, without ``there``, went."""

    def lost(self, resource: ApiResource, reason: str) -> None:
        """It can't be read at present: its last objects stay."""

    def found(self, resource: ApiResource) -> None:
        """It can be read."""


class RetryDelays(Protocol):
    """The waits between retries, as `sources.base.Backoff` has them."""

    def next_seconds(self) -> float:
        """The time to wait now."""

    def reset(self) -> None:
        """It has worked."""


class _VersionExpired(Exception):
    """The server has forgotten the version from which to go on."""


_ODD = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of reading an answer that is not Kubernetes'."""


async def reflect(
    client: ApiClient,
    resource: ApiResource,
    listener: ResourceListener,
    backoff: RetryDelays,
    *,
    namespace: str = "",
    label_selector: str = "",
    field_selector: str = "",
    metadata_only: bool = False,
) -> None:
    """Read a resource until cancelled; failures are reported to the listener, and retried.

    ``metadata_only``: its objects have nothing but ``metadata``, and cost the server and us as little.
    """
    reflector = _Reflector(
        client, resource, listener, backoff, namespace, selectors(label_selector, field_selector), metadata_only
    )
    while True:
        try:
            await reflector.read()
        except _VersionExpired:
            reflector.forget()
        except (httpx.HTTPError, KubernetesError, *_ODD) as error:
            if isinstance(error, ApiServerError) and error.status in (GONE, NOT_FOUND):
                reflector.forget()
                if error.status == GONE:
                    continue
            listener.lost(resource, f"{client.access.server}: {str(error) or type(error).__name__}")
            await trio.sleep(backoff.next_seconds())


class _Reflector:
    """State: the version of the API in use, and the version up to which everything was reported."""

    def __init__(
        self,
        client: ApiClient,
        resource: ApiResource,
        listener: ResourceListener,
        backoff: RetryDelays,
        namespace: str,
        selection: dict[str, str | int],
        metadata_only: bool,
    ) -> None:
        self._client = client
        self._resource = resource
        self._listener = listener
        self._backoff = backoff
        self._namespace = namespace
        self._selection = selection
        self._metadata_only = metadata_only
        self._version = ""
        self._position = ""

    def forget(self) -> None:
        """List again."""
        self._position = ""

    async def read(self) -> None:
        """List where that is needed, and watch.

        Raises _VersionExpired, httpx.HTTPError, KubernetesError; one of _ODD for what is no Kubernetes.
        """
        while True:
            if not self._position and not await self._list():
                self._listener.found(self._resource)
                await trio.sleep(ABSENT_SECONDS)
                continue
            await self._watch()

    @property
    def _path(self) -> str:
        return self._resource.path(self._version, self._namespace)

    async def _list(self) -> bool:
        """List all objects; False if the server does not know the resource."""
        self._version = await self._client.served_version(self._resource)
        objects: list[Object] = []
        params = {"limit": PAGE, **self._selection}
        accept = METADATA_LIST if self._metadata_only else ""
        while self._version:
            try:
                page = await self._client.request("GET", self._path, params=params, accept=accept)
            except ApiServerError as error:
                if error.status == NOT_FOUND:
                    break
                raise
            objects += page["items"] or ()
            if not page["metadata"].get("continue"):
                await self._listener.listed(self._resource, self._version, objects)
                self._position = page["metadata"]["resourceVersion"]
                self._backoff.reset()
                return True
            params["continue"] = page["metadata"]["continue"]
        await self._listener.listed(self._resource, "", [])
        return False

    async def _watch(self) -> None:
        """Take changes until the server ends the watch."""
        params: dict[str, str | int] = {
            **self._selection,
            "watch": 1,
            "resourceVersion": self._position,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_SECONDS,
        }
        failure: Exception | None = None
        accept = METADATA_EVENT if self._metadata_only else ""
        async with self._client.stream(self._path, params=params, accept=accept, read_seconds=READ_SECONDS) as reply:
            self._listener.found(self._resource)
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
                await self._listener.changed(self._resource, self._version, found, there=event["type"] != "DELETED")
            case "BOOKMARK":
                pass
            case _:
                if found.get("code") == GONE:
                    raise _VersionExpired
                raise KubernetesError(f"watching {self._resource.plural}: {found.get('message') or found}")
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
