"""Gateways: requests and connections from outside reach what Gateways and VirtualServices say."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio

from tests.support.certificates import serving, write_certificates
from tests.support.echo import greeting
from tests.support.edge import gateway, negotiated, secure, to
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, service
from tests.support.shop import EDGE

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]


async def answers(mesh: Fleet, port: int, *hosts: str) -> dict[str, str]:
    """Who answers requests to each host, or the status."""
    found = {}
    for host in hosts:
        reply = await mesh.get(f"http://127.0.0.1:{port}/", host=host)
        found[host] = reply.json()["name"] if reply.status_code == 200 else str(reply.status_code)
    return found


@pytest.mark.smoke
async def test_requests_are_let_in_for_the_hosts_of_servers_and_routed_by_host(
    tmp_path: Path, free_ports: Ports
) -> None:
    """Two Gateways share a port; hosts of a server may be for VirtualServices of a namespace alone."""
    port, other = free_ports(2)
    servers = """
    - port: {number: $port, name: http, protocol: HTTP}
      hosts: [a.test, "*.wild.test", bank/bank.test, ./own.test]
    - port: {number: $other, name: http-other, protocol: HTTP}
      hosts: ["*"]
    """
    second = '- {port: {number: $port, name: http, protocol: HTTP}, hosts: ["*/b.test"]}'
    async with fleet(tmp_path) as mesh:
        one, two = await mesh.backend("one"), await mesh.backend("two")
        await mesh.apply(
            service("one.test", 80, at(one))
            + service("two.test", 80, at(two))
            + gateway("edge", servers, port=port, other=other)
            + gateway("more", second, port=port, namespace="bank")
            + to("a.test", "one.test", "edge")
            + to("x.wild.test", "two.test", "edge")
            + to("*.wild.test", "one.test", "edge")
            + to("b.test", "two.test", "bank/more")
            + to("bank.test", "one.test", "shop/edge", namespace="bank")
            + to("bank.test", "two.test", "edge", name="intruder")
            + to("own.test", "two.test", "shop/edge", namespace="bank")
            + to("unlisted.test", "one.test", "edge")
            + to("two.test", "one.test", "edge", "mesh")
        )
        await mesh.envoy(EDGE, delta=True)
        assert await answers(
            mesh, port, "a.test", f"a.test:{port}", "x.wild.test", "y.wild.test", "wild.test", "b.test", "bank.test",
            "own.test", "unlisted.test", "unknown.test",
        ) == {
            "a.test": "one",
            f"a.test:{port}": "one",
            "x.wild.test": "two",
            "y.wild.test": "one",
            "wild.test": "404",
            "b.test": "two",
            "bank.test": "one",
            "own.test": "404",
            "unlisted.test": "404",
            "unknown.test": "404",
        }  # fmt: skip
        assert await answers(mesh, other, "a.test", "unlisted.test", "two.test", "b.test") == {
            "a.test": "one",
            "unlisted.test": "one",
            "two.test": "one",
            "b.test": "404",
        }
        await mesh.assert_all_taken()


@pytest.mark.parametrize("cidr", ["127.0.0.0/8", "10.0.0.0/8"])
async def test_clients_in_networks_of_the_mesh_are_internal(tmp_path: Path, free_ports: Ports, cidr: str) -> None:
    (port,) = free_ports(1)
    networks = tmp_path / "networks.yaml"
    networks.write_text(f"networks: {{near: {{endpoints: [{{fromCidr: {cidr}}}]}}}}")
    server = '- {port: {number: $port, name: http, protocol: HTTP}, hosts: ["*"]}'
    async with fleet(tmp_path, networks_config=networks) as mesh:
        one = await mesh.backend("one")
        await mesh.apply(
            service("one.test", 80, at(one)) + gateway("edge", server, port=port) + to("a.test", "one.test", "edge")
        )
        await mesh.envoy(EDGE)
        seen = (await mesh.get(f"http://127.0.0.1:{port}/", host="a.test")).json()["headers"]
        assert seen.get("x-envoy-internal") == ("true" if cidr.startswith("127") else None)


async def test_hosts_have_no_case(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    servers = """
    - {port: {number: $port, name: http, protocol: HTTP}, hosts: [shop.example.com, Pay.Example.com, "*.Wild.test"]}
    """
    async with fleet(tmp_path) as mesh:
        one, two = await mesh.backend("one"), await mesh.backend("two")
        await mesh.apply(
            service("App.test", 80, at(one), name="app")
            + service("two.test", 80, at(two))
            + gateway("edge", servers, port=port)
            + to(["Shop.Example.com", "pay.example.com"], "app.TEST", "edge", name="app")
            + to("x.wild.TEST", "Two.test", "edge", name="two")
        )
        await mesh.envoy(EDGE)
        found = await answers(mesh, port, "shop.example.com", "SHOP.example.com", "pay.example.com", "X.wild.test")
        assert found == {
            "shop.example.com": "one",
            "SHOP.example.com": "one",
            "pay.example.com": "one",
            "X.wild.test": "two",
        }
        await mesh.assert_all_taken()


TLS_ROUTES = """
hosts: [one.test, "*.two.test"]
gateways: [edge]
tls:
- match: [{sniHosts: [one.test], port: $port}]
  route: [{destination: {host: one.internal, port: {number: 443}}}]
