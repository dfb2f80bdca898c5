"""Load reports of real clients: a stock Envoy over plaintext and TLS, and grpcio, count each attempt exactly once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import ClientTls, EnvoyNode
from mesh_pilot.model.proxy import Interception
from mesh_pilot.net.rpc import CertificateFiles
from mesh_pilot.traffic.table import TrafficEdge
from tests.support.certificates import write_certificates
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.support.fleet import Fleet, fleet
from tests.support.proxyless import grpc_peers

HOST = "reviews.example.com"
PRINCIPAL = "spiffe://cluster.local/ns/shop/sa/web"

CONFIG = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: reviews, namespace: shop}}
spec:
  hosts: [reviews.example.com]
  resolution: STATIC
  ports: [{{number: {port}, name: http, protocol: HTTP}}, {{number: {refused}, name: refused, protocol: HTTP}}, {{number: {tcp}, name: tcp, protocol: TCP}}]
  endpoints:
  - {{address: 127.0.0.1, ports: {{http: {target}, refused: {nobody}, tcp: {target}}}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: reviews, namespace: shop}}
spec:
  hosts: [reviews.example.com]
  http:
  - match: [{{port: {refused}}}]
    route: [{{destination: {{host: reviews.example.com, port: {{number: {refused}}}}}}}]
    retries: {{attempts: 1, retryOn: connect-failure}}
  - route: [{{destination: {{host: reviews.example.com, port: {{number: {port}}}}}}}]
    retries: {{attempts: 2, retryOn: 5xx}}
"""  # noqa: E501


def edges(mesh: Fleet) -> dict[str, TrafficEdge]:
    traffic = mesh.plane.state.traffic
    assert traffic is not None
    return {edge.name: edge for edge in traffic.table.edges()}


def counts(mesh: Fleet, cluster: str) -> dict[str, int]:
    found = edges(mesh).get(cluster)
    return {} if found is None else {counter.name.lower(): count for counter, count in found.counts.values.items()}


async def next_report(mesh: Fleet, count: int = 1) -> None:
    """Wait until so many reports more have come."""
    server = mesh.plane.state.reports
    assert server is not None
    until = server.statistics().reports + count
    await eventually(lambda: server.statistics().reports >= until, what=f"{count} reports")


@asynccontextmanager
async def stock_envoy(mesh: Fleet, node: EnvoyNode, folder: Path, secure: bool) -> AsyncIterator[RealEnvoy]:
    """A stock Envoy without an agent, whose first report has come."""
    tls, address = None, mesh.plane_address
    if secure:
        authority = mesh.plane.state.callers.authority
        assert authority is not None
        root = folder / "root.pem"
        root.write_bytes(authority.material.chain)
        own = write_certificates(folder, "web", uris=(PRINCIPAL,))
        assert own.certificate and own.key
        tls, address = ClientTls(root, own.certificate, own.key, "localhost"), mesh.plane.addresses.secure_grpc
    async with real_envoy(address, folder, node, tls=tls) as envoy:
        await envoy.wait_live()
        await eventually(envoy.takes_traffic, what="Envoy's workers run")
        await next_report(mesh, 2)  # Envoy counts a cluster from the report on that follows it
        yield envoy


@pytest.mark.envoy
@pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "tls"])
async def test_a_stock_envoy_tells_every_attempt(
    tmp_path: Path, free_ports: Callable[[int], list[int]], secure: bool
) -> None:
    port, refused, tcp, nobody = free_ports(4)
    trusted: Any = {"tls": CertificateFiles(trusted=write_certificates(tmp_path, "web").ca)} if secure else {}
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(fleet(tmp_path, trust_local=False, traffic_reports=1.0, **trusted))
        backend = await mesh.backend("reviews")
        backend.answer = lambda request, _: (int(request.target[1:]), {}) if request.target[1:].isdigit() else None
        await mesh.apply(CONFIG.format(port=port, refused=refused, tcp=tcp, target=backend.port, nobody=nobody))
        node = EnvoyNode(
            "web", "shop", "127.0.0.2", interception=Interception.NONE, metadata={"SERVICE_ACCOUNT": "web"}
        )
        await stack.enter_async_context(stock_envoy(mesh, node, tmp_path, secure))
        answers = [
            (await mesh.get(f"http://127.0.0.1:{port}/{path}", host=HOST)).status_code
            for path in ["200"] * 30 + ["503"] * 7 + ["403"] * 5
        ]
        assert answers == [200] * 30 + [503] * 7 + [403] * 5
        for _ in range(4):
            assert (await mesh.get(f"http://127.0.0.1:{refused}/", host=HOST)).status_code == 503
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", tcp) as stream:
                await stream.send_all(b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                assert await stream.receive_some()
        await next_report(mesh, 3)
        attempts = backend.asked("/200") + backend.asked("/503") + backend.asked("/403")
        assert attempts == 30 + 3 * 7 + 5
        assert counts(mesh, f"outbound|{port}||{HOST}") == {"attempts": attempts, "failed_attempts": 21}
        assert counts(mesh, f"outbound|{refused}||{HOST}") == {"attempts": 8, "failed_attempts": 8}
        assert counts(mesh, f"outbound|{tcp}||{HOST}") == {"connections": 3}
        workload = edges(mesh)[f"outbound|{port}||{HOST}"].proxy.workload
        assert (workload.namespace, workload.name, workload.principal) == ("shop", "web", PRINCIPAL if secure else "")
        assert not any(edge.counts.has_requests for edge in edges(mesh).values())


@pytest.mark.process
async def test_grpc_without_a_proxy_tells_every_call(tmp_path: Path) -> None:
    async with fleet(tmp_path, traffic_reports=1.0) as mesh, grpc_peers(mesh.plane.addresses.grpc, tmp_path) as peers:
        client, backend = await peers.start("client"), await peers.start("backend")
        port = await backend.serve("v1")
        mesh.write(GRPC.format(port=port))
        await client.until_answered_by({"v1"}, TARGET)
        cluster = "outbound|9000||reviews.shop.svc.cluster.local"
        before = await backend.do("behave", name="v1")
        await eventually(
            lambda: counts(mesh, cluster) == {"attempts": before}, what="gRPC counts from its first call on"
        )
        await client.call(TARGET, count=50)
        await backend.do("behave", name="v1", failures=6, code="INTERNAL")
        answers = await client.answers(TARGET, count=20)
        assert answers == {"v1": 14, "INTERNAL": 6}
        expected = {"attempts": before + 70, "failed_attempts": 6}
        await eventually(lambda: counts(mesh, cluster) == expected, what=f"{expected} are told")
        assert {edge.proxy.name for edge in edges(mesh).values()} == {"client.shop"}


TARGET = "xds:///reviews.shop.svc.cluster.local:9000"
GRPC = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: reviews, namespace: shop}}
spec:
  hosts: [reviews.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 9000, name: main, protocol: GRPC}}]
  endpoints: [{{address: 127.0.0.1, ports: {{main: {port}}}}}]
"""
