"""The whole control plane in-process: how it becomes ready, what holds it up, how it ends."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import control_plane
from mesh_pilot.app.settings import StartError
from mesh_pilot.model.events import EventSender
from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.net.rpc import Cardinality, CertificateFiles, GRPCError, Limits, Status, client_tls, open_channel
from mesh_pilot.sources.files import FileSourceStatistics
from mesh_pilot.xds.mcp.wire import SOURCE_PATH
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane, settings

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.yaml").write_text(SERVICE)
    return folder


async def ready(address: str) -> tuple[int, str]:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        reply = await client.get(f"http://{address}/ready")
        return reply.status_code, reply.text


async def test_it_is_ready_once_its_sources_are_in(config: Path) -> None:
    async with running_plane(config) as plane:
        assert plane.state.world.statistics().services == 1
        assert await ready(plane.addresses.http) == (200, "ready\n")
        assert "ready" in repr(plane)


async def test_streams_on_a_connection_are_limited_as_set(config: Path) -> None:
    async with (
        running_plane(config, grpc_limits=Limits(max_concurrent_streams=1)) as plane,
        open_channel(plane.addresses.grpc) as channel,
    ):
        async with channel.request(ADS, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse) as call:
            await call.send_message(DiscoveryRequest(type_url=CLUSTER, node=Node(id="sidecar~10.0.0.1~a.b~b.svc.c")))
            assert await call.recv_message() is not None
            with trio.move_on_after(0.1) as full:  # the client obeys the server's SETTINGS, and waits
                await channel.unary("/grpc.health.v1.Health/Check", HealthCheckRequest(), HealthCheckResponse)
            assert full.cancelled_caught
            await call.cancel()
        server, _ = plane.state.rpc_servers
        await eventually(lambda: server.statistics().streams_open == 0, what="the stream ended")
        with trio.fail_after(60):
            await channel.unary("/grpc.health.v1.Health/Check", HealthCheckRequest(), HealthCheckResponse)


class Silent:
    """A source that never syncs."""

    name = "silent"

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        await trio.sleep_forever()

    def statistics(self) -> FileSourceStatistics:
        return FileSourceStatistics(0, 0, False, "nobody answers", 0, 0, 0, 0, "")


async def test_a_source_that_can_not_sync_holds_readiness_and_says_why(config: Path) -> None:
    async with control_plane(settings(config), more_sources=[Silent()]) as plane:
        await eventually(lambda: set(plane.state.unsynced()) == {"silent"})
        assert await ready(plane.addresses.http) == (503, "silent: nobody answers\n")
        assert plane.state.rpc_servers == []


async def test_after_the_sync_timeout_it_serves_what_it_has(config: Path) -> None:
    async with control_plane(settings(config, sync_timeout=0.3), more_sources=[Silent()]) as plane:
        with trio.fail_after(60):
            await plane.wait_ready()
        assert plane.state.unsynced() == {"silent": "nobody answers"}
        assert await ready(plane.addresses.http) == (200, "ready\n")


async def test_the_root_namespace_is_that_of_the_control_plane_unless_the_mesh_says(
    config: Path, tmp_path: Path
) -> None:
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text("connectTimeout: 3s\n")
    for more in ({}, {"mesh_config": mesh}):
        async with running_plane(config, namespace="control", **more) as plane:
            assert plane.state.world.mesh.peek(()).root_namespace == "control"
    mesh.write_text("rootNamespace: other\n")
    async with running_plane(config, namespace="control", mesh_config=mesh) as plane:
        assert plane.state.world.mesh.peek(()).root_namespace == "other"


async def test_a_taken_port_leaves_nothing_open(config: Path) -> None:
    async with running_plane(config) as plane:
        with pytest.raises(StartError, match=f"cannot listen on {plane.addresses.monitoring}"):
            async with control_plane(settings(config, monitoring_addr=plane.addresses.monitoring)):
                pass


async def test_all_ports_are_closed_after_the_block(config: Path) -> None:
    async with running_plane(config) as plane:
        addresses = plane.addresses
    for address in (addresses.grpc, addresses.http, addresses.monitoring):
        host, _, port = address.rpartition(":")
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream(host, int(port))


async def test_proxies_are_told_to_go_elsewhere_and_hold_up_nothing(config: Path) -> None:
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    node = ParseDict(EnvoyNode("web-1", "shop", "10.9.9.9").to_dict(), Node())
    ended: list[Status] = []
    is_served = trio.Event()

    async def proxy(address: str) -> None:
        async with open_channel(address) as channel, channel.request(ADS, *kinds) as call:
            await call.send_message(DiscoveryRequest(node=node, type_url=CLUSTER))
            await call.recv_message()
            is_served.set()
            try:
                await call.recv_message()
            except GRPCError as error:
                ended.append(error.status)

    async with trio.open_nursery() as nursery:
        with trio.fail_after(60):
            async with running_plane(config, shutdown_seconds=60) as plane:
                nursery.start_soon(proxy, plane.addresses.grpc)
                await is_served.wait()
    assert ended == [Status.UNAVAILABLE]


async def test_health_and_reflection_are_served_beside_xds(config: Path) -> None:
    async with running_plane(config) as plane, open_channel(plane.addresses.grpc) as channel:
        reply = await channel.unary("/grpc.health.v1.Health/Check", HealthCheckRequest(), HealthCheckResponse)
        assert reply.status == HealthCheckResponse.SERVING
        kinds = (Cardinality.STREAM_STREAM, ServerReflectionRequest, ServerReflectionResponse)
        async with channel.request("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", *kinds) as call:
            await call.send_message(ServerReflectionRequest(list_services=""))
            listed = await call.recv_message()
        assert listed is not None
        assert ADS.split("/")[1] in {service.name for service in listed.list_services_response.service}


async def test_cancelling_ends_it_at_once(config: Path) -> None:
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with running_plane(config, shutdown_seconds=60):
            scope.cancel()
            await trio.sleep_forever()


async def test_mutual_tls_is_served_where_certificates_are_given(config: Path, tmp_path: Path) -> None:
    server = write_certificates(tmp_path, "server")
    client = write_certificates(tmp_path, "client")
    tls = CertificateFiles(certificate=server.certificate, key=server.key, trusted=server.ca)
    mine = CertificateFiles(certificate=client.certificate, key=client.key, trusted=client.ca)
    async with running_plane(config, tls=tls) as plane:
        assert len(plane.state.rpc_servers) == 2
        async with open_channel(plane.addresses.secure_grpc, tls=client_tls(mine)):
            assert plane.state.rpc_servers[1].statistics().connections_open == 1


async def shown_to(address: str, context: ssl.SSLContext, name: str) -> bool:
    """True if a server shows a certificate for ``name`` that ``context`` accepts; raises SSLCertVerificationError."""
    host, _, port = address.rpartition(":")
    stream = trio.SSLStream(await trio.open_tcp_stream(host, int(port)), context, server_hostname=name)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            raise error.__cause__ from None
        raise
    finally:
        await trio.aclose_forcefully(stream)
    return True


async def test_without_certificates_the_own_ca_signs_the_servers(config: Path, tmp_path: Path) -> None:
    async with running_plane(config, ca_dir=tmp_path / "ca") as plane:
        trusted = CertificateFiles(trusted=tmp_path / "ca" / "root-cert.pem")
        for name in ("127.0.0.1", "localhost", "mesh-pilot", "istiod.istio-system.svc"):
            assert await shown_to(plane.addresses.secure_grpc, client_tls(trusted).context(), name)
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown_to(plane.addresses.secure_grpc, client_tls(trusted).context(), "elsewhere.test")


async def test_a_client_of_the_configuration_api_is_sent_elsewhere_with_the_age_of_its_connection(config: Path) -> None:
    limits = Limits(max_connection_age_seconds=0.05)
    async with (
        running_plane(config, grpc_limits=limits) as plane,
        open_channel(plane.addresses.grpc) as channel,
        channel.request(SOURCE_PATH, Cardinality.STREAM_STREAM, bytes, bytes) as call,
    ):
        await call.send_request()
        with trio.fail_after(60), pytest.raises(GRPCError, match="too old") as caught:
            await call.recv_message()
        assert caught.value.status is Status.UNAVAILABLE
