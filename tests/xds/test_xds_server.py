"""The binding, over real sockets: grpcio clients against our server."""

from __future__ import annotations

import gc
import queue
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import grpc
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node as NodeMessage
from envoy.service.cluster.v3 import cds_pb2_grpc
from envoy.service.discovery.v3 import ads_pb2_grpc
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DiscoveryRequest, DiscoveryResponse
from envoy.service.endpoint.v3 import eds_pb2_grpc
from envoy.service.extension.v3 import config_discovery_pb2_grpc
from envoy.service.listener.v3 import lds_pb2_grpc
from envoy.service.route.v3 import rds_pb2_grpc
from envoy.service.secret.v3 import sds_pb2_grpc
from google.protobuf.message import Message
from structlog.testing import capture_logs

from mesh_pilot.model.bounds import Bounds
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, RESOURCE_TYPES, ROUTE, SECRET
from mesh_pilot.net.rpc import Cardinality, ClientCall, GRPCError, Limits, Server, open_channel, open_listeners, serve
from mesh_pilot.xds.ads import context
from mesh_pilot.xds.ads.context import XdsOptions
from mesh_pilot.xds.ads.server import XdsServer
from tests.support.patience import PATIENT_CLIENT, PATIENT_SERVER
from tests.xds.fake_world import NODE, FakeWorld, node

SECONDS = 60.0
"""Longer than anything here takes on a busy machine."""


ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


class Plane:
    """A world served on loopback."""

    def __init__(self, world: FakeWorld, xds: XdsServer, server: Server) -> None:
        self.world = world
        self.xds = xds
        self.server = server

    @property
    def address(self) -> str:
        return self.server.addresses[0]

    async def until_idle(self) -> None:
        """Until no stream is there."""
        while self.xds.statistics().streams:  # noqa: ASYNC110  the kernel tells of closed sockets when it likes
            await trio.sleep(0.005)


@asynccontextmanager
async def plane(options: XdsOptions | None = None, limits: Limits = PATIENT_SERVER) -> AsyncIterator[Plane]:
    world = FakeWorld()
    for type_url in RESOURCE_TYPES:
        for name in ("a", "b"):
            world.put(type_url, name)
    xds = XdsServer(world, identifier="mesh-pilot test", options=options or XdsOptions())
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve, xds.services(), await open_listeners("127.0.0.1:0"), limits=limits))
        made = Plane(world, xds, server)
        yield made
        await made.until_idle()
        nursery.cancel_scope.cancel()
    assert world.open_resources == []


@asynccontextmanager
async def stream_of(here: Plane, first: Message) -> AsyncIterator[ClientCall[bytes, bytes]]:
    """One ADS stream of our own client on its own connection, its first request sent."""
    method = "StreamAggregatedResources" if isinstance(first, DiscoveryRequest) else "DeltaAggregatedResources"
    path = f"/envoy.service.discovery.v3.AggregatedDiscoveryService/{method}"
    async with (
        open_channel(here.address, tls=None, limits=PATIENT_CLIENT) as channel,
        channel.request(path, Cardinality.STREAM_STREAM, bytes, bytes) as call,
    ):
        await call.send_message(first.SerializeToString())
        yield call


async def in_thread(function: Any, *arguments: object) -> Any:
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)


class Talk:
    """A grpcio stream, used from a thread: requests from a queue, responses one at a time."""

    def __init__(self, method: Any) -> None:
        self._requests: queue.Queue[Message | None] = queue.Queue()
        self._call = method(iter(self._requests.get, None), timeout=SECONDS)

    def send(self, request: Message) -> None:
        self._requests.put(request)

    def receive(self) -> Any:
        return next(self._call)

    def status(self) -> tuple[grpc.StatusCode, str]:
        """How the server ended the stream."""
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self._call:
                pass
        self._requests.put(None)
        return caught.value.code(), caught.value.details()

    def cancel(self) -> None:
        self._requests.put(None)
        self._call.cancel()


def node_message() -> NodeMessage:
    message = NodeMessage(id=NODE.id, cluster="web")
    message.metadata.update({"NAMESPACE": "store", "LABELS": {"app": "web"}, "list": [1, True, None, "x"]})
    message.locality.region = "r1"
    version = message.user_agent_build_version.version
    version.major_number, version.minor_number, version.patch = 1, 40, 2
    return message


def sotw(type_url: str, *names: str, **fields: Any) -> DiscoveryRequest:
    return DiscoveryRequest(type_url=type_url, resource_names=names, **fields)


