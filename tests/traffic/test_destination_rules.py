"""DestinationRules at work in a real Envoy: which endpoints are left out, and how the others are connected to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from mesh_pilot.net.rpc import open_channel
from tests.support.backends import Mesh, backends, unretried
from tests.support.certificates import serving, write_certificates
from tests.support.credentials import write_credential
from tests.support.echo import Backend
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, manifest, routes, rule, service, version
from tests.support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]


async def test_failing_endpoints_are_thrown_out_and_come_back(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "good", "bad") as (mesh, (good, bad)):
        short = "consecutive5xxErrors: 2, interval: 0.05s, baseEjectionTime: 0.05s, maxEjectionPercent: 50"
        hosts = {
            "any.test": "{consecutive5xxErrors: 2, interval: 60s, baseEjectionTime: 60s, maxEjectionPercent: 50}",
            "gateway.test": "{consecutiveGatewayErrors: 1, consecutive5xxErrors: 0, interval: 60s, "
            "maxEjectionPercent: 50}",
            "short.test": f"{{{short}}}",
            "never.test": "{consecutive5xxErrors: 0, consecutiveGatewayErrors: 0}",
        }
        config = ""
        for host, detection in hosts.items():
            config += service(host, port, at(good), at(bad)) + unretried(host)
            config += rule(host, f"outlierDetection: {detection}\nloadBalancer: {{simple: ROUND_ROBIN}}")
        await mesh.apply(config)
        await mesh.envoy(CLIENT)
        one = Mesh(mesh, port)
        bad.answer = lambda request, body: (500, {})
        assert Counter(await one.names("any.test", 10)) == {"good": 8, "500": 2}
        assert Counter(await one.names("gateway.test", 10)) == {"good": 5, "500": 5}, "500 is not a gateway's error"
        assert Counter(await one.names("never.test", 10)) == {"good": 5, "500": 5}
        bad.answer = lambda request, body: (502, {})
        assert Counter(await one.names("gateway.test", 10)) == {"good": 9, "502": 1}
        assert "502" in await one.names("short.test", 4)
        bad.answer = None

        async def both() -> bool:
            return Counter(await one.names("short.test", 10)) == {"good": 5, "bad": 5}

        await eventually(both, what="the endpoint is back")


@pytest.mark.smoke
async def test_connection_pools_are_limited(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a") as (mesh, (a,)):
        pools = {
            "pending.test": "{tcp: {maxConnections: 1}, http: {http1MaxPendingRequests: 1}}",
            "single.test": "{http: {maxRequestsPerConnection: 1}}",
            "kept.test": "{tcp: {connectTimeout: 5s, tcpKeepalive: {time: 60s}}, http: {idleTimeout: 60s}}",
        }
        config = "".join(
            service(h, port, at(a)) + rule(h, f"connectionPool: {p}") + unretried(h) for h, p in pools.items()
        )
        await mesh.apply(config)
        envoy = await mesh.envoy(CLIENT)
        one = Mesh(mesh, port)
        for host, connections in (("single.test", 5), ("kept.test", 1)):
            before = a.connections
            assert await one.names(host, 5) == ["a"] * 5
            assert a.connections - before == connections, host
        a.gate = trio.Event()
        answers: list[str] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                answers.extend(await one.names("pending.test", 1))

            nursery.start_soon(ask)
            await eventually(lambda: len(a.seen) == 11, what="the first request is held")
            nursery.start_soon(ask)

            async def waits() -> bool:
                found = await envoy.stats("pending.test.*upstream_rq_pending_active")
                return sum(found.values()) == 1

            await eventually(waits, what="the second request waits for a connection")
            over = await one.ask("pending.test")
            assert (over.status_code, over.headers["x-envoy-overloaded"]) == (503, "true")
            a.gate.set()
        assert answers == ["a", "a"]


async def test_subsets_and_ports_have_policies_of_their_own(tmp_path: Path, free_ports: Ports) -> None:
    """A subset's policy is laid over the rule's, and a port's over both."""
    port, other = free_ports(2)
    spec = """
    host: shop.test
    trafficPolicy:
      loadBalancer: {simple: ROUND_ROBIN}
      connectionPool: {http: {maxRequestsPerConnection: 1}}
      portLevelSettings:
      - port: {number: $other}
        loadBalancer: {consistentHash: {httpHeaderName: x-user}}
    subsets:
    - {name: plain, labels: {app: shop}}
    - name: sticky
      labels: {app: shop}
      trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x-user}}}
    - name: ported
      labels: {app: shop}
      trafficPolicy:
        portLevelSettings: [{port: {number: $port}, loadBalancer: {consistentHash: {httpHeaderName: x-user}}}]
    """
    http = """
    - {match: [{headers: {x-to: {exact: sticky}}}], route: [{destination: {host: shop.test, subset: sticky}}]}
    - {match: [{headers: {x-to: {exact: ported}}}], route: [{destination: {host: shop.test, subset: ported}}]}
    - {match: [{headers: {x-to: {exact: plain}}}], route: [{destination: {host: shop.test, subset: plain}}]}
    - {route: [{destination: {host: shop.test}}]}
    """
    async with backends(tmp_path, "a", "b") as (mesh, found):
        ports = [{"number": n, "name": name, "protocol": "HTTP"} for n, name in ((port, "main"), (other, "more"))]
        endpoints = [
            {"address": b.host, "ports": {"main": b.port, "more": b.port}, "labels": {"app": "shop"}} for b in found
        ]
        await mesh.apply(
            service("shop.test", port, *endpoints, ports=ports)
            + manifest("DestinationRule", "shop", spec, port=port, other=other)
            + routes("shop.test", http)
        )
        await mesh.envoy(CLIENT)

        async def spread(number: int, to: str) -> int:
            headers = {"x-user": "me", "x-to": to}
            return len(set(await Mesh(mesh, number).names("shop.test", 8, headers=headers)))

        assert await spread(port, "") == await spread(port, "plain") == 2
        assert await spread(port, "sticky") == await spread(port, "ported") == 1
        assert await spread(other, "") == await spread(other, "plain") == 1, "the port's policy holds for subsets"
        opened = found[0].connections + found[1].connections
        await spread(port, "sticky")
        assert found[0].connections + found[1].connections - opened == 8, "what a subset leaves out is the rule's"


