"""Who may dial the MCP sink: on loopback this machine, elsewhere over TLS the identities that ``mesh.yaml`` names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.net.rpc import (
    Cardinality,
    CertificateFiles,
    Channel,
    GRPCError,
    RpcError,
    Status,
    StreamTerminatedError,
    TlsSource,
    client_tls,
    open_channel,
)
from mesh_pilot.sources.mcp.statistics import SinkServerStatistics
from mesh_pilot.xds.config_api.server import McpService
from mesh_pilot.xds.mcp.wire import SINK_PATH, decode_request, encode_response
from tests.sources.mcp_feed import SERVICES, TestCollections, virtual_service
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.planes import settings

pytestmark = pytest.mark.plane

GALLEY = "spiffe://cluster.local/ns/istio-system/sa/galley"
STRANGERS = {
    "no certificate": None,
    "a certificate without a name": (),
    "a workload": ("spiffe://cluster.local/ns/evil/sa/mallory",),
    "a workload of the root namespace": ("spiffe://cluster.local/ns/istio-system/sa/gateway",),
    "the name in another trust domain": ("spiffe://evil.domain/ns/istio-system/sa/galley",),
    "two names": (GALLEY, "spiffe://cluster.local/ns/evil/sa/mallory"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mesh.yaml").write_text(f"configWriters: ['{GALLEY}']\n")
    write_certificates(tmp_path, "galley", uris=(GALLEY,))
    return tmp_path


def sink(plane: ControlPlane) -> SinkServerStatistics:
    found = (each.source.statistics() for each in plane.state.supervisors)
    return next(each for each in found if isinstance(each, SinkServerStatistics))


def route(plane: ControlPlane, name: str) -> object | None:
    return plane.state.world.config.peek(ConfigKey("VirtualService", "default", name))


@asynccontextmanager
async def sink_at(address: str, folder: Path) -> AsyncIterator[tuple[ControlPlane, str]]:
    """A control plane with a sink, and where to dial it."""
    trusted = CertificateFiles(trusted=folder / "ca.pem")
    made = settings(mesh_config=folder / "mesh.yaml", mcp_sink_addr=address, tls=trusted)
    async with control_plane(made) as plane:
        await eventually(lambda: sink(plane).address != "", what="the sink listens")
        await eventually(lambda: "mesh" not in plane.state.unsynced(), what="the mesh config says who may dial")
        yield plane, f"127.0.0.1:{sink(plane).address.rpartition(':')[2]}"


async def dial(channel: Channel, served: TestCollections) -> None:
    """Offer configuration as a Galley does, until the stream ends."""
    async with channel.request(SINK_PATH, Cardinality.STREAM_STREAM, bytes, bytes) as call:
        await call.send_message(b"")
        await McpService(served).serve_stream(call, "", decode_request, encode_response)


async def refusal(channel: Channel) -> GRPCError:
    """The status that a stream is refused with."""
    with pytest.raises(GRPCError) as raised:
        async with channel.request(SINK_PATH, Cardinality.STREAM_STREAM, bytes, bytes) as call:
            await call.send_message(b"")
            await call.recv_message()
    return raised.value


def offering(name: str) -> TestCollections:
    served = TestCollections()
    served.put(SERVICES, virtual_service(name, 1))
    return served


def tls_of(folder: Path, plane: ControlPlane, name: str = "") -> TlsSource:
    """TLS of a client that trusts the CA of the plane, with a certificate of that name."""
    authority = plane.state.callers.authority
    assert authority is not None
    (folder / "root.pem").write_bytes(authority.material.chain)
    mine = {"certificate": folder / f"{name}.pem", "key": folder / f"{name}.key"} if name else {}
    return client_tls(CertificateFiles(trusted=folder / "root.pem", **mine))


async def test_a_named_identity_writes_over_tls_by_the_cas_own_certificate_and_strangers_neither_write_nor_end_it(
    folder: Path,
) -> None:
    async with sink_at("0.0.0.0:0", folder) as (plane, address), trio.open_nursery() as nursery:
        tls = tls_of(folder, plane, "galley")
        async with open_channel(address, tls=tls, server_hostname="localhost") as channel:
            nursery.start_soon(dial, channel, offering("real"))
            await eventually(lambda: route(plane, "real") is not None, what="the Galley writes")
            peer = sink(plane).peer
            for who, uris in STRANGERS.items():
                if uris is not None:
                    write_certificates(folder, "stranger", uris=uris)
                tls = tls_of(folder, plane, "" if uris is None else "stranger")
                async with open_channel(address, tls=tls, server_hostname="localhost") as strange:
                    error = await refusal(strange)
                assert error.status is Status.PERMISSION_DENIED, who
                assert "configWriters" in (error.message or ""), who
            with pytest.raises((RpcError, StreamTerminatedError)):
                async with open_channel(address) as plain:
                    await dial(plain, offering("pwned"))
                    raise StreamTerminatedError("ended")
            assert (sink(plane).peer, sink(plane).streams) == (peer, 1)
            nursery.cancel_scope.cancel()


async def test_on_loopback_this_machine_dials_in_plaintext(folder: Path) -> None:
    async with (
        sink_at("127.0.0.1:0", folder) as (plane, address),
        open_channel(address) as channel,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(dial, channel, offering("local"))
        await eventually(lambda: route(plane, "local") is not None, what="it writes")
        nursery.cancel_scope.cancel()


async def test_while_no_identity_is_named_nobody_dials_from_elsewhere(folder: Path) -> None:
    (folder / "mesh.yaml").write_text("")
    async with sink_at("0.0.0.0:0", folder) as (plane, address):
        tls = tls_of(folder, plane, "galley")
        async with open_channel(address, tls=tls, server_hostname="localhost") as channel:
            error = await refusal(channel)
        assert error.status is Status.PERMISSION_DENIED
        assert "/sa/galley is not one of them" in sink(plane).waiting_for