- match: [{sniHosts: ["*.two.test"]}]
  route: [{destination: {host: two.internal, port: {number: 443}}}]
"""


async def test_tls_passes_through_to_where_its_server_name_says(tmp_path: Path, free_ports: Ports) -> None:
    port, auto = free_ports(2)
    servers = """
    - {port: {number: $port, name: tls, protocol: TLS}, hosts: [one.test, "*.two.test"], tls: {mode: PASSTHROUGH}}
    - {port: {number: $auto, name: tls-auto, protocol: TLS}, hosts: ["*.internal"], tls: {mode: AUTO_PASSTHROUGH}}
    """
    automatic = "outbound_.443_._.meshed.internal"
    files = write_certificates(tmp_path, "server", dns=("one.test", "x.two.test", automatic))
    async with fleet(tmp_path) as mesh:
        one = await mesh.backend("one", tls=serving(files))
        two = await mesh.backend("two", tls=serving(files))
        await mesh.apply(
            service("one.internal", 443, at(one), protocol="TLS")
            + service("two.internal", 443, at(two), protocol="TLS")
            + service("meshed.internal", 443, at(two, labels={"security.istio.io/tlsMode": "istio"}), protocol="TLS")
            + gateway("edge", servers, port=port, auto=auto)
            + manifest("VirtualService", "passed", TLS_ROUTES, port=port)
        )
        await mesh.envoy(EDGE, delta=True)
        for host, name in (("one.test", "one"), ("x.two.test", "two")):
            assert (await mesh.https(port, host, ca=files.ca)).json()["name"] == name
        for number, host in ((port, "three.test"), (port, "two.internal"), (auto, automatic)):
            with pytest.raises(httpx.ConnectError):
                await mesh.https(number, host, ca=files.ca)
        # By themselves only connections of the mesh pass: proxies say so in their ALPN.
        before = two.connections
        assert await negotiated(auto, automatic, files.ca, alpn=("istio",)) is not None
        assert two.connections == before + 1
        for absent in ("outbound_.443_._.three.internal", "outbound_.443_._.two.internal"):
            assert await negotiated(auto, absent, files.ca, alpn=("istio",)) is None
        assert two.connections == before + 1  # an endpoint without mutual TLS of the mesh is not reached either
        await mesh.assert_all_taken()


async def test_connections_are_routed_by_port_and_weight(tmp_path: Path, free_ports: Ports) -> None:
    """On TCP servers, and where TLS ends at the gateway before it."""
    port, split, ended = free_ports(3)
    servers = """
    - {port: {number: $port, name: tcp, protocol: TCP}, hosts: ["*"]}
    - {port: {number: $split, name: tcp-split, protocol: TCP}, hosts: ["*"]}
    - port: {number: $ended, name: tls, protocol: TLS}
      hosts: [db.test]
      tls: {mode: SIMPLE, credentialName: db}
    """
    spec = """
    hosts: ["*"]
    gateways: [edge]
    tcp:
    - match: [{port: $port}]
      route: [{destination: {host: one.internal, port: {number: 5432}}}]
    - match: [{port: $split}]
      route:
      - {destination: {host: one.internal, port: {number: 5432}}, weight: 50}
      - {destination: {host: two.internal, port: {number: 5432}}, weight: 50}
    - match: [{port: $ended}]
      route: [{destination: {host: two.internal, port: {number: 5432}}}]
    """
    async with secure(tmp_path) as at_edge:
        mesh = at_edge.mesh
        files = at_edge.credential("db", "db.test")
        one, two = await mesh.tcp_backend("one"), await mesh.tcp_backend("two")
        ports = {"port": port, "split": split, "ended": ended}
        await mesh.apply(
            service("one.internal", 5432, at(one), protocol="TCP")
            + service("two.internal", 5432, at(two), protocol="TCP")
            + gateway("edge", servers, **ports)
            + manifest("VirtualService", "connections", spec, **ports)
        )
        await mesh.envoy(EDGE, delta=True)
        assert {await greeting("127.0.0.1", port) for _ in range(4)} == {"one"}
        assert {await greeting("127.0.0.1", split) for _ in range(30)} == {"one", "two"}
        stream = await trio.open_tcp_stream("127.0.0.1", ended)
        context = ssl.create_default_context(cafile=str(files.ca))
        async with trio.SSLStream(stream, context, server_hostname="db.test", https_compatible=True) as tls:
            assert await tls.receive_some() == b"two\n"


async def test_servers_come_and_go_without_a_failed_request_to_the_others(tmp_path: Path, free_ports: Ports) -> None:
    """On the same port and on others, over connections that are kept and new ones."""
    port, other, plain = free_ports(3)
    both = """
    - {port: {number: $port, name: https-a, protocol: HTTPS}, hosts: [a.test], tls: {mode: SIMPLE, credentialName: a}}
    - {port: {number: $plain, name: http, protocol: HTTP}, hosts: [a.test]}
    """
    second = """
    - {port: {number: $port, name: https-b, protocol: HTTPS}, hosts: [b.test], tls: {mode: SIMPLE, credentialName: b}}
    """
    third = "- {port: {number: $other, name: http-other, protocol: HTTP}, hosts: [b.test]}"
    async with secure(tmp_path) as at_edge:
        mesh = at_edge.mesh
        files = at_edge.credential("a", "a.test")
        at_edge.credential("b", "b.test")
        fixed = service("app.test", 80, at(at_edge.app)) + "".join(
            to(host, "app.test", "edge", "more") for host in ("a.test", "b.test")
        )
        first = gateway("edge", both, port=port, plain=plain)
        await mesh.apply(fixed + first)
        await mesh.envoy(EDGE, delta=True)
        context = ssl.create_default_context(cafile=str(files.ca))
        async with (
            httpx.AsyncClient(verify=context, timeout=60, trust_env=False) as client,
            mesh.load(f"http://127.0.0.1:{plain}/", host="a.test") as load,
            trio.open_nursery() as nursery,
        ):
            statuses: list[int] = []
            stop = trio.Event()

            async def keep_asking() -> None:
                while not stop.is_set():
                    reply = await client.get(
                        f"https://127.0.0.1:{port}/", headers={"host": "a.test"}, extensions={"sni_hostname": "a.test"}
                    )
                    statuses.append(reply.status_code)

            async def served(host: str) -> bool:
                try:
                    return (await mesh.https(port, host, ca=files.ca)).status_code == 200
                except httpx.ConnectError:
                    return False

            async def not_served() -> bool:
                return not await served("b.test")

            nursery.start_soon(keep_asking)
            await eventually(lambda: len(statuses) > 5)
            await mesh.apply(fixed + first + gateway("more", second, port=port))
            await eventually(lambda: served("b.test"))
            await mesh.apply(fixed + first + gateway("more", third, other=other))
            await mesh.until_answered_by({"app"}, f"http://127.0.0.1:{other}/", host="b.test")
            await eventually(not_served)
            assert await served("a.test")
            done = len(statuses)
            await eventually(lambda: len(statuses) > done + 5)
            stop.set()
        assert set(statuses) == {200}
        assert load.failures == []
