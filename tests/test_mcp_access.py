"""Who is served configuration, and certificates: given by flags, and changed while they are in use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.identity.authenticators.settings import JoinTokenSettings
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import Cardinality, CertificateFiles, open_channel
from mesh_pilot.sources.mcp.statistics import McpSourceStatistics
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane, settings

pytestmark = pytest.mark.plane

PATHS = ["{}", "xds://{}"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "config"
    made.mkdir()
    (made / "service.yaml").write_text(SERVICE)
    return made


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    made = tmp_path / "certificates"
    made.mkdir()
    renew(made)
    return made


def renew(folder: Path) -> None:
    """Another CA, and certificates of it, in the same files."""
    for name in ("ca.pem", "ca.key"):
        (folder / name).unlink(missing_ok=True)
    write_certificates(folder, "server")
    write_certificates(folder, "client", uris=("spiffe://cluster.local/ns/istio-system/sa/plane",))


def of(folder: Path, name: str) -> CertificateFiles:
    return CertificateFiles(certificate=folder / f"{name}.pem", key=folder / f"{name}.key", trusted=folder / "ca.pem")


def knows(plane: ControlPlane, host: str) -> bool:
    return plane.state.world.services.peek(ServiceKey(host, "shop")) is not None


def statistics(plane: ControlPlane) -> McpSourceStatistics:
    return next(s for x in plane.state.supervisors if isinstance(s := x.source.statistics(), McpSourceStatistics))


@pytest.mark.parametrize("path", PATHS)
async def test_a_plaintext_client_elsewhere_is_served_only_if_everybody_is(
    folder: Path, certificates: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh_pilot.app.config_callers.is_local", lambda address: False)
    async with running_plane(folder, tls=of(certificates, "server")) as first:
        async with control_plane(settings(mcp_servers=(path.format(first.addresses.grpc),))) as second:
            await eventually(lambda: "PERMISSION_DENIED" in statistics(second).waiting_for, what="it is told why")
            assert "--serve-config serves it to everybody" in statistics(second).waiting_for
            assert not second.state.reducer.synced
        secure = path.format(first.addresses.secure_grpc)
        async with running_plane(mcp_servers=(secure,), mcp_tls=of(certificates, "client")) as second:
            assert knows(second, "reviews.test")
    async with (
        running_plane(folder, serve_config=True) as first,
        running_plane(mcp_servers=(path.format(first.addresses.grpc),)) as second,
    ):
        assert knows(second, "reviews.test")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("identity", "is_served"),
    [
        ("spiffe://cluster.local/ns/istio-system/sa/plane", True),
        ("spiffe://evil.domain/ns/istio-system/sa/plane", False),
        ("spiffe://cluster.local/ns/shop/sa/web", False),
        ("spiffe://cluster.local/ns/backup/sa/reader", True),
    ],
)
async def test_configuration_is_read_by_the_root_namespace_and_those_that_are_named(
    folder: Path, certificates: Path, path: str, identity: str, is_served: bool
) -> None:
    write_certificates(certificates, "named", uris=(identity,))
    mesh = certificates / "mesh.yaml"
    mesh.write_text("configReaders: ['spiffe://cluster.local/ns/backup/sa/reader']\n")
    async with running_plane(folder, mesh_config=mesh, tls=of(certificates, "server")) as first:
        servers = (path.format(first.addresses.secure_grpc),)
        async with control_plane(settings(mcp_servers=servers, mcp_tls=of(certificates, "named"))) as second:
            await eventually(
                lambda: knows(second, "reviews.test") or "PERMISSION_DENIED" in statistics(second).waiting_for,
                what="it is served, or told why not",
            )
            assert knows(second, "reviews.test") is is_served


@pytest.mark.parametrize("path", PATHS)
async def test_a_certificate_without_a_spiffe_name_reads_nothing(folder: Path, certificates: Path, path: str) -> None:
    write_certificates(certificates, "nameless")
    async with running_plane(folder, tls=of(certificates, "server")) as first:
        servers = (path.format(first.addresses.secure_grpc),)
        async with control_plane(settings(mcp_servers=servers, mcp_tls=of(certificates, "nameless"))) as second:
            await eventually(lambda: "PERMISSION_DENIED" in statistics(second).waiting_for, what="it is told why")
            assert first.state.callers.authentication.refused["client_certificate", "spiffe_names"]


@pytest.mark.parametrize("path", PATHS)
async def test_certificates_that_change_are_used_for_the_next_connection(
    folder: Path, certificates: Path, path: str
) -> None:
    async with (
        running_plane(folder, tls=of(certificates, "server")) as first,
        relay(first.addresses.secure_grpc) as line,
        running_plane(mcp_servers=(path.format(line.address),), mcp_tls=of(certificates, "client")) as second,
    ):
        renew(certificates)
        (folder / "two.yaml").write_text(SERVICE.replace("reviews", "two"))
        await eventually(lambda: knows(second, "two.test"), what="the stream that is open continues")
        assert statistics(second).last_error == ""
        line.cut()
        await eventually(lambda: statistics(second).last_error != "", what="the loss is noticed")
        (folder / "three.yaml").write_text(SERVICE.replace("reviews", "three"))
        await eventually(lambda: knows(second, "three.test"), what="it connects with the new ones")
        assert "certificate" not in statistics(second).last_error
        assert knows(second, "reviews.test")


class Relay:
    """A TCP relay that can be cut. State: its address, and the connections that it carries."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections: set[trio.CancelScope] = set()

    def cut(self) -> None:
        for connection in self.connections:
            connection.cancel()


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    """A relay to an address, for the length of the block."""
    host, _, port = target.rpartition(":")
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    line = Relay(f"127.0.0.1:{listener.socket.getsockname()[1]}")

    async def carry(client: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            line.connections.add(scope)
            async with await trio.open_tcp_stream(host, int(port)) as server, trio.open_nursery() as nursery:
                nursery.start_soon(pump, client, server)
                nursery.start_soon(pump, server, client)
        line.connections.discard(scope)

    async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            async for data in source:
                await sink.send_all(data)
            await sink.send_eof()
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, carry, [listener])
        yield line
        nursery.cancel_scope.cancel()


async def test_a_stream_of_configuration_is_one_use_of_a_token(folder: Path, tmp_path: Path) -> None:
    tokens = JoinTokens(tmp_path / "tokens")
    made = tokens.create(Identity("cluster.local", "shop", "plane"), timedelta(hours=1), max_uses=1)
    async with (
        running_plane(folder, join_tokens=JoinTokenSettings(tmp_path / "tokens")) as plane,
        open_channel(plane.addresses.grpc) as channel,
        channel.request(
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
            Cardinality.STREAM_STREAM,
            DiscoveryRequest,
            DiscoveryResponse,
            metadata={"authorization": f"Bearer {made.text}"},
        ) as stream,
    ):
        node = Node(id="sidecar~10.0.0.1~plane.shop~shop.svc.cluster.local")
        node.metadata.update({"GENERATOR": "api"})
        await stream.send_message(DiscoveryRequest(type_url="networking.istio.io/v1/ServiceEntry", node=node))
        answer = await stream.recv_message()
        assert answer is not None and len(answer.resources) == 1
        assert [record.uses for record in tokens.records()] == [1]