def delta(type_url: str, *subscribe: str, **fields: Any) -> DeltaDiscoveryRequest:
    return DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=subscribe, **fields)


@pytest.fixture
def channels() -> Iterator[Any]:
    """Opens grpcio channels that are closed after the test."""
    opened = []

    def open_one(plane: Plane) -> grpc.Channel:
        channel = grpc.insecure_channel(plane.address, options=[("grpc.enable_http_proxy", 0)])
        opened.append(channel)
        return channel

    yield open_one
    for channel in opened:
        channel.close()


async def test_state_of_the_world_over_ads(channels: Any) -> None:
    def converse(here: Plane) -> None:
        talk = Talk(ads_pb2_grpc.AggregatedDiscoveryServiceStub(channels(here)).StreamAggregatedResources)
        talk.send(sotw(CLUSTER, node=node_message()))
        clusters = talk.receive()
        assert [any.type_url for any in clusters.resources] == [CLUSTER, CLUSTER]
        assert [any.value for any in clusters.resources] == [b"a", b"b"]
        assert clusters.control_plane.identifier == "mesh-pilot test"
        talk.send(sotw(CLUSTER, version_info=clusters.version_info, response_nonce=clusters.nonce))
        talk.send(sotw(ENDPOINT, "b"))
        assert [any.value for any in talk.receive().resources] == [b"b"]
        trio.from_thread.run_sync(here.world.put, CLUSTER, "c", "new")
        assert [any.value for any in talk.receive().resources] == [b"a", b"b", b"new"]
        talk.cancel()

    async with plane() as here:
        await in_thread(converse, here)


async def test_delta_over_ads(channels: Any) -> None:
    def converse(here: Plane) -> None:
        talk = Talk(ads_pb2_grpc.AggregatedDiscoveryServiceStub(channels(here)).DeltaAggregatedResources)
        versions = {name: found.version for name, found in here.world.sets[LISTENER].all().items()}
        talk.send(
            DeltaDiscoveryRequest(
                type_url=LISTENER, node=node_message(), initial_resource_versions={**versions, "b": "old", "gone": "1"}
            )
        )
        listeners = talk.receive()
        (resource,) = listeners.resources
        assert (resource.name, resource.resource.type_url, resource.resource.value) == ("b", LISTENER, b"b")
        assert resource.version == versions["b"]
        assert list(listeners.removed_resources) == ["gone"]
        talk.send(DeltaDiscoveryRequest(type_url=LISTENER, response_nonce=listeners.nonce))
        trio.from_thread.run_sync(here.world.remove, LISTENER, "a")
        assert list(talk.receive().removed_resources) == ["a"]
        talk.cancel()

    async with plane() as here:
        await in_thread(converse, here)


@pytest.mark.parametrize(
    ("stub", "what", "type_url"),
    [
        (cds_pb2_grpc.ClusterDiscoveryServiceStub, "Clusters", CLUSTER),
        (eds_pb2_grpc.EndpointDiscoveryServiceStub, "Endpoints", ENDPOINT),
        (lds_pb2_grpc.ListenerDiscoveryServiceStub, "Listeners", LISTENER),
        (rds_pb2_grpc.RouteDiscoveryServiceStub, "Routes", ROUTE),
        (sds_pb2_grpc.SecretDiscoveryServiceStub, "Secrets", SECRET),
        (config_discovery_pb2_grpc.ExtensionConfigDiscoveryServiceStub, "ExtensionConfigs", EXTENSION),
    ],
)
async def test_each_type_has_a_service_of_its_own(channels: Any, stub: Any, what: str, type_url: str) -> None:
    def converse(here: Plane) -> None:
        service = stub(channels(here))
        talk = Talk(getattr(service, f"Stream{what}"))
        talk.send(DiscoveryRequest(resource_names=["a"], node=node_message()))
        response = talk.receive()
        assert (response.type_url, [any.value for any in response.resources]) == (type_url, [b"a"])
        talk.send(sotw(SECRET if type_url != SECRET else ROUTE))
        code, details = talk.status()
        assert (code, f"serves {type_url}" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        talk = Talk(getattr(service, f"Delta{what}"))
        talk.send(delta(type_url, "b", node=node_message()))
        assert [resource.name for resource in talk.receive().resources] == ["b"]
        talk.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            getattr(service, f"Fetch{what}")(DiscoveryRequest(), timeout=SECONDS)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    async with plane() as here:
        await in_thread(converse, here)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (DiscoveryRequest(type_url=CLUSTER), "must have a node"),
        (DiscoveryRequest(type_url=CLUSTER, node=NodeMessage(id="web-1")), "malformed node id 'web-1'"),
        (DiscoveryRequest(node=node_message()), "must have a type URL"),
    ],
)
async def test_a_bad_request_ends_its_stream_with_a_reason_and_a_log_line(
    channels: Any, request_: Message, words: str
) -> None:
    def converse(here: Plane) -> tuple[grpc.StatusCode, str]:
        talk = Talk(ads_pb2_grpc.AggregatedDiscoveryServiceStub(channels(here)).StreamAggregatedResources)
        talk.send(request_)
        return talk.status()

    with capture_logs() as logs:
        async with plane() as here:
            code, details = await in_thread(converse, here)
            statistics = here.xds.statistics()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    assert [entry["reason"] for entry in logs if entry["event"] == "stream refused"] == [details]
    assert statistics.xds.refused_streams == {"INVALID_ARGUMENT": 1}


