"""TLS that ends at a Gateway: certificates of the server and of its clients, and those that change."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from tests.support.certificates import CertificateFiles
from tests.support.credentials import write_credential
from tests.support.edge import gateway, negotiated, secure, to
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, manifest, routes, service
from tests.support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]


@pytest.mark.smoke
async def test_tls_ends_at_the_gateway_with_the_credential_of_the_host(tmp_path: Path, free_ports: Ports) -> None:
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
        await mesh.envoy(EDGE, delta=True)
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
        assert await let_in("must.test", friend)
        said = at_edge.app.seen[-1]["headers"]["x-forwarded-client-cert"]
        assert said.startswith("Hash=") and said.endswith("DNS=friend.test")
        assert await negotiated(port, "new.test", files.ca, ssl.TLSVersion.TLSv1_2) is None
        agreed = await negotiated(port, "new.test", files.ca)
        assert agreed is not None and (agreed[0], agreed[2]) == ("TLSv1.3", "h2")
        assert await negotiated(port, "old.test", files.ca) == ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384", "h2")


async def test_credentials_may_come_late_and_change_without_a_failed_request(tmp_path: Path, free_ports: Ports) -> None:
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
        await mesh.envoy(EDGE, delta=True)
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

            async def is_served(files: CertificateFiles) -> bool:
                return (await mesh.https(port, "a.test", ca=files.ca)).status_code == 200

            for files in (new, old) * 4:
                write_credential(at_edge.secrets, "a", files)
                await eventually(partial(is_served, files), what="the new certificate is served")
            fresh = at_edge.credential("b", "b.test", ca="new")

            async def come() -> bool:
                return (await mesh.https(late, "b.test", ca=fresh.ca)).status_code == 200

            await eventually(come, what="the late credential is served")
            before = done
            await eventually(lambda: done > before + 5)
            stop.set()
        assert failures == []


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
