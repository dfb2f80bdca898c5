"""A real Envoy on our streams: nothing refused, nothing left warming, no failed request while clusters come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.config_source_pb2 import ApiConfigSource
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from google.protobuf.message import Message

from mesh_pilot.agent.bootstrap.envoy_bootstrap import XDS_CLUSTER, EnvoyNode
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE, make_resource
from mesh_pilot.net.rpc import open_listeners, serve
from mesh_pilot.xds.ads.server import XdsServer
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.xds.fake_world import FakeWorld

pytestmark = pytest.mark.envoy

SECONDS = 60


class EnvoyWorld(FakeWorld):
    """One listener, one route table, and clusters with endpoints from us."""

    def put_message(self, type_url: str, name: str, message: Message) -> None:
        resource = make_resource(name, type_url, message.SerializeToString(deterministic=True))
        self.sets[type_url].write(name, resource)
        self._wake(type_url)

    def put_cluster(self, name: str, *, timeout_seconds: int = 1, own_streams: int | None = None) -> None:
        """``own_streams``: its endpoints are asked for on streams of their own, of this kind."""
        message = Cluster(name=name, type=Cluster.EDS)
        if own_streams is None:
            message.eds_cluster_config.eds_config.ads.SetInParent()
        else:
            source = message.eds_cluster_config.eds_config.api_config_source
            source.api_type, source.transport_api_version = own_streams, 2
            source.grpc_services.add().envoy_grpc.cluster_name = XDS_CLUSTER
        message.eds_cluster_config.eds_config.resource_api_version = 2
        message.connect_timeout.seconds = timeout_seconds
        self.put_message(CLUSTER, name, message)

    def put_endpoints(self, name: str, *ports: int) -> None:
        message = ClusterLoadAssignment(cluster_name=name)
        for port in ports:
            address = message.endpoints.add().lb_endpoints.add().endpoint.address.socket_address
            address.address, address.port_value = "127.0.0.1", port
        self.put_message(ENDPOINT, name, message)

    def put_listener(self, port: int, *, prefix: str = "web") -> None:
        manager = HttpConnectionManager(stat_prefix=prefix)
        manager.rds.route_config_name = "routes"
        manager.rds.config_source.ads.SetInParent()
        manager.rds.config_source.resource_api_version = 2
        manager.http_filters.add(name="envoy.filters.http.router").typed_config.Pack(Router())
        message = Listener(name="web")
        message.address.socket_address.address, message.address.socket_address.port_value = "127.0.0.1", port
        message.filter_chains.add().filters.add(name="hcm").typed_config.Pack(manager)
        self.put_message(LISTENER, "web", message)

    def put_route(self, cluster: str) -> None:
        message = RouteConfiguration(name="routes")
        host = message.virtual_hosts.add(name="all", domains=["*"])
        route = host.routes.add()
        route.match.prefix = "/"
        route.route.cluster = cluster
        self.put_message(ROUTE, "routes", message)


@asynccontextmanager
async def backend(text: str) -> AsyncIterator[int]:
    """An HTTP server that says ``text``; gives its port."""

    async def answer(stream: trio.SocketStream) -> None:
        received = b""
        async for chunk in stream:
            received += chunk
            while b"\r\n\r\n" in received:
                _, _, received = received.partition(b"\r\n\r\n")
                await stream.send_all(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await answer(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(world: EnvoyWorld, address: str = "127.0.0.1:0") -> AsyncIterator[tuple[XdsServer, str]]:
    xds = XdsServer(world, identifier="mesh-pilot test")
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve, xds.services(), await open_listeners(address)))
        yield xds, server.addresses[0]
        nursery.cancel_scope.cancel()


class Traffic:
    """Requests one after the other, all the time, and what came of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answers: set[str] = set()
        self._last = ""
        self._news = trio.Event()

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", trust_env=False, timeout=60) as client:
            while True:
                response = await client.get("/")
                self._last = f"{response.status_code} {response.text}"
                self.answers.add(self._last)
                self._news.set()
                self._news = trio.Event()

    async def until(self, answer: str) -> None:
        with trio.fail_after(60):
            while self._last != answer:
                await self._news.wait()


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_a_real_envoy_follows_without_a_refusal_or_a_failed_request(
    delta: bool, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    world = EnvoyWorld()
    (port,) = free_ports(1)
    async with (
        backend("one") as one,
        backend("two") as two,
        served(world) as (xds, address),
        trio.open_nursery() as nursery,
    ):
        world.put_cluster("one")
        world.put_endpoints("one", one)
        world.put_cluster("empty")
        world.put_endpoints("empty")
        world.put_listener(port)
        world.put_route("one")
        async with real_envoy(address, tmp_path, EnvoyNode("web-1"), delta=delta) as envoy:
            await envoy.wait_live()
            traffic = Traffic(port)
            nursery.start_soon(traffic.run)
            await traffic.until("200 one")
            old = "one"
            for new, backend_port in [("two-1", two), ("one-1", one), ("two-2", two), ("one-2", one)] * 3:
                # The route moves to a cluster that is made for it, while the one it leaves goes.
                world.put_route(new)
                world.put_cluster(new)
                world.put_endpoints(new, backend_port)
                world.remove(CLUSTER, old)
                world.remove(ENDPOINT, old)
                await traffic.until(f"200 {new[:3]}")
                old = new
            # A cluster that changes is warm again only once its endpoints came again, though they are as before.
            world.put_cluster("one-2", timeout_seconds=2)
            await eventually(partial(_is_warm, envoy, "one-2", "2s"), what="the cluster warm")
            # A listener that changes keeps its routes.
            world.put_listener(port, prefix="web2")
            await eventually(partial(_is_synced, xds), what="everything ACKed")
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                assert traffic.answers == {"200 one", "200 two"}
                assert await envoy.rejected() == {}
                assert xds.statistics().xds.rejects == {}
                assert set(await envoy.dynamic("Cluster")) - {"xds-grpc"} == {"one-2", "empty"}
                warming = await envoy.stats("warming")
                assert set(warming.values()) == {0}


@pytest.mark.smoke
@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_a_real_envoy_catches_up_with_a_control_plane_that_was_away(
    delta: bool, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    world = EnvoyWorld()
    port, plane = free_ports(2)
    address = f"127.0.0.1:{plane}"
    async with backend("one") as one, backend("two") as two, trio.open_nursery() as nursery:
        for name in ("one", "other"):
            world.put_cluster(name)
            world.put_endpoints(name, one)
        world.put_listener(port)
        world.put_route("one")
        async with AsyncExitStack() as stack:
            async with served(world, address) as (xds, _):
                envoy = await stack.enter_async_context(real_envoy(address, tmp_path, EnvoyNode("web-1"), delta=delta))
                await envoy.wait_live()
                traffic = Traffic(port)
                nursery.start_soon(traffic.run)
                await traffic.until("200 one")
                await eventually(partial(_is_synced, xds), what="everything ACKed")
            # While it is away one cluster changes (its endpoints do not), one goes, one comes and gets the traffic.
            world.put_cluster("one", timeout_seconds=2)
            world.put_cluster("two")
            world.put_endpoints("two", two)
            world.put_route("two")
            world.remove(CLUSTER, "other")
            world.remove(ENDPOINT, "other")
            async with served(world, address) as (xds, _):
                await traffic.until("200 two")
                await eventually(partial(_is_warm, envoy, "one", "2s"), what="the cluster warm")
                assert traffic.answers == {"200 one", "200 two"}
                assert set(await envoy.dynamic("Cluster")) - {"xds-grpc"} == {"one", "two"}
                assert await envoy.rejected() == {}
                if delta:
                    pushes = xds.statistics().xds.pushes
                    assert LISTENER not in pushes, "it has the listener"
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("own", [ApiConfigSource.GRPC, ApiConfigSource.DELTA_GRPC], ids=["sotw", "delta"])
async def test_a_real_envoy_with_streams_for_endpoints_alone_is_not_left_waiting_for_them(
    own: int, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    """Such a stream does not know the clusters. A cluster that changed asks on its own stream, having nothing."""
    world = EnvoyWorld()
    port, plane = free_ports(2)
    address = f"127.0.0.1:{plane}"
    async with backend("one") as one, AsyncExitStack() as stack:
        world.put_cluster("one", own_streams=own)
        world.put_endpoints("one", one)
        world.put_listener(port)
        world.put_route("one")
        async with served(world, address):
            envoy = await stack.enter_async_context(real_envoy(address, tmp_path, EnvoyNode("web-1"), delta=True))
            await envoy.wait_live()
            world.put_cluster("one", timeout_seconds=2, own_streams=own)
            await eventually(partial(_is_warm, envoy, "one", "2s"), what="the cluster warm")
        world.put_cluster("one", timeout_seconds=3, own_streams=own)
        async with served(world, address):
            await eventually(partial(_is_warm, envoy, "one", "3s"), what="the cluster warm after a break")
            assert await envoy.rejected() == {}


async def _is_synced(xds: XdsServer) -> bool:
    (connection,) = xds.status.connections()
    return all(each.is_synced for each in connection.types)


async def _is_warm(envoy: RealEnvoy, name: str, connect_timeout: str) -> bool:
    clusters = await envoy.dynamic("Cluster")
    warming = await envoy.stats("cluster_manager.warming_clusters")
    return clusters[name]["connect_timeout"] == connect_timeout and set(warming.values()) == {0}