async def test_bytes_that_are_no_request_end_the_stream(channels: Any) -> None:
    def converse(here: Plane) -> tuple[grpc.StatusCode, str]:
        path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
        call = channels(here).stream_stream(path)(iter([b"\xff\xff\xff"]), timeout=SECONDS)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        return caught.value.code(), caught.value.details()

    async with plane() as here:
        code, details = await in_thread(converse, here)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be decoded" in details


async def test_a_client_that_half_closes_still_gets_its_answer(channels: Any) -> None:
    def converse(here: Plane) -> list[Any]:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channels(here))
        requests = [sotw(CLUSTER, node=node_message()), sotw(LISTENER)]
        return list(stub.StreamAggregatedResources(iter(requests), timeout=SECONDS))

    async with plane() as here:
        assert [response.type_url for response in await in_thread(converse, here)] == [CLUSTER, LISTENER]


async def test_the_status_tells_what_each_proxy_has(channels: Any) -> None:
    rule = ConfigKey("DestinationRule", "shop", "a")

    def converse(here: Plane) -> None:
        talk = Talk(ads_pb2_grpc.AggregatedDiscoveryServiceStub(channels(here)).StreamAggregatedResources)
        talk.send(sotw(CLUSTER, node=node_message()))
        clusters = talk.receive()
        talk.send(sotw(CLUSTER, version_info=clusters.version_info, response_nonce=clusters.nonce))
        talk.send(sotw(ENDPOINT, "a"))
        endpoints = talk.receive()
        trio.from_thread.run_sync(check_first, here, clusters, endpoints)
        refusal = sotw(ENDPOINT, "a", response_nonce=endpoints.nonce)
        refusal.error_detail.code, refusal.error_detail.message = 13, "no such address"
        talk.send(refusal)
        talk.send(sotw(ROUTE, "a"))
        talk.receive()
        trio.from_thread.run_sync(check_refused, here)
        talk.cancel()

    def check_first(here: Plane, clusters: Any, endpoints: Any) -> None:
        (connection,) = here.xds.status.connections()
        assert connection.proxy is not None
        assert (connection.proxy.namespace, connection.proxy.labels) == ("store", {"app": "web"})
        assert connection.proxy.metadata["list"] == [1.0, True, None, "x"]
        assert (connection.proxy.locality.region, connection.proxy.cluster) == ("r1", "web")
        assert (connection.variant, connection.peer.startswith("127.0.0.1:")) == ("sotw", True)
        cds, eds = connection.types
        assert (cds.is_synced, cds.subscription.acked_version) == (True, clusters.version_info)
        assert cds.sent_at is not None
        assert cds.acked_at is not None
        assert connection.connected_at <= cds.sent_at <= cds.acked_at
        assert (eds.is_synced, eds.subscription.nonce, eds.acked_at) == (False, endpoints.nonce, None)
        assert connection.waiting.acks == (ENDPOINT,)
        for proxy_id in (NODE.id, "web-1.shop"):
            proxy = here.xds.status.meant(proxy_id).only(proxy_id)
            assert proxy is not None
            dump = here.xds.status.config_dump(proxy)
            assert [(d.type_url, d.is_acked, [r.body for r in d.resources]) for d in dump] == [
                (CLUSTER, True, [b"a", b"b"]),
                (ENDPOINT, False, [b"as the rule has it"]),
            ]
        assert here.xds.status.meant("web-2.shop").only("web-2.shop") is None

    def check_refused(here: Plane) -> None:
        (connection,) = here.xds.status.connections()
        (record,) = connection.nacks
        assert (record.nack.names, record.nack.configs) == (("a",), (rule,))
        assert record.nack.reason == "no such address"
        assert [t.rejects for t in connection.types] == [0, 1, 0]
        statistics = here.xds.statistics().xds
        assert (statistics.connected, statistics.connected_by_version) == (1, {"1.40.2": 1})
        assert statistics.pushes == {CLUSTER: 1, ENDPOINT: 1, ROUTE: 1}
        assert (statistics.acks, statistics.rejects) == ({CLUSTER: 1}, {ENDPOINT: 1})
        assert statistics.bytes_sent[CLUSTER] == connection.types[0].bytes_sent > 100

    with capture_logs() as logs:
        async with plane() as here:
            here.world.put(ENDPOINT, "a", "as the rule has it", configs=(rule,))
            await in_thread(converse, here)
            await here.until_idle()
            assert here.xds.status.connections() == ()
            assert here.xds.statistics().xds.connected == 0
            assert [r.nack.reason for r in here.xds.status.recent_nacks()] == ["no such address"]
    (line,) = [entry for entry in logs if entry["event"].startswith("NACK")]
    assert (line["type"], line["resources"], line["configs"]) == ("EDS", ["a"], ["DestinationRule/shop/a"])
    assert (line["proxy"], line["reason"], line["log_level"]) == (NODE.id, "no such address", "warning")
    assert [entry["event"] for entry in logs if entry["log_level"] == "info"] == [
        "proxy connected",
        "proxy disconnected",
    ]


