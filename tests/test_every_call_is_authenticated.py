"""Every gRPC method of every port that speaks TLS: a caller that shows nothing, or is nobody here, gets nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DiscoveryRequest
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest

from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.model.traffic import TrafficReport, encode_report
from mesh_pilot.net.rpc import Cardinality, CertificateFiles, GRPCError, Server, Status, client_tls, open_channel
from mesh_pilot.sources.mcp.sink_server import SinkServer
from tests.identity.signing import new_csr, request_of
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, settings

pytestmark = pytest.mark.plane

OPEN = ("/grpc.health.v1.Health/", "/grpc.reflection.")
"""Methods that tell nothing of the mesh."""

REFUSED = (Status.UNAUTHENTICATED, Status.PERMISSION_DENIED)


def servers(plane: ControlPlane) -> list[Server]:
    """The servers whose ports other machines reach."""
    sink = next(x.source for x in plane.state.supervisors if isinstance(x.source, SinkServer))
    assert sink.server is not None
    return [plane.state.rpc_servers[1], sink.server]


def first_messages(path: str) -> list[bytes]:
    """Requests with which a call of a method may begin."""
    node = Node(id="sidecar~10.0.0.1~web.shop~shop.svc.cluster.local")
    api = Node(id=node.id)
    api.metadata.update({"GENERATOR": "api"})
    kind = DeltaDiscoveryRequest if "Delta" in path else DiscoveryRequest
    if "CreateCertificate" in path:
        return [request_of(new_csr())]
    if "TrafficReportService" in path:
        return [b"", encode_report(TrafficReport((), node=node.SerializeToString()))]
    if "LoadReportingService" in path:
        return [b"", LoadStatsRequest(node=node).SerializeToString()]
    types = ("type.googleapis.com/envoy.config.cluster.v3.Cluster", "istio.io/debug/syncz")
    requests = [kind(type_url=each, node=node).SerializeToString() for each in types]
    return [b"", *requests, kind(type_url="networking.istio.io/v1/ServiceEntry", node=api).SerializeToString()]


@pytest.mark.parametrize("who", ["nobody", "a workload of another trust domain", "a certificate without a name"])
async def test_a_stranger_is_refused_by_every_method_of_every_port(tmp_path: Path, who: str) -> None:
    uris = ("spiffe://evil.domain/ns/istio-system/sa/galley",) if "workload" in who else ()
    own = write_certificates(tmp_path, "stranger", uris=uris)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "service.yaml").write_text(SERVICE)
    made = settings(
        tmp_path / "config", mcp_sink_addr="0.0.0.0:0", sync_timeout=0.1, tls=CertificateFiles(trusted=own.ca)
    )
    async with control_plane(made) as plane:
        await plane.wait_ready()
        await eventually(lambda: len(servers(plane)) == 2, what="the sink listens")
        authority = plane.state.callers.authority
        assert authority is not None
        (tmp_path / "root.pem").write_bytes(authority.material.chain)
        shown = {} if who == "nobody" else {"certificate": own.certificate, "key": own.key}
        tls = client_tls(CertificateFiles(trusted=tmp_path / "root.pem", **shown))
        asked = set()
        for server in servers(plane):
            address = f"127.0.0.1:{server.addresses[0].rpartition(':')[2]}"
            async with open_channel(address, tls=tls, server_hostname="localhost") as channel:
                for path in server.calls():
                    if path.startswith(OPEN):
                        continue
                    for message in first_messages(path):
                        with pytest.raises(GRPCError) as refused, trio.fail_after(30):
                            async with channel.request(path, Cardinality.STREAM_STREAM, bytes, bytes) as call:
                                await call.send_message(message)
                                await call.recv_message()
                        assert refused.value.status in REFUSED, (path, message, refused.value)
                    asked.add(path)
    assert len(asked) >= 8, asked
    assert any("ResourceSink" in path for path in asked)
    assert any("ResourceSource" in path for path in asked)