async def test_routers_take_the_credentials_for_tls_from_the_folder_of_secrets(
    tmp_path: Path, free_ports: Ports
) -> None:
    """SIMPLE and MUTUAL by ``credentialName``, and a certificate by the roots of another CA is not taken."""
    (port,) = free_ports(1)
    made = tmp_path / "made"
    (made / "other").mkdir(parents=True)
    server = write_certificates(made, "server", dns=("secure.test",))
    own = write_certificates(made, "client", dns=("client.test",))
    stranger = write_certificates(made / "other", "stranger")
    secrets = tmp_path / "secrets"
    write_credential(secrets / "shop", "partner", own)
    write_credential(secrets / "shop", "roots", roots=server.ca)
    write_credential(secrets / "shop", "strange", roots=stranger.ca)
    modes = {
        "simple.test": "{mode: SIMPLE, credentialName: roots, sni: secure.test, subjectAltNames: [secure.test]}",
        "mutual.test": "{mode: MUTUAL, credentialName: partner, sni: secure.test}",
        "strange.test": "{mode: SIMPLE, credentialName: strange}",
        "misnamed.test": "{mode: SIMPLE, credentialName: roots, subjectAltNames: [other.test]}",
        "skipping.test": "{mode: SIMPLE, insecureSkipVerify: true}",
    }
    gateway = """
    selector: {istio: edge}
    servers: [{port: {number: $port, name: http, protocol: HTTP}, hosts: ["*"]}]
    """
    async with fleet(tmp_path, secrets=secrets) as mesh:
        simple = await mesh.backend("simple", tls=serving(server))
        mutual = await mesh.backend("mutual", tls=serving(server, mutual=True))
        config = manifest("Gateway", "edge", gateway, port=port)
        for host, tls in modes.items():
            config += service(host, 443, at(mutual if host == "mutual.test" else simple))
            config += rule(host, f"tls: {tls}")
            config += unretried(host, "edge")
        await mesh.apply(config)
        await mesh.envoy(EDGE)
        answers = {host: (await Mesh(mesh, port).names(host, 1))[0] for host in modes}
        assert answers == {
            "simple.test": "simple",
            "mutual.test": "mutual",
            "strange.test": "503",
            "misnamed.test": "503",
            "skipping.test": "simple",
        }
        await mesh.assert_all_taken()


async def test_grpc_is_spoken_to_services_of_that_protocol_and_where_the_rule_upgrades(
    tmp_path: Path, free_ports: Ports
) -> None:
    """The service behind the proxy is the control plane's own health service, which speaks HTTP/2 alone."""
    port, upgraded = free_ports(2)
    async with fleet(tmp_path) as mesh:
        host, number = mesh.plane.addresses.grpc.rsplit(":", 1)
        health = Backend("health", host, int(number))
        await mesh.apply(
            service("grpc.test", port, at(health), protocol="GRPC")
            + service("http.test", upgraded, at(health))
            + rule("http.test", "connectionPool: {http: {h2UpgradePolicy: UPGRADE}}")
        )
        await mesh.envoy(CLIENT)
        for name, listener in (("grpc.test", port), ("http.test", upgraded)):
            async with open_channel(f"127.0.0.1:{listener}", server_hostname=name) as channel:
                reply = await channel.unary(
                    "/grpc.health.v1.Health/Check", HealthCheckRequest(), HealthCheckResponse, timeout_seconds=5
                )
                assert reply.status == HealthCheckResponse.SERVING
        await mesh.assert_all_taken()


async def test_tcp_connections_are_tunnelled_through_a_proxy(tmp_path: Path, free_ports: Ports) -> None:
    port, proxied = free_ports(2)
    heads: list[str] = []

    async def proxy(stream: trio.SocketStream) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await stream.receive_some()
        heads.append(head.decode().partition("\r\n")[0])
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nthrough\n")
        await stream.receive_some()

    vs = """
    hosts: [far.test]
    tcp:
    - match: [{port: $port}]
      route: [{destination: {host: proxy.test, port: {number: $proxied}, subset: tunnel}}]
    """
    dr = """
    host: proxy.test
    subsets:
    - {name: tunnel, trafficPolicy: {tunnel: {protocol: CONNECT, targetHost: far.example.com, targetPort: 9999}}}
    """
    async with fleet(tmp_path) as mesh, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, proxy, [listener])
        tunnel = Backend("proxy", "127.0.0.1", listener.socket.getsockname()[1])
        await mesh.apply(
            service("far.test", port, at(tunnel), protocol="TCP")
            + service("proxy.test", proxied, version("v1", tunnel), protocol="TCP")
            + manifest("VirtualService", "far", vs, port=port, proxied=proxied)
            + manifest("DestinationRule", "proxy", dr)
        )
        await mesh.envoy(CLIENT)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"hello")
            assert await stream.receive_some() == b"through\n"
        assert heads == ["CONNECT far.example.com:9999 HTTP/1.1"]
        await mesh.assert_all_taken()
        nursery.cancel_scope.cancel()
