"""DestinationRules at work in a real Envoy: which endpoint is chosen, which is left out, and how it is connected to."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from support.certificates import CertificateFiles, write_certificates
from support.credentials import write_credential
from support.echo import Backend
from support.envoy import eventually
from support.fleet import Fleet, fleet
from support.manifests import at, manifest, routes, rule, service, version
from support.shop import CLIENT, EDGE

from mesh_pilot.model.service import Locality
from mesh_pilot.rpc import open_channel

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]
EJECT = "{consecutive5xxErrors: 1, interval: 0.1s, baseEjectionTime: 60s, maxEjectionPercent: 100}"


@attrs.frozen
class Mesh:
    """A client's Envoy and the services behind one port."""

    fleet: Fleet
    port: int

    async def ask(self, host: str, path: str = "/", **more: object) -> httpx.Response:
        return await self.fleet.get(f"http://127.0.0.1:{self.port}{path}", host=host, **more)

    async def names(self, host: str, count: int = 20, path: str = "/", **more: object) -> list[str]:
        """Who answers each of these requests; the status where nobody does."""
        replies = [await self.ask(host, path, **more) for _ in range(count)]
        return [r.json()["name"] if r.status_code == 200 else str(r.status_code) for r in replies]

    async def until_only(self, host: str, name: str) -> None:
        """Wait until a host's requests are answered by one endpoint alone.

        Envoy lets a second change of its endpoints' health within a second wait for the end of that second.
        """

        async def only() -> bool:
            return set(await self.names(host, 8)) == {name}

        await eventually(only, what=f"{host} answered by {name} alone")


def unretried(host: str, *gateways: str) -> str:
    """A VirtualService after which every failure is seen."""
    return routes(
        host, f"- {{retries: {{attempts: 0}}, route: [{{destination: {{host: {host}}}}}]}}", gateways=gateways
    )


@asynccontextmanager
async def backends(folder: Path, *names: str, mesh: str = "") -> AsyncIterator[tuple[Fleet, list[Backend]]]:
    """A control plane, and a backend of each name on a loopback address of its own."""
    async with fleet(folder, mesh=mesh) as running:
        yield running, [await running.backend(name, host=f"127.0.1.{i}") for i, name in enumerate(names, 1)]
        await running.assert_all_taken()


BALANCERS = {
    "simple: ROUND_ROBIN": (10, 10),
    "simple: LEAST_REQUEST": (1, 19),
    "simple: RANDOM": (1, 19),
    "simple: ROUND_ROBIN, warmup: {duration: 1s, minimumPercent: 50, aggression: 1}": (1, 19),
    "warmupDurationSecs: 1s": (1, 19),
}
"""A load balancer, and how few and how many of 20 requests each of two endpoints may get."""


