"""Istio's metrics of requests and connections, as stock Envoys count them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import NodeType
from tests.support.edge import gateway, to
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import fleet
from tests.support.grpc_peer import METHOD, Peer
from tests.support.guarded import DATA, HOST, deny, guarded
from tests.support.manifests import manifest, service
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]
Labels = Mapping[str, str]

MESH = "defaultProviders: {metrics: [prometheus]}"
EDGE = EnvoyNode(
    "edge", "shop", "127.0.0.3", NodeType.ROUTER, labels={"istio": "edge"}, metadata={"SERVICE_ACCOUNT": "edge"}
)
REQUESTS = "istio_requests_total"

_SAMPLE = re.compile(r"^(?:envoy_wasmcustom_)?(istio_\w+?)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


async def samples(envoy: RealEnvoy, metric: str) -> list[tuple[Labels, float]]:
    """The samples of a metric: labels and value."""
    page = (await envoy.get("/stats/prometheus?filter=istio")).text
    found = _SAMPLE.findall(page)
    return [(dict(_LABEL.findall(labels)), float(value)) for name, labels, value in found if name == metric]


async def those(envoy: RealEnvoy, metric: str = REQUESTS, **labels: str) -> list[Labels]:
    """The labels of the samples of a metric that have these."""
    return [found for found, _ in await samples(envoy, metric) if labels.items() <= found.items()]


NAMES = ("workload", "workload_namespace", "app", "version", "canonical_service", "canonical_revision", "cluster")


def workload(side: str, *names: str, principal: str) -> Labels:
    return {**{f"{side}_{n}": v for n, v in zip(NAMES, names, strict=True)}, f"{side}_principal": principal}


WEB = workload(
    "source",
    "web",
    "shop",
    "unknown",
    "unknown",
    "web",
    "latest",
    "unknown",
    principal="spiffe://cluster.local/ns/shop/sa/web",
)
NOBODY = workload("source", *["unknown"] * 7, principal="unknown")
FRONT = workload(
    "destination",
    *("front", "shop", "front", "unknown", "front", "latest", "unknown"),
    principal="spiffe://cluster.local/ns/shop/sa/front",
)


def to_service(host: str) -> Labels:
    return {
        "destination_service": host,
        "destination_service_name": host,
        "destination_service_namespace": "shop",
    }


OK = {"request_protocol": "http", "response_code": "200", "grpc_response_status": "", "response_flags": "-"}
TCP = {"request_protocol": "tcp", "response_flags": "-"}


async def test_requests_and_connections_are_counted_at_both_ends(tmp_path: Path, free_ports: Ports) -> None:
    dead, edge, *ports = free_ports(6)
    lost = service("lost.example.com", dead, {"address": "127.0.0.9", "labels": {"app": "lost", "version": "v2"}})
    servers = f"- port: {{number: {edge}, name: http, protocol: HTTP}}\n  hosts: ['*']"
    more = lost + gateway("edge", servers) + to(HOST, HOST, "edge")
    async with guarded(tmp_path, ports, mesh=MESH, more=more) as at:
        server, client = at.mesh.envoys
        router = await at.mesh.envoy(EDGE)
        forged = {"x-mesh-peer-workload": "forged", "x-mesh-peer-app": "forged"}
        await at.reply("/", headers=forged)

        ours = {"reporter": "source", **WEB, **FRONT, **to_service(HOST), "connection_security_policy": "unknown"}
        theirs = {**ours, "reporter": "destination", "connection_security_policy": "mutual_tls"}
        assert await those(client, response_code="200") == [{**ours, **OK}]
        assert await those(server, response_code="200") == [{**theirs, **OK}]
        for metric in ("istio_request_duration_milliseconds", "istio_request_bytes", "istio_response_bytes"):
            assert await those(server, f"{metric}_count", response_code="200") == [{**theirs, **OK}]

        # In plaintext nobody is believed.
        await at.reply("/", plain=True, headers=forged)
        (plain,) = await those(server, connection_security_policy="none", request_protocol="http")
        expected = {**theirs, **OK, **NOBODY, "destination_principal": "unknown", "connection_security_policy": "none"}
        assert plain == expected

        assert await at.connect() == "data"
        for envoy, labels in ((client, ours), (server, theirs)):
            named = {**labels, **TCP, **to_service(DATA)}
            if envoy is server:
                named |= {**NOBODY, **{k: WEB[k] for k in ("source_workload_namespace", "source_principal")}}
            for metric in ("connections_opened", "connections_closed", "sent_bytes", "received_bytes"):
                name = f"istio_tcp_{metric}_total"
                await eventually(lambda e=envoy, n=name: samples(e, n), what=name)
                assert await those(envoy, name) == [named]
        ((_, sent),) = await samples(client, "istio_tcp_sent_bytes_total")
        assert sent == len(b"data\nhello\n")

        await at.mesh.get(f"http://127.0.0.1:{dead}/", host="lost.example.com")
        (failed,) = await those(client, response_code="503")
        assert failed["response_flags"] == "URX,UF" and failed["destination_version"] == "v2"
        assert failed["destination_service"] == "lost.example.com"

        # What an application or a stranger says reaches no upstream by a proxy of ours.
        await at.mesh.get(f"http://127.0.0.3:{edge}/", host=HOST, headers=forged)
        (by_edge,) = await those(router, response_code="200")
        assert (by_edge["source_workload"], by_edge["destination_workload"]) == ("edge", "front")
        (from_edge,) = await those(server, source_workload="edge")
        assert from_edge["source_app"] == "unknown" and from_edge["connection_security_policy"] == "mutual_tls"
        assert at.mesh.envoys and "forged" not in str(await samples(server, REQUESTS))

        await at.apply(deny("all", "[{}]"))
        assert await at.ask() == 403
        (denied,) = await those(server, response_code="403", source_workload="web")
        assert denied == {**theirs, **OK, "response_code": "403"}

        # A Telemetry changes labels, and takes metrics away.
        overrides = """
        metrics:
        - overrides:
          - {match: {metric: REQUEST_SIZE, mode: CLIENT}, disabled: true}
          - match: {metric: REQUEST_COUNT, mode: SERVER}
            tagOverrides:
              host: {value: request.host}
              kind: {value: '"50% of it"'}
              ip: {value: "node.metadata['INSTANCE_IPS']"}
              agent: {value: "request.headers['x-none']"}
              said: {value: "request.headers['x-said']"}
              get: {value: "request.method == 'GET' ? 'yes' : 'no'"}
              source_cluster: {operation: REMOVE}
        """
        telemetry = manifest("Telemetry", "shop", overrides).replace("networking.istio.io", "telemetry.istio.io")
        no_app = deny("said", "[{to: [{operation: {paths: [/said]}}]}]")
        await at.apply(telemetry, no_app)
        await at.ask("/after")
        for said in (b"\xff", b"\xc3", "é".encode(), b"\xed\xa0\x80", b"p" * 1000):
            await at.mesh.client.get(
                f"http://127.0.0.1:{at.http}/said", headers=[(b"host", HOST.encode()), (b"x-said", said)]
            )
        page = (await server.get("/stats/prometheus?filter=istio")).content.decode("utf-8", errors="strict")
        assert f'said="{"p" * 128}"' in page
        assert {labels["said"] for labels in await those(server, kind="50% of it")} == {"unknown", "p" * 128}
        (after,) = await those(server, kind="50% of it", said="unknown", response_code="200", source_workload="web")
        added = {"host": HOST, "ip": "127.0.0.4", "agent": "unknown", "get": "yes"}
        assert added.items() <= after.items() and "source_cluster" not in after
        listeners = [str(await envoy.dynamic("Listener")) for envoy in (client, server)]
        assert ["istio_request_bytes" in text for text in listeners] == [False, True]


@pytest.mark.smoke
async def test_calls_of_grpc_are_counted_with_their_statuses(tmp_path: Path, free_ports: Ports) -> None:
    port, own = free_ports(2)
    peer = Peer()
    peer.serve("echo", f"127.0.0.1:{own}")
    endpoint = {"address": "127.0.0.1", "ports": {"main": own}, "labels": {"app": "echo"}}
    entry = service("echo.example.com", port, endpoint, protocol="GRPC")
    odd = """
    hosts: [echo.example.com]
    http:
    - match: [{uri: {prefix: /odd}}]
      directResponse: {status: 200}
      headers: {response: {set: {grpc-status: "4000000"}}}
    - route: [{destination: {host: echo.example.com}}]
    """
    entry += manifest("VirtualService", "odd", odd)
    try:
        async with fleet(tmp_path, entry, mesh=MESH) as mesh:
            envoy = await mesh.envoy(CLIENT)
            channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.default_authority", "echo.example.com")])
            call = channel.unary_unary(METHOD)
            await trio.to_thread.run_sync(lambda: call(b"", timeout=30))
            peer.behave("echo", failures=1, code="INTERNAL")
            with pytest.raises(grpc.RpcError):
                await trio.to_thread.run_sync(lambda: call(b"", timeout=30))
            channel.close()
            made_up = {"content-type": "application/grpc"}
            await mesh.get(f"http://127.0.0.1:{port}/odd", host="echo.example.com", headers=made_up)
            await mesh.get(f"http://127.0.0.1:{port}/", host="other.example.com")
            await eventually(lambda: those(envoy, request_protocol="http"), what="the last request is counted")
            found = [(r["request_protocol"], r["grpc_response_status"]) for r in await those(envoy)]
            assert sorted(found) == [("grpc", "0"), ("grpc", "13"), ("grpc", "unknown"), ("http", "")]
            (passed,) = await those(envoy, request_protocol="http")
            assert passed["destination_service_name"] == "PassthroughCluster", passed
            log = envoy.log.read_text()
            assert "Stats access logger" not in log, log
            await mesh.assert_all_taken()
    finally:
        peer.servers[0].stop(None).wait()
