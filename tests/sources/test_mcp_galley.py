"""Servers that behave as Galley 1.1 does: whole collections only, and no patience with those it does not have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import betterproto2
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mesh_pilot.api.istio.authentication.v1alpha1 import Policy
from mesh_pilot.api.istio.rbac.v1alpha1 import (
    AccessRule,
    RbacConfig,
    RbacConfigMode,
    RoleRef,
    ServiceRole,
    ServiceRoleBinding,
    Subject,
)
from mesh_pilot.net.rpc import (
    Cardinality,
    Channel,
    ClientCall,
    GRPCError,
    Handler,
    RpcError,
    ServerStream,
    Status,
    StreamTerminatedError,
    open_channel,
    open_listeners,
)
from mesh_pilot.net.rpc import serve as serve_rpc
from mesh_pilot.sources.mcp.dump import read_once
from mesh_pilot.sources.mcp.receiver import McpReceiver
from mesh_pilot.sources.mcp.sink_server import MAX_GIVE_UPS, SinkServer
from mesh_pilot.sources.mcp.source import McpServer, mcp_dialects, mcp_source
from mesh_pilot.xds.config_api.server import McpService
from mesh_pilot.xds.mcp.collections import COLLECTIONS
from mesh_pilot.xds.mcp.identity import SinkNode
from mesh_pilot.xds.mcp.messages import McpRequest, McpResource
from mesh_pilot.xds.mcp.wire import (
    AGGREGATED_PATH,
    SINK_PATH,
    SOURCE_PATH,
    SourceDialect,
    decode_aggregated_request,
    decode_request,
    encode_aggregated_response,
    encode_response,
)
from tests.sources.conformance import running
from tests.sources.mcp_feed import ANYBODY, IDENTITY, NODE, SERVICES, TestCollections, virtual_service

OFFERED = frozenset(
    name
    for name in COLLECTIONS
    if name.startswith(("istio/networking/v1alpha3", "istio/rbac", "istio/auth", "istio/mixer"))
) - {"istio/networking/v1alpha3/workloadentries", "istio/networking/v1alpha3/workloadgroups"}

GATEWAYS = "istio/networking/v1alpha3/gateways"
QUOTAS = "istio/mixer/v1/config/client/quotaspecs"


@attrs.define
class GalleyLike:
    """What a Galley says to those who ask it."""

    served: TestCollections = attrs.field(factory=TestCollections)
    seen: list[McpRequest] = attrs.field(factory=list)
    paths: tuple[str, ...] = (SOURCE_PATH,)
    silent: frozenset[str] = frozenset()
    by_type: bool = False
    """True if collections are called by the types of their bodies."""

    def __mapping__(self) -> Mapping[str, Handler]:
        handlers = {SOURCE_PATH: self._source, AGGREGATED_PATH: self._aggregated}
        return {path: Handler(handlers[path], Cardinality.STREAM_STREAM, bytes, bytes) for path in self.paths}

    async def _source(self, call: ServerStream[bytes, bytes]) -> None:
        await McpService(self.served).serve_stream(call, "", self.decode, encode_response)

    async def _aggregated(self, call: ServerStream[bytes, bytes]) -> None:
        await McpService(self.served).serve_stream(call, "", self._decode_aggregated, self._encode_aggregated)

    def decode(self, data: bytes) -> tuple[McpRequest, SinkNode | None]:
        request, node = decode_request(data)
        return self._checked(request), node

    def _decode_aggregated(self, data: bytes) -> tuple[McpRequest, SinkNode | None]:
        request, node = decode_aggregated_request(data)
        if self.by_type:
            named = {COLLECTIONS[name].type_url: name for name in sorted(OFFERED, reverse=True)}
            request = attrs.evolve(request, collection=named.get(request.collection, f"type {request.collection}"))
        return self._checked(request), node

    def _encode_aggregated(self, response) -> bytes:  # type: ignore[no-untyped-def]
        name = COLLECTIONS[response.collection].type_url if self.by_type else response.collection
        return encode_aggregated_response(attrs.evolve(response, collection=name))

    def _checked(self, request: McpRequest) -> McpRequest:
        self.seen.append(request)
        if request.collection not in OFFERED and request.error is None:
            raise GRPCError(Status.INVALID_ARGUMENT, f'unsupported collection "{request.collection}"')
        if request.collection in self.silent:
            request = attrs.evolve(request, error=self.seen)  # a request with an error and no watch asks for nothing
        return attrs.evolve(request, incremental=False, versions={})


@asynccontextmanager
async def serving(galley: GalleyLike) -> AsyncIterator[str]:
    """A Galley at work, for the length of the block; gives its address."""
    listeners = await open_listeners("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve_rpc, [galley], listeners))
        yield server.addresses[0]
        nursery.cancel_scope.cancel()


async def test_collections_that_a_galley_does_not_have_are_left_out() -> None:
    galley = GalleyLike()
    galley.served.put(SERVICES, virtual_service("one", 1))
    async with serving(galley) as address:
        source = mcp_source(McpServer(address=address), IDENTITY)
        async with running(source) as follower:
            await follower.until_synced()
            assert list(follower.picture.items) == [("config", "VirtualService", "default", "one")]
            assert set(source.statistics().not_offered) == set(COLLECTIONS) - OFFERED
            galley.served.put(SERVICES, virtual_service("two", 1))
            await follower.until(lambda picture: len(picture.items) == 2)


async def test_a_collection_that_is_never_answered_holds_up_the_start_only_so_long(autojump_clock: MockClock) -> None:
    autojump_clock.rate = 1.0  # servers admit streams at a rate; the test's own loop keeps the clock from jumping
    galley = GalleyLike(silent=frozenset((GATEWAYS,)))
    galley.served.put(SERVICES, virtual_service("one", 1))
    async with serving(galley) as address:
        source = mcp_source(McpServer(address=address, answer_timeout_seconds=0.3), IDENTITY)
        send, receive = trio.open_memory_channel(100)
        async with trio.open_nursery() as nursery:
            await nursery.start(source.run, send)
            while not source.statistics().judged:
                await trio.testing.wait_all_tasks_blocked()
            assert source.statistics().waiting_for == f"no answer yet for {GATEWAYS}"
            await receive.receive()
            assert source.statistics().synced
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("by_type", [False, True])
async def test_an_older_server_is_asked_as_it_understands(by_type: bool) -> None:
    galley = GalleyLike(paths=(AGGREGATED_PATH,), by_type=by_type)
    galley.served.put(SERVICES, virtual_service("one", 1))
    async with serving(galley) as address, running(mcp_source(McpServer(address=address), IDENTITY)) as follower:
        await follower.until_synced()
        assert list(follower.picture.items) == [("config", "VirtualService", "default", "one")]
        galley.served.put(SERVICES, virtual_service("two", 1))
        await follower.until(lambda picture: len(picture.items) == 2)


async def test_legacy_kinds_without_effect_are_kept_and_come_with_a_warning() -> None:
    galley = GalleyLike()
    galley.served.put(QUOTAS, McpResource("default/few", "1", COLLECTIONS[QUOTAS].type_url, b""))
    async with serving(galley) as address, running(mcp_source(McpServer(address=address), IDENTITY)) as follower:
        await follower.until_synced()
        (item,) = follower.picture.items.values()
        assert "nothing in a current Envoy carries it out" in item.warnings[0].reason  # type: ignore[union-attr]


async def test_a_dump_has_what_is_there_and_says_what_is_not() -> None:
    galley = GalleyLike()
    galley.served.put(SERVICES, virtual_service("one", 1))
    names = (SERVICES, GATEWAYS, "k8s/core/v1/pods")
    async with serving(galley) as address:
        found = await read_once(McpServer(address=address), mcp_dialects(IDENTITY, names), names, 5)
    assert {name: len(held) for name, held in found.collections.items()} == {SERVICES: 1, GATEWAYS: 0}
    assert (found.unanswered, found.not_offered) == ((), ("k8s/core/v1/pods",))


async def test_a_galley_that_dials_and_gives_up_over_a_collection_is_not_asked_for_it_again(
    free_ports: Callable[[int], list[int]],
) -> None:
    galley = GalleyLike()
    galley.served.put(SERVICES, virtual_service("one", 1))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    source = SinkServer(address, IDENTITY, door=ANYBODY)
    async with running(source) as follower, trio.open_nursery() as nursery:
        nursery.start_soon(dial_for_ever, galley, address)
        await follower.until_synced()
        assert list(follower.picture.items) == [("config", "VirtualService", "default", "one")]
        galley.served.put(SERVICES, virtual_service("two", 1))
        await follower.until(lambda picture: len(picture.items) == 2)
        nursery.cancel_scope.cancel()


async def dial_for_ever(galley: GalleyLike, address: str) -> None:
    """Open one stream after the other on one connection; a stream that was given up is never closed."""
    async with open_channel(address) as channel:
        while True:
            call = channel.request(SINK_PATH, Cardinality.STREAM_STREAM, bytes, bytes)
            try:
                await call.send_message(b"")
                await McpService(galley.served).serve_stream(call, address, galley.decode, encode_response)
            except (GRPCError, RpcError, StreamTerminatedError):
                await trio.sleep(0.005)


async def test_a_source_whose_streams_end_is_asked_for_everything_again(
    free_ports: Callable[[int], list[int]],
) -> None:
    galley = GalleyLike()
    galley.served.put(SERVICES, virtual_service("one", 1))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with running(SinkServer(address, IDENTITY, door=ANYBODY)) as follower:
        asked = []
        for _ in range(2 * MAX_GIVE_UPS):  # killed while it is asked for the first collection
            async with open_channel(address) as channel, stream_to_sink(channel) as call:
                await call.send_message(b"")
                await call.recv_message()
                asked.append(await first_request(call))
        assert len(set(asked)) == 1
        async with open_channel(address) as channel, stream_to_sink(channel) as call:
            await call.send_message(b"")
            await call.recv_message()
            assert await first_request(call) == asked[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial_for_ever, galley, address)
            await follower.until_synced()
            nursery.cancel_scope.cancel()


async def test_sources_that_take_each_others_place_are_not_taken_to_lack_anything(
    free_ports: Callable[[int], list[int]],
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with running(SinkServer(address, IDENTITY, door=ANYBODY)), AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(open_channel(address)) for _ in range(2)]
        asked = []
        for number in range(3 * MAX_GIVE_UPS):
            call = await stack.enter_async_context(stream_to_sink(channels[number % 2]))
            await call.send_message(b"")
            await call.recv_message()
            asked.append(await first_request(call))
        assert len(set(asked)) == 1


async def test_a_source_that_was_asked_before_it_greeted_is_not_taken_to_lack_what_it_was_asked_for(
    free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh_pilot.sources.mcp.sink_server.GREETING_SECONDS", 0.0)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with running(SinkServer(address, IDENTITY, door=ANYBODY)), AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_channel(address))
        asked = []
        for _ in range(2 * MAX_GIVE_UPS):
            call = await stack.enter_async_context(stream_to_sink(channel))
            await call.send_request()
            asked.append(await first_request(call))
            await call.send_message(b"")
            assert await first_request(call) == ""
        assert len(set(asked)) == 1


def stream_to_sink(channel: Channel) -> ClientCall[bytes, bytes]:
    return channel.request(SINK_PATH, Cardinality.STREAM_STREAM, bytes, bytes)


async def first_request(call: ClientCall[bytes, bytes]) -> str:
    """The collection that the next request is about."""
    data = await call.recv_message()
    assert data is not None
    return decode_request(data)[0].collection


async def test_a_source_is_asked_once_it_has_greeted_or_said_nothing_for_a_moment(mock_clock: MockClock) -> None:
    for says, expected in ((b"", ["", "a"]), (None, ["a"])):
        inbox_send, inbox = trio.open_memory_channel[bytes](1)
        said: list[str] = []

        @attrs.frozen
        class Call:
            async def recv_message(self) -> bytes | None:
                return await inbox.receive()  # noqa: B023

            async def send_message(self, message: bytes, /) -> None:
                said.append(decode_request(message)[0].collection)  # noqa: B023

        receiver = McpReceiver("sink", "sink", {"a": COLLECTIONS[GATEWAYS]})
        async with trio.open_nursery() as nursery:
            talk = partial(receiver.run_stream, one_by_one=True, greeting_seconds=1.0)
            nursery.start_soon(talk, Call(), SourceDialect(NODE, SINK_PATH))
            await trio.testing.wait_all_tasks_blocked()
            assert said == []
            if says is None:
                mock_clock.jump(1)
            else:
                await inbox_send.send(says)
            await trio.testing.wait_all_tasks_blocked()
            assert said == expected
            nursery.cancel_scope.cancel()


async def test_the_security_kinds_of_a_galley_are_read() -> None:
    bodies: dict[str, tuple[str, betterproto2.Message]] = {
        "istio/authentication/v1alpha1/policies": ("shop/default", Policy()),
        "istio/authentication/v1alpha1/meshpolicies": ("default", Policy()),
        "istio/rbac/v1alpha1/serviceroles": ("shop/reader", ServiceRole(rules=[AccessRule(services=["*"])])),
        "istio/rbac/v1alpha1/servicerolebindings": (
            "shop/readers",
            ServiceRoleBinding(subjects=[Subject(user="*")], role_ref=RoleRef(kind="ServiceRole", name="reader")),
        ),
        "istio/rbac/v1alpha1/rbacconfigs": ("istio-system/default", RbacConfig()),
        "istio/rbac/v1alpha1/clusterrbacconfigs": ("default", RbacConfig(mode=RbacConfigMode.ON)),
    }
    galley = GalleyLike()
    for collection, (name, body) in bodies.items():
        galley.served.put(collection, McpResource(name, "1", COLLECTIONS[collection].type_url, bytes(body)))
    async with serving(galley) as address, running(mcp_source(McpServer(address=address), IDENTITY)) as follower:
        await follower.until_synced()
        assert {key[1:] for key in follower.picture.items} == {
            ("Policy", "shop", "default"),
            ("MeshPolicy", "", "default"),
            ("ServiceRole", "shop", "reader"),
            ("ServiceRoleBinding", "shop", "readers"),
            ("RbacConfig", "istio-system", "default"),
            ("ClusterRbacConfig", "", "default"),
        }
        for item in follower.picture.items.values():
            assert ["is deprecated" in w.reason for w in item.warnings] == [True]  # type: ignore[union-attr]