async def test_a_crowd_that_comes_and_goes_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "PRESENCE_BURST", 11.0)
    monkeypatch.setattr(context, "PRESENCE_RATE", 1e-9)
    with capture_logs() as logs:
        async with plane() as here:
            for _ in range(20):
                async with stream_of(here, sotw(CLUSTER, node=node_message())) as call:
                    await call.recv_message()
                await here.until_idle()
            assert here.xds.statistics().suppressed_log_lines == 29
    events = ("proxy connected", "proxy disconnected")
    written = [(entry["event"], entry["log_level"]) for entry in logs if entry["event"] in events]
    assert written[:11] == ([(event, "info") for event in events] * 6)[:11]
    assert written[11:] == ([(event, "debug") for event in events] * 15)[-29:]
    assert all(entry["proxy"] == NODE.id for entry in logs if entry["event"] in events)


async def test_a_stream_on_an_old_connection_ends_once_all_is_sent_and_answered() -> None:
    """What changes meanwhile is still sent; then the stream ends with OK."""
    async with (
        plane(limits=attrs.evolve(PATIENT_SERVER, max_connection_age_seconds=0.05)) as here,
        open_channel(here.address, tls=None, limits=PATIENT_CLIENT) as channel,
        channel.request(ADS, Cardinality.STREAM_STREAM, bytes, bytes) as call,
    ):
        await call.send_message(sotw(CLUSTER, node=node_message()).SerializeToString())
        first = DiscoveryResponse.FromString(await call.recv_message() or b"")
        with trio.fail_after(SECONDS):
            while not channel.lost:  # noqa: ASYNC110
                await trio.sleep(0.005)
        here.world.put(CLUSTER, "c")
        await call.send_message(sotw(CLUSTER, response_nonce=first.nonce).SerializeToString())
        second = DiscoveryResponse.FromString(await call.recv_message() or b"")
        assert len(second.resources) == len(first.resources) + 1
        await call.send_message(sotw(CLUSTER, response_nonce=second.nonce).SerializeToString())
        assert await call.recv_message() is None
        with trio.fail_after(SECONDS):
            while here.server.statistics().connections_retired != {"age": 1}:  # noqa: ASYNC110
                await trio.sleep(0.005)


async def test_streams_that_wait_for_admission_and_give_up_take_nothing_from_others() -> None:
    """However many those are: who comes after them waits no longer."""
    options = XdsOptions(bounds=Bounds(max_requests_per_second=5), stream_burst=1)
    async with plane(options) as here:
        async with stream_of(here, sotw(CLUSTER, node=node_message())) as call:
            await call.recv_message()
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(_first_answer, here)
            while here.xds.status.totals.delayed_streams < 180:  # noqa: ASYNC110
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
        with trio.fail_after(SECONDS):  # 36 seconds, if those before had their share
            await _first_answer(here)


async def _first_answer(here: Plane) -> None:
    async with stream_of(here, sotw(CLUSTER, node=node_message())) as call:
        await call.recv_message()


