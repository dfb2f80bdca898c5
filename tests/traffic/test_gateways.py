"""Gateways: requests and connections from outside reach what Gateways and VirtualServices say, over TLS where asked."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from support.certificates import CertificateFiles, write_certificates
from support.credentials import write_credential
from support.echo import Backend, greeting
from support.envoy import eventually
from support.fleet import Fleet, fleet
from support.manifests import at, manifest, routes, service
from support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy

VARIANTS = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
Ports = Callable[[int], list[int]]


def gateway(name: str, servers: str, *, namespace: str = "shop", **values: object) -> str:
    return manifest("Gateway", name, f"selector: {{istio: edge}}\nservers:\n{servers}", namespace=namespace, **values)


def to(host: str, destination: str, *gateways: str, namespace: str = "shop", name: str = "") -> str:
    """A VirtualService that sends a host's requests at gateways to a service."""
    http = f"- route: [{{destination: {{host: {destination}}}}}]"
    return routes(host, http, gateways=gateways, namespace=namespace, name=name)


async def answers(mesh: Fleet, port: int, *hosts: str) -> dict[str, str]:
    """Who answers requests to each host, or the status."""
    found = {}
    for host in hosts:
        reply = await mesh.get(f"http://127.0.0.1:{port}/", host=host)
        found[host] = reply.json()["name"] if reply.status_code == 200 else str(reply.status_code)
    return found


