"""A server of MCP in a test's hand: our own service, with collections that the test fills; and a source that dials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import attrs
import trio

from mesh_pilot.api.istio.networking import v1alpha3 as networking
from mesh_pilot.base.backoff import Backoff
from mesh_pilot.model.events import Item
from mesh_pilot.net.rpc import (
    Cardinality,
    GRPCError,
    Handler,
    RpcError,
    Servable,
    StreamTerminatedError,
    open_channel,
    open_listeners,
)
from mesh_pilot.net.rpc import serve as serve_rpc
from mesh_pilot.sources.base.contract import Source
from mesh_pilot.sources.mcp.sink_server import SinkDoor, SinkServer
from mesh_pilot.sources.mcp.source import McpServer, McpSource, mcp_source, xds_source
from mesh_pilot.xds.config_api.server import McpService
from mesh_pilot.xds.mcp.collections import COLLECTIONS, XDS_COLLECTIONS
from mesh_pilot.xds.mcp.identity import PlaneIdentity
from mesh_pilot.xds.mcp.messages import McpResource
from mesh_pilot.xds.mcp.wire import (
    SINK_PATH,
    DeltaDialect,
    SotwDialect,
    decode_delta,
    decode_request,
    decode_sotw,
    encode_delta,
    encode_response,
    encode_sotw,
)

SERVICES = "istio/networking/v1alpha3/virtualservices"
IDENTITY = PlaneIdentity(host="test")
NODE = IDENTITY.mcp_node()

SOTW_PATH, DELTA_PATH = SotwDialect(NODE).path, DeltaDialect(NODE).path


def virtual_service(name: str, version: int) -> McpResource:
    """A VirtualService; its version is a time-out."""
    spec = networking.VirtualService.from_dict(
        {"hosts": [name], "http": [{"route": [{"destination": {"host": name}}], "timeout": f"{version}s"}]}
    )
    return McpResource(f"default/{name}", f"v{version}", COLLECTIONS[SERVICES].type_url, bytes(spec))


def bad_service(name: str) -> McpResource:
    """One with nowhere to go."""
    spec = networking.VirtualService(hosts=[name])
    return McpResource(f"default/{name}", "bad", COLLECTIONS[SERVICES].type_url, bytes(spec))


@attrs.define
class TestCollections:
    """Collections of resources, with whoever is to be woken."""

    __test__ = False

    collections: dict[str, dict[str, McpResource]] = attrs.field(factory=dict)
    log: dict[str, list[str]] = attrs.field(factory=dict)
    watchers: dict[object, Callable[[], None]] = attrs.field(factory=dict)

    def put(self, collection: str, resource: McpResource) -> None:
        self.collections.setdefault(collection, {})[resource.name] = resource
        self._changed(collection, resource.name)

    def remove(self, collection: str, name: str) -> None:
        del self.collections[collection][name]
        self._changed(collection, name)

    def _changed(self, collection: str, name: str) -> None:
        self.log.setdefault(collection, []).append(name)
        for wake in self.watchers.values():
            wake()

    def revision(self, collection: str) -> int:
        return len(self.log.get(collection, ()))

    def resources(self, collection: str) -> Mapping[str, McpResource]:
        return self.collections.get(collection, {})

    def changed_since(self, collection: str, revision: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.log.get(collection, [])[revision:]))

    def watch(self, who: object, wake: Callable[[], None]) -> None:
        self.watchers[who] = wake

    def unwatch(self, who: object) -> None:
        self.watchers.pop(who, None)


@attrs.define
class _Only:
    """A service with some of the methods of another."""

    service: McpService
    prefix: str

    def __mapping__(self) -> Mapping[str, Handler]:
        return {path: handler for path, handler in self.service.__mapping__().items() if path.startswith(self.prefix)}


class CollectionsFeed:
    """A resource an object, whichever way it travels."""

    source: Source

    def __init__(self) -> None:
        self.served = TestCollections()

    async def put(self, name: str, version: int) -> None:
        self.served.put(SERVICES, virtual_service(name, version))

    async def put_bad(self, name: str) -> None:
        self.served.put(SERVICES, bad_service(name))

    async def remove(self, name: str) -> None:
        self.served.remove(SERVICES, f"default/{name}")

    def key(self, name: str) -> tuple[str, ...]:
        return ("config", "VirtualService", "default", name)

    def version(self, item: Item) -> int:
        return int(item.spec.http[0].timeout.total_seconds())  # type: ignore[union-attr]


class McpFeed(CollectionsFeed):
    """A server that can be stopped and started on its port."""

    def __init__(self, nursery: trio.Nursery, port: int, *, incremental: bool, only: str) -> None:
        super().__init__()
        self._nursery = nursery
        self._only = only
        self.address = f"127.0.0.1:{port}"
        self.source: McpSource = mcp_source(McpServer(address=self.address, incremental=incremental), IDENTITY)
        self.source._backoff = Backoff(first_seconds=0.01, limit_seconds=0.05)
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()

    @classmethod
    async def open(cls, nursery: trio.Nursery, port: int, *, incremental: bool = True, only: str = "") -> McpFeed:
        feed = cls(nursery, port, incremental=incremental, only=only)
        await feed.restore()
        return feed

    async def break_off(self) -> None:
        self._scope.cancel()
        await self._stopped.wait()

    async def restore(self) -> None:
        await self._nursery.start(self._serve)

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._stopped = trio.Event()
        with trio.CancelScope() as self._scope:
            listeners = await open_listeners(self.address)
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(serve_rpc, [self._service()], listeners))
                task_status.started()
        self._stopped.set()

    def _service(self) -> Servable:
        return _Only(McpService(self.served), self._only)


class _XdsService:
    """Served collections over ADS, which answers in every version of a type, as istiods do."""

    def __init__(self, served: TestCollections, *, delta: bool) -> None:
        self._service = McpService(_XdsCollections(served))
        self._delta = delta

    def __mapping__(self) -> Mapping[str, Handler]:
        methods = {SOTW_PATH: (decode_sotw, encode_sotw)}
        if self._delta:
            methods[DELTA_PATH] = (decode_delta, encode_delta)  # type: ignore[assignment]
        return {
            path: Handler(
                partial(self._service._handle, decode=decode, encode=encode), Cardinality.STREAM_STREAM, bytes, bytes
            )
            for path, (decode, encode) in methods.items()
        }


@attrs.define
class _XdsCollections:
    """The same under the names that collections have over xDS."""

    served: TestCollections

    def _name(self, collection: str) -> str:
        return XDS_COLLECTIONS[collection].name

    def revision(self, collection: str) -> int:
        return self.served.revision(self._name(collection))

    def resources(self, collection: str) -> Mapping[str, McpResource]:
        return self.served.resources(self._name(collection))

    def changed_since(self, collection: str, revision: int) -> tuple[str, ...]:
        return self.served.changed_since(self._name(collection), revision)

    def watch(self, who: object, wake: Callable[[], None]) -> None:
        self.served.watch(who, wake)

    def unwatch(self, who: object) -> None:
        self.served.unwatch(who)


class XdsFeed(McpFeed):
    """The same over xDS: Delta, or State of the World because the server has no other."""

    def __init__(self, nursery: trio.Nursery, port: int, *, delta: bool) -> None:
        super().__init__(nursery, port, incremental=True, only="")
        self._delta = delta
        self.source = xds_source(McpServer(address=self.address), IDENTITY)
        self.source._backoff = Backoff(first_seconds=0.01, limit_seconds=0.05)

    @classmethod
    async def open_xds(cls, nursery: trio.Nursery, port: int, *, delta: bool) -> XdsFeed:
        feed = cls(nursery, port, delta=delta)
        await feed.restore()
        return feed

    def _service(self) -> _XdsService:
        return _XdsService(self.served, delta=self._delta)


async def _admit(_: object) -> None:
    await trio.lowlevel.checkpoint()


ANYBODY = SinkDoor(_admit, lambda addresses: None)
"""The door of a sink that takes configuration from whoever dials, in plaintext."""


class SinkFeed(CollectionsFeed):
    """A source that dials, as Galley does: with a trigger first, and again whenever the stream ends."""

    def __init__(self, nursery: trio.Nursery, port: int) -> None:
        super().__init__()
        self._nursery = nursery
        self.address = f"127.0.0.1:{port}"
        self.source: SinkServer = SinkServer(self.address, IDENTITY, door=ANYBODY)
        self._scope = trio.CancelScope()

    @classmethod
    async def open(cls, nursery: trio.Nursery, port: int) -> SinkFeed:
        feed = cls(nursery, port)
        await feed.restore()
        return feed

    async def break_off(self) -> None:
        self._scope.cancel()

    async def restore(self) -> None:
        await self._nursery.start(self._dial)

    async def _dial(self, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self._scope:
            task_status.started()  # from now on it can be broken off: two that dial would only displace each other
            while True:
                try:
                    async with open_channel(self.address) as channel:
                        call = channel.request(SINK_PATH, Cardinality.STREAM_STREAM, bytes, bytes)
                        async with call:
                            await call.send_message(b"")  # the trigger: a response for no collection
                            service = McpService(self.served)
                            await service.serve_stream(call, self.address, decode_request, encode_response)
                except (RpcError, StreamTerminatedError, GRPCError):
                    pass
                await trio.sleep(0.02)