async def test_simple_load_balancers_use_all_endpoints(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a", "b") as (mesh, (a, b)):
        hosts = {f"case-{n}.test": balancer for n, balancer in enumerate(BALANCERS)}
        await mesh.apply(
            "".join(service(h, port, at(a), at(b)) + rule(h, f"loadBalancer: {{{lb}}}") for h, lb in hosts.items())
        )
        await mesh.envoy(CLIENT)
        wrong = []
        for host, balancer in hosts.items():
            names = await Mesh(mesh, port).names(host)
            least, most = BALANCERS[balancer]
            if not all(least <= names.count(name) <= most for name in ("a", "b")):
                wrong.append((balancer, names))
            if most == 10 and any(one == following for one, following in pairwise(names)):
                wrong.append((balancer, names))
        assert wrong == []


HASHES: dict[str, Callable[[int], Mapping[str, object]]] = {
    "httpHeaderName: x-user": lambda user: {"headers": {"x-user": f"u{user}"}},
    "httpQueryParameterName: user": lambda user: {"path": f"/?user=u{user}"},
    "httpCookie: {name: user}": lambda user: {"headers": {"cookie": f"user=u{user}"}},
}
KINDS = ("", ", ringHash: {minimumRingSize: 256}", ", maglev: {}", ", maglev: {tableSize: 101}")


async def test_requests_with_the_same_hash_key_go_to_the_same_endpoint(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a", "b", "c") as (mesh, found):
        cases = {
            f"case-{n}.test": (key, kind)
            for n, (key, kind) in enumerate((key, kind) for key in HASHES for kind in KINDS)
        }
        config = ""
        for host, (key, kind) in cases.items():
            config += service(host, port, *map(at, found))
            config += rule(host, f"loadBalancer: {{consistentHash: {{{key}{kind}}}}}")
        await mesh.apply(config)
        await mesh.envoy(CLIENT)
        wrong = []
        for host, (key, kind) in cases.items():
            chosen = [set(await Mesh(mesh, port).names(host, 3, **HASHES[key](user))) for user in range(12)]
            if any(len(names) != 1 for names in chosen) or len(set().union(*chosen)) == 1:
                wrong.append((key, kind, chosen))
        assert wrong == []


async def test_a_client_without_the_cookie_is_given_one_that_sticks(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    cookie = "{name: session, path: /shop, ttl: 60s, attributes: [{name: SameSite, value: Strict}]}"
    async with backends(tmp_path, "a", "b", "c") as (mesh, found):
        await mesh.apply(
            service("shop.test", port, *map(at, found))
            + rule("shop.test", f"loadBalancer: {{consistentHash: {{httpCookie: {cookie}}}}}")
        )
        await mesh.envoy(CLIENT)
        one = Mesh(mesh, port)
        seen = set()
        for _ in range(12):
            mesh.client.cookies.clear()
            first = await one.ask("shop.test", headers={"connection": "close"})
            given = first.headers["set-cookie"]
            assert "Max-Age=60" in given and "Path=/shop" in given and "SameSite=Strict" in given
            mesh.client.cookies.clear()
            again = await one.names("shop.test", 4, headers={"cookie": given.partition(";")[0]})
            assert set(again) == {first.json()["name"]}
            seen |= set(again)
        assert len(seen) > 1


async def test_connections_and_requests_of_one_address_go_to_the_same_endpoint(
    tmp_path: Path, free_ports: Ports
) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a", "b", "c") as (mesh, found):
        balanced = "loadBalancer: {consistentHash: {useSourceIp: true, maglev: {}}}"
        await mesh.apply(service("shop.test", port, *map(at, found)) + rule("shop.test", balanced))
        await mesh.envoy(CLIENT)
        chosen = []
        for client in range(20, 32):
            transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{client}")
            async with httpx.AsyncClient(transport=transport, timeout=10) as asking:
                headers = {"host": "shop.test", "connection": "close"}
                replies = [await asking.get(f"http://127.0.0.1:{port}/", headers=headers) for _ in range(3)]
                chosen.append({reply.json()["name"] for reply in replies})
        assert all(len(names) == 1 for names in chosen) and len(set().union(*chosen)) > 1, chosen


PLACES = {"here": "eu/eu-1/rack-1", "zone": "eu/eu-1/rack-2", "region": "eu/eu-2/rack-1", "far": "us/us-1/rack-1"}
AT_HOME = attrs.evolve(CLIENT, locality=Locality("eu", "eu-1", "rack-1"))


def placed(host: str, port: int, found: Mapping[str, Backend], **places: str) -> str:
    return service(host, port, *(at(found[name], locality=where) for name, where in places.items()))


async def test_endpoints_fail_over_to_the_next_nearest(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, *PLACES) as (mesh, backs):
        found = dict(zip(PLACES, backs, strict=True))
        await mesh.apply(
            placed("shop.test", port, found, **PLACES)
            + rule("shop.test", f"outlierDetection: {EJECT}")
            + unretried("shop.test")
        )
        await mesh.envoy(AT_HOME)
        one = Mesh(mesh, port)
        for place in PLACES:
            await one.until_only("shop.test", place)
            found[place].answer = lambda request, body: (503, {})
            assert await one.names("shop.test", 1) == ["503"]


async def test_the_mesh_says_where_requests_go_when_a_region_fails(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    mesh_wide = "localityLbSetting: {failover: [{from: eu, to: asia}]}"
    async with backends(tmp_path, "here", "us", "asia", mesh=mesh_wide) as (mesh, backs):
        found = dict(zip(("here", "us", "asia"), backs, strict=True))
        places = {"here": "eu/eu-1/rack-1", "us": "us/us-1", "asia": "asia/asia-1"}
        await mesh.apply(
            placed("shop.test", port, found, **places)
            + rule("shop.test", f"outlierDetection: {EJECT}")
            + placed("own.test", port, found, **places)
            + rule(
                "own.test",
                f"outlierDetection: {EJECT}\nloadBalancer: {{localityLbSetting: {{failover: [{{from: eu, to: us}}]}}}}",
            )
            + placed("off.test", port, found, **places)
            + rule("off.test", f"outlierDetection: {EJECT}\nloadBalancer: {{localityLbSetting: {{enabled: false}}}}")
        )
        await mesh.envoy(AT_HOME)
        one = Mesh(mesh, port)
        assert set(await one.names("shop.test", 8)) == set(await one.names("own.test", 8)) == {"here"}
        assert set(await one.names("off.test", 40)) == {"here", "us", "asia"}
        found["here"].answer = lambda request, body: (503, {})
        await one.until_only("shop.test", "asia")
        await one.until_only("own.test", "us")


async def test_endpoints_are_preferred_by_labels(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "same", "half", "other") as (mesh, (same, half, other)):
        priority = "loadBalancer: {localityLbSetting: {failoverPriority: [version, 'tier=gold']}}"
        labelled = service(
            "shop.test",
            port,
            at(other, labels={"version": "v1"}),
            at(half, labels={"version": "v2"}),
            at(same, labels={"version": "v2", "tier": "gold"}),
        )
        await mesh.apply(labelled + rule("shop.test", f"outlierDetection: {EJECT}\n{priority}"))
        await mesh.envoy(attrs.evolve(CLIENT, labels={"app": "web", "version": "v2"}))
        one = Mesh(mesh, port)
        for backend in (same, half, other):
            await one.until_only("shop.test", backend.name)
            backend.answer = lambda request, body: (503, {})


async def test_requests_are_distributed_over_localities_by_weight(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, *PLACES) as (mesh, backs):
        found = dict(zip(PLACES, backs, strict=True))
        shares = '{from: "eu/eu-1/*", to: {"eu/eu-1/*": 70, "us/*": 30}}'
        await mesh.apply(
            placed("shop.test", port, found, **PLACES)
            + rule("shop.test", f"loadBalancer: {{localityLbSetting: {{distribute: [{shares}]}}}}")
        )
        await mesh.envoy(AT_HOME)
        count = Counter(await Mesh(mesh, port).names("shop.test", 200))
        assert count.keys() == {"here", "zone", "far"}, count
        assert 30 < count["far"] < 95, count


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
        assert Counter(await one.names("gateway.test", 10)) == {"good": 5, "500": 5}, "500 is no gateway's error"
        assert Counter(await one.names("never.test", 10)) == {"good": 5, "500": 5}
        bad.answer = lambda request, body: (502, {})
        assert Counter(await one.names("gateway.test", 10)) == {"good": 9, "502": 1}
        assert "502" in await one.names("short.test", 4)
        bad.answer = None

        async def both() -> bool:
            return Counter(await one.names("short.test", 10)) == {"good": 5, "bad": 5}

        await eventually(both, what="the endpoint is back")


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


async def test_endpoints_get_their_weight(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "light", "heavy") as (mesh, (light, heavy)):
        await mesh.apply(
            service("shop.test", port, at(light, weight=1), at(heavy, weight=4))
            + rule("shop.test", "loadBalancer: {simple: ROUND_ROBIN}")
        )
        await mesh.envoy(CLIENT)
        assert Counter(await Mesh(mesh, port).names("shop.test", 50)) == {"light": 10, "heavy": 40}


def speaks_tls(files: CertificateFiles, *, mutual: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    if mutual:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


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
    write_credential(secrets, "partner", own)
    write_credential(secrets, "roots", roots=server.ca)
    write_credential(secrets, "strange", roots=stranger.ca)
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
        simple = await mesh.backend("simple", tls=speaks_tls(server, mutual=False))
        mutual = await mesh.backend("mutual", tls=speaks_tls(server, mutual=True))
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