@VARIANTS
async def test_requests_are_let_in_for_the_hosts_of_servers_and_routed_by_host(
    tmp_path: Path, free_ports: Ports, delta: bool
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
        await mesh.envoy(EDGE, delta=delta)
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


@attrs.frozen
class Secure:
    """A router with credentials, and a service behind it."""

    mesh: Fleet
    secrets: Path
    made: Path
    app: Backend

    def credential(self, name: str, *hosts: str, ca: str = "ca", **options: object) -> CertificateFiles:
        """A credential for these hosts in the folder of secrets, by a CA of this name."""
        files = self.certificate(name, *hosts, ca=ca)
        write_credential(self.secrets, name, files)
        return files

    def certificate(self, name: str, *hosts: str, ca: str = "ca") -> CertificateFiles:
        folder = self.made / ca
        folder.mkdir(parents=True, exist_ok=True)
        return write_certificates(folder, name, dns=hosts or ("localhost",))


@asynccontextmanager
async def secure(tmp_path: Path) -> AsyncIterator[Secure]:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    async with fleet(tmp_path, secrets=secrets) as mesh:
        yield Secure(mesh, secrets, tmp_path / "made", await mesh.backend("app"))
        await mesh.assert_all_taken()


@VARIANTS
async def test_tls_ends_at_the_gateway_with_the_credential_of_the_host(
    tmp_path: Path, free_ports: Ports, delta: bool
) -> None:
    """By ``credentialName`` and by files; plain HTTP is sent to HTTPS where the server says so."""
    port, plain = free_ports(2)
    servers = """
    - port: {number: $port, name: https-a, protocol: HTTPS}
      hosts: [a.test]
      tls: {mode: SIMPLE, credentialName: a}
    - port: {number: $port, name: https-b, protocol: HTTPS}
      hosts: [b.test, "*.b.test"]
      tls: {mode: SIMPLE, serverCertificate: $certificate, privateKey: $key}
    - port: {number: $plain, name: http, protocol: HTTP}
      hosts: [a.test, b.test]
      tls: {httpsRedirect: true}
    """
    async with secure(tmp_path) as at_edge:
        mesh = at_edge.mesh
        a = at_edge.credential("a", "a.test")
        b = at_edge.certificate("b", "b.test", "x.b.test", ca="other")
        values = {"port": port, "plain": plain, "certificate": b.certificate, "key": b.key}
        await mesh.apply(
            service("app.test", 80, at(at_edge.app))
            + gateway("edge", servers, **values)
            + "".join(to(host, "app.test", "edge") for host in ("a.test", "b.test", "x.b.test"))
        )
        await mesh.envoy(EDGE, delta=delta)
        for host, files in (("a.test", a), ("b.test", b), ("x.b.test", b)):
            reply = await mesh.https(port, host, "/path", ca=files.ca)
            assert reply.json()["headers"]["x-forwarded-proto"] == "https", host
            assert reply.json()["path"] == "/path"
        for host, files in (("b.test", a), ("a.test", b), ("unknown.test", a)):
            with pytest.raises(httpx.ConnectError):
                await mesh.https(port, host, ca=files.ca)
        moved = await mesh.get(f"http://127.0.0.1:{plain}/path", host="a.test")
        assert (moved.status_code, moved.headers["location"]) == (301, "https://a.test/path")
        assert at_edge.app.asked("/path") == 3


MUTUAL = """
- port: {number: $port, name: https-must, protocol: HTTPS}
  hosts: [must.test]
  tls: {mode: MUTUAL, credentialName: must}
- port: {number: $port, name: https-named, protocol: HTTPS}
  hosts: [named.test]
  tls: {mode: MUTUAL, credentialName: must, subjectAltNames: [friend.test]}
- port: {number: $port, name: https-may, protocol: HTTPS}
  hosts: [may.test]
  tls: {mode: OPTIONAL_MUTUAL, credentialName: must}
- port: {number: $port, name: https-new, protocol: HTTPS}
  hosts: [new.test]
  tls: {mode: SIMPLE, credentialName: must, minProtocolVersion: TLSV1_3}
- port: {number: $port, name: https-old, protocol: HTTPS}
  hosts: [old.test]
  tls: {mode: SIMPLE, credentialName: must, maxProtocolVersion: TLSV1_2, cipherSuites: [ECDHE-ECDSA-AES256-GCM-SHA384]}
"""


async def test_clients_show_certificates_and_speak_versions_as_the_server_asks(
    tmp_path: Path, free_ports: Ports
) -> None:
    (port,) = free_ports(1)
    hosts = ("must.test", "named.test", "may.test", "new.test", "old.test")
    async with secure(tmp_path) as at_edge:
        mesh = at_edge.mesh
        files = at_edge.credential("must", *hosts)
        friend = at_edge.certificate("friend", "friend.test")
        other = at_edge.certificate("other", "other.test")
        stranger = at_edge.certificate("stranger", "friend.test", ca="strange")
        await mesh.apply(
            service("app.test", 80, at(at_edge.app))
            + gateway("edge", MUTUAL, port=port)
            + "".join(to(host, "app.test", "edge") for host in hosts)
        )
        await mesh.envoy(EDGE)

        async def let_in(host: str, own: CertificateFiles | None) -> bool:
            try:
                reply = await mesh.https(port, host, ca=files.ca, own=own)
            except httpx.HTTPError:
                return False
            return reply.json()["name"] == "app"

        everybody = (None, friend, other, stranger)
        assert [await let_in("must.test", own) for own in everybody] == [False, True, True, False]
        assert [await let_in("named.test", own) for own in everybody] == [False, True, False, False]
        assert [await let_in("may.test", own) for own in everybody] == [True, True, True, False]
        assert "friend.test" in at_edge.app.seen[-2]["headers"].get("x-forwarded-client-cert", "friend.test")
        assert await negotiated(port, "new.test", files.ca, ssl.TLSVersion.TLSv1_2) is None
        agreed = await negotiated(port, "new.test", files.ca)
        assert agreed is not None and (agreed[0], agreed[2]) == ("TLSv1.3", "h2")
        assert await negotiated(port, "old.test", files.ca) == ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384", "h2")


async def negotiated(
    port: int,
    host: str,
    ca: Path,
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    alpn: tuple[str, ...] = ("h2", "http/1.1"),
) -> tuple[str, str, str] | None:
    """The TLS version, cipher and protocol that a server agrees to; None where it does not agree."""
    context = ssl.create_default_context(cafile=str(ca))
    context.maximum_version = newest
    context.set_alpn_protocols(alpn)
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        try:
            tls = trio.SSLStream(stream, context, server_hostname=host)
            await tls.do_handshake()
        except trio.BrokenResourceError:
            return None
        return tls.version(), tls.cipher()[0], tls.selected_alpn_protocol()


@VARIANTS
async def test_credentials_may_come_late_and_change_without_a_failed_request(
    tmp_path: Path, free_ports: Ports, delta: bool
) -> None:
    """Each new connection is verified by both CAs: whichever certificate is served, the request must succeed."""
    port, late = free_ports(2)
    servers = """
    - {port: {number: $port, name: https-a, protocol: HTTPS}, hosts: [a.test], tls: {mode: SIMPLE, credentialName: a}}
    - {port: {number: $late, name: https-b, protocol: HTTPS}, hosts: [b.test], tls: {mode: SIMPLE, credentialName: b}}
    """
    async with secure(tmp_path) as at_edge:
        mesh = at_edge.mesh
        old = at_edge.credential("a", "a.test", ca="old")
        new = at_edge.certificate("a", "a.test", ca="new")
        await mesh.apply(service("app.test", 80, at(at_edge.app)) + gateway("edge", servers, port=port, late=late)
                         + to("a.test", "app.test", "edge") + to("b.test", "app.test", "edge"))  # fmt: skip
        # The listener of the missing credential is not there yet, which must not hold up the other.
        await mesh.envoy(EDGE, delta=delta)
        assert (await mesh.https(port, "a.test", ca=old.ca)).status_code == 200
        with pytest.raises(httpx.HTTPError):
            await mesh.https(late, "b.test", ca=old.ca)
        both = tmp_path / "both.pem"
        both.write_bytes(old.ca.read_bytes() + new.ca.read_bytes())
        failures: list[str] = []
        done = 0
        stop = trio.Event()  # a cancelled handshake would leave its socket to the garbage collector

        async def load() -> None:
            nonlocal done
            while not stop.is_set():
                try:
                    assert (await mesh.https(port, "a.test", ca=both)).status_code == 200
                except Exception as error:
                    failures.append(repr(error))
                done += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await eventually(lambda: done > 5)
            write_credential(at_edge.secrets, "a", new)

            async def rotated() -> bool:
                try:
                    return (await mesh.https(port, "a.test", ca=new.ca)).status_code == 200
                except httpx.ConnectError:
                    return False

            await eventually(rotated, what="the new certificate is served")
            fresh = at_edge.credential("b", "b.test", ca="new")

            async def come() -> bool:
                try:
                    return (await mesh.https(late, "b.test", ca=fresh.ca)).status_code == 200
                except httpx.ConnectError:
                    return False

            await eventually(come, what="the late credential is served")
            before = done
            await eventually(lambda: done > before + 5)
            stop.set()
        assert failures == []


TLS_ROUTES = """
hosts: [one.test, "*.two.test"]
gateways: [edge]
tls:
- match: [{sniHosts: [one.test], port: $port}]
  route: [{destination: {host: one.internal, port: {number: 443}}}]
- match: [{sniHosts: ["*.two.test"]}]
  route: [{destination: {host: two.internal, port: {number: 443}}}]
"""


def serves(files: CertificateFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    return context


@VARIANTS
async def test_tls_passes_through_to_where_its_server_name_says(tmp_path: Path, free_ports: Ports, delta: bool) -> None:
    port, auto = free_ports(2)
    servers = """
    - {port: {number: $port, name: tls, protocol: TLS}, hosts: [one.test, "*.two.test"], tls: {mode: PASSTHROUGH}}
    - {port: {number: $auto, name: tls-auto, protocol: TLS}, hosts: ["*.internal"], tls: {mode: AUTO_PASSTHROUGH}}
    """
    automatic = "outbound_.443_._.two.internal"
    files = write_certificates(tmp_path, "server", dns=("one.test", "x.two.test", automatic))
    async with fleet(tmp_path) as mesh:
        one = await mesh.backend("one", tls=serves(files))
        two = await mesh.backend("two", tls=serves(files))
        await mesh.apply(
            service("one.internal", 443, at(one), protocol="TLS")
            + service("two.internal", 443, at(two), protocol="TLS")
            + gateway("edge", servers, port=port, auto=auto)
            + manifest("VirtualService", "passed", TLS_ROUTES, port=port)
        )
        await mesh.envoy(EDGE, delta=delta)
        for host, name in (("one.test", "one"), ("x.two.test", "two")):
            assert (await mesh.https(port, host, ca=files.ca)).json()["name"] == name
        for number, host in ((port, "three.test"), (port, "two.internal"), (auto, automatic)):
            with pytest.raises(httpx.ConnectError):
                await mesh.https(number, host, ca=files.ca)
        # By themselves only connections of the mesh pass: proxies say so in their ALPN.
        before = two.connections
        assert await negotiated(auto, automatic, files.ca, alpn=("istio",)) is not None
        assert two.connections == before + 1
        assert await negotiated(auto, "outbound_.443_._.three.internal", files.ca, alpn=("istio",)) is None
        await mesh.assert_all_taken()


@VARIANTS
async def test_connections_are_routed_by_port_and_weight(tmp_path: Path, free_ports: Ports, delta: bool) -> None:
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
        await mesh.envoy(EDGE, delta=delta)
        assert {await greeting("127.0.0.1", port) for _ in range(4)} == {"one"}
        assert {await greeting("127.0.0.1", split) for _ in range(30)} == {"one", "two"}
        stream = await trio.open_tcp_stream("127.0.0.1", ended)
        context = ssl.create_default_context(cafile=str(files.ca))
        async with trio.SSLStream(stream, context, server_hostname="db.test", https_compatible=True) as tls:
            assert await tls.receive_some() == b"two\n"


async def test_a_sidecar_reaches_services_by_way_of_a_gateway_of_the_mesh(tmp_path: Path, free_ports: Ports) -> None:
    """ISTIO_MUTUAL at the gateway: the client shows the certificate of the mesh, and the gateway says whose it is."""
    port, edge_port, between = free_ports(3)
    servers = """
    - port: {number: $edge, name: https, protocol: HTTPS}
      hosts: [far.test]
      tls: {mode: ISTIO_MUTUAL}
    """
    through = {"address": "127.0.0.1", "ports": {"main": edge_port}}
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(
            service("egress.test", between, through)
            + service("far.test", port, at(app))
            + manifest("DestinationRule", "egress",
                       "host: egress.test\ntrafficPolicy: {tls: {mode: ISTIO_MUTUAL, sni: far.test}}")
            + gateway("edge", servers, edge=edge_port)
            + routes("far.test", """
                - match: [{gateways: [mesh]}]
                  route: [{destination: {host: egress.test, port: {number: $between}}}]
                - match: [{gateways: [edge]}]
                  route: [{destination: {host: far.test, port: {number: $port}}}]
                """, gateways=("mesh", "edge"), port=port, between=between)
        )  # fmt: skip
        await mesh.envoy(EDGE)
        await mesh.envoy(CLIENT)
        reply = await mesh.get(f"http://127.0.0.1:{port}/", host="far.test")
        assert reply.json()["name"] == "app"
        with pytest.raises(httpx.HTTPError):
            await mesh.get(f"http://127.0.0.1:{edge_port}/", host="far.test")
        await mesh.assert_all_taken()


@VARIANTS
async def test_servers_come_and_go_without_a_failed_request_to_the_others(
    tmp_path: Path, free_ports: Ports, delta: bool
) -> None:
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
        await mesh.envoy(EDGE, delta=delta)
        context = ssl.create_default_context(cafile=str(files.ca))
        async with (
            httpx.AsyncClient(verify=context, timeout=10, trust_env=False) as client,
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