async def test_a_client_that_never_reads_holds_up_nobody() -> None:
    """Its window fills; the others are served, and it costs one response, not a queue."""
    async with plane() as here:
        for number in range(100):
            here.world.put(CLUSTER, f"cluster-{number}", "x" * 100_000)
        async with stream_of(here, sotw(CLUSTER, node=NodeMessage(id=node(1).id))):
            with trio.fail_after(60):
                while CLUSTER not in here.xds.status.statistics().pushes:  # noqa: ASYNC110
                    await trio.sleep(0.005)
            async with stream_of(here, sotw(LISTENER, node=NodeMessage(id=node(2).id))) as call:
                for round_ in range(20):
                    response = DiscoveryResponse.FromString(await call.recv_message() or b"")
                    here.world.put(CLUSTER, "a", f"change {round_}")
                    here.world.put(LISTENER, "a", f"change {round_}")
                    await call.send_message(sotw(LISTENER, response_nonce=response.nonce).SerializeToString())
                assert await call.recv_message() is not None
                pushes = {str(c.proxy and c.proxy.id): c.types[0].pushes for c in here.xds.status.connections()}
                assert pushes == {node(1).id: 1, node(2).id: 21}


async def test_more_streams_than_allowed_are_refused(channels: Any) -> None:
    def converse(here: Plane) -> tuple[grpc.StatusCode, str]:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channels(here))
        first, second = Talk(stub.StreamAggregatedResources), Talk(stub.StreamAggregatedResources)
        for talk in (first, second):
            talk.send(sotw(CLUSTER, node=node_message()))
            talk.receive()
        third = Talk(stub.StreamAggregatedResources)
        status = third.status()
        first.cancel()
        second.cancel()
        return status

    async with plane(XdsOptions(bounds=Bounds(max_streams=2))) as here:
        code, details = await in_thread(converse, here)
    assert (code, details) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "streams: 3, more than the limit of 2 (--max-streams)",
    )


async def test_draining_sends_clients_elsewhere(channels: Any) -> None:
    def converse(here: Plane) -> None:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channels(here))
        talk = Talk(stub.StreamAggregatedResources)
        talk.send(sotw(CLUSTER, node=node_message()))
        talk.receive()
        trio.from_thread.run_sync(here.xds.drain)
        assert talk.status() == (grpc.StatusCode.UNAVAILABLE, "the control plane is shutting down")
        assert Talk(stub.StreamAggregatedResources).status()[0] is grpc.StatusCode.UNAVAILABLE

    async with plane() as here:
        await in_thread(converse, here)
        assert here.xds.statistics().draining


async def test_many_streams_at_once_share_what_they_are_sent() -> None:
    async with plane() as here:
        received: list[bytes | None] = []

        async def converse(number: int) -> None:
            async with stream_of(here, delta(CLUSTER, node=NodeMessage(id=node(number).id))) as call:
                received.append(await call.recv_message())

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(converse, number)
        assert len(set(received)) == 1
        assert here.xds.statistics().encoder.encoded == 1
        assert here.xds.statistics().encoder.shared == 199
        assert here.xds.status.totals.delayed_streams == 0


@pytest.mark.parametrize("ends", ["the client", "an operator", "a refusal"])
async def test_of_a_stream_that_ends_nothing_is_left_to_a_collection(ends: str) -> None:
    async with plane() as here:
        gc.collect()
        gc.disable()
        try:
            async with stream_of(here, delta(CLUSTER, node=node_message())) as call:
                assert await call.recv_message()
                left = _watched(here)
                if ends == "an operator":
                    here.xds.disconnect(lambda proxy: True)
                elif ends == "a refusal":
                    await call.send_message(delta("").SerializeToString())
                if ends != "the client":
                    with pytest.raises(GRPCError):
                        await call.recv_message()
            while here.server.statistics().connections_open:  # noqa: ASYNC110  the kernel tells when it likes
                await trio.sleep(0.005)
            assert [name for name, each in left.items() if each() is not None] == []
        finally:
            gc.enable()


def _watched(here: Plane) -> dict[str, weakref.ref[Any]]:
    """The objects of the only stream and its connection."""
    (session,) = here.xds._sessions
    (connection,) = here.server._connections
    objects = {
        "session": session,
        "state machine": session.stream,
        "observer": session.observer,
        "record": session._connection,
        "connection": connection,
        "transport": connection._transport,
        "http2": connection._http2,
        "h2": connection._http2.h2,
        "stream": next(iter(connection._streams)),
    }
    return {name: weakref.ref(each) for name, each in objects.items()}
