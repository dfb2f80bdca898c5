"""What clients and applications notice of defaults that Istio has changed since older versions.

Others of these are next to what they belong to: balancers in ``test_balancing``, spellings of hosts in
``test_route_matches_seen``, retries in ``test_route_patience``, mirrors in ``test_route_actions_seen``, servers that
prove themselves in ``test_server_verification``, labels of the registry in ``test_policies_of_registry``, external
authorization in ``test_custom_authorization``, ports of redirects in ``test_redirect_ports``.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.clusters import connection_pool, outbound
from mesh_pilot.model.proxy import Interception
from tests.support.backends import Mesh, backends, unretried
from tests.support.certificates import serving, write_certificates
from tests.support.echo import Backend, http_backend
from tests.support.edge import gateway, secure
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, routes, rule, service
from tests.support.mutual import HOST, REVIEWS, WEB, served_by_sidecar
from tests.support.patching import envoy_filter, patch
from tests.support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

CREATED = 'metadata: {{creationTimestamp: "2024-03-0{}T00:00:00Z", '


def created(day: int, text: str) -> str:
    """The manifest, as of an object that was created on this day."""
    return text.replace("metadata: {", CREATED.format(day))


async def head(stream: trio.SocketStream) -> bytes:
    """What comes, to the end of a head, or of the connection."""
    got = b""
    while b"\r\n\r\n" not in got and (more := await stream.receive_some()):
        got += more
    return got


# Applications behind their sidecars


async def test_what_an_application_that_restarts_cannot_have_seen_is_tried_again(
    tmp_path: Path, free_ports: Ports
) -> None:
    port, grpc, away = free_ports(3)
    ports = "".join(
        f"- {{port: {{number: {number}, name: {name}, protocol: {name}}}, bind: 127.0.0.4,"
        f' defaultEndpoint: "127.0.0.1:{away}"}}\n'
        for number, name in ((port, "HTTP"), (grpc, "GRPC"))
    )
    sidecar = f'workloadSelector: {{labels: {{app: reviews}}}}\negress: [{{hosts: ["~/*"]}}]\ningress:\n{ports}'
    plain = manifest("PeerAuthentication", "default", "mtls: {mode: DISABLE}")
    async with fleet(tmp_path, manifest("Sidecar", "reviews", sidecar) + plain) as mesh:
        envoy = await mesh.envoy(REVIEWS, delta=True)
        for number, tries in ((port, 3), (grpc, 1)):
            assert (await mesh.get(f"http://127.0.0.4:{number}/", host=HOST)).status_code == 503
            assert await envoy.counted(f"inbound.{number}.*upstream_cx_connect_fail$") == tries, number

        async def found_away_and_answered() -> bool:
            """True if the application, back once it was found away, answers the same request."""
            answers: list[int] = []
            before = await envoy.counted(f"inbound.{port}.*upstream_cx_connect_fail$")

            async def ask() -> None:
                answers.append((await mesh.get(f"http://127.0.0.4:{port}/", host=HOST)).status_code)

            async def found_away() -> bool:
                return await envoy.counted(f"inbound.{port}.*upstream_cx_connect_fail$") > before

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await eventually(found_away)
                async with http_backend("app", port=away):
                    await eventually(lambda: bool(answers))
            return answers == [200]

        await eventually(found_away_and_answered, what="a request outlives a restart")
        await mesh.assert_all_taken()


UPLOAD = b"POST %b HTTP/1.1\r\nhost: reviews.example.com\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n"


@asynccontextmanager
async def two_sidecars(folder: Path, free_ports: Ports, app: Backend, config: str = "") -> AsyncIterator[Mesh]:
    """A client's, and that of the application."""
    port, target = free_ports(2)
    (folder / "mesh").mkdir()
    async with fleet(folder / "mesh", served_by_sidecar(port, target, app) + "\n" + config) as mesh:
        await mesh.envoy(REVIEWS, delta=True)
        await mesh.envoy(WEB, delta=True)
        yield Mesh(mesh, port)
        await mesh.assert_all_taken()


async def test_the_application_says_whether_an_upload_may_begin(tmp_path: Path, free_ports: Ports) -> None:
    answers = {"/large": b"HTTP/1.1 413 -\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"}
    welcome = b"HTTP/1.1 100 Continue\r\n\r\n"

    async def application(stream: trio.SocketStream) -> None:
        async with stream:
            path = (await head(stream)).split(b" ")[1].decode()
            await stream.send_all(answers.get(path, welcome))
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, application, [listener])
        app = Backend("app", "127.0.0.1", listener.socket.getsockname()[1])
        async with two_sidecars(tmp_path, free_ports, app) as mesh:
            for path, first in (("/large", b"HTTP/1.1 413 "), ("/small", b"HTTP/1.1 100 ")):
                async with await trio.open_tcp_stream("127.0.0.1", mesh.port) as stream:
                    await stream.send_all(UPLOAD % path.encode())
                    assert (await head(stream)).startswith(first), path
        nursery.cancel_scope.cancel()


async def test_plaintext_to_a_subset_is_no_plaintext_to_the_service(tmp_path: Path, free_ports: Ports) -> None:
    spec = {"host": HOST, "subsets": [{"name": "plain", "trafficPolicy": {"tls": {"mode": "DISABLE"}}}]}
    http = """
    - {match: [{uri: {prefix: /plain}}], route: [{destination: {host: $to, subset: plain}}]}
    - {route: [{destination: {host: $to}}]}
    """
    config = manifest("DestinationRule", "reviews", spec) + routes(HOST, http, to=HOST)
    async with http_backend("app") as app, two_sidecars(tmp_path, free_ports, app, config) as mesh:
        assert await mesh.names(HOST, 2, "/plain") + await mesh.names(HOST, 2) == ["app"] * 4
        assert ["x-forwarded-client-cert" in seen["headers"] for seen in app.seen] == [False, False, True, True]


# Whom a client reaches


async def test_the_exact_host_and_the_clients_own_namespace_count_whatever_is_older(
    tmp_path: Path, free_ports: Ports
) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "exact", "wild", "own", "other") as (mesh, (exact, wild, own, other)):
        await mesh.apply(
            service(["img.pics.test", "any.pics.test"], port, at(exact))
            + service("wild.pics.test", port, at(wild))
            + created(1, routes("*.pics.test", "- route: [{destination: {host: wild.pics.test}}]"))
            + created(2, routes("img.pics.test", "- route: [{destination: {host: img.pics.test}}]"))
            + created(1, service("api.test", port, at(other), namespace="bank"))
            + created(2, service("api.test", port, at(own)))
        )
        await mesh.envoy(CLIENT, delta=True)
        one = Mesh(mesh, port)
        hosts = {"img.pics.test": "exact", "any.pics.test": "wild", "api.test": "own"}
        assert {host: set(await one.names(host, 4)) for host in hosts} == {h: {name} for h, name in hosts.items()}


async def test_endpoints_of_other_networks_are_reached_by_the_mutual_tls_of_the_mesh_or_not_at_all(
    tmp_path: Path, free_ports: Ports
) -> None:
    port, crossing = free_ports(2)
    networks = tmp_path / "networks.yaml"
    networks.write_text(f"networks: {{n2: {{gateways: [{{address: 127.0.1.9, port: {crossing}}}]}}}}")
    modes = {
        "simple.test": "{mode: SIMPLE, insecureSkipVerify: true}",
        "mutual.test": "{mode: MUTUAL, clientCertificate: $cert, privateKey: $key, insecureSkipVerify: true}",
        "nobody.test": "{mode: ISTIO_MUTUAL}",
        "mesh.test": "{mode: ISTIO_MUTUAL}",
    }
    files = write_certificates(tmp_path, "near", dns=("near.test",))
    async with fleet(tmp_path, networks_config=networks) as mesh:
        near = await mesh.backend("near", tls=serving(files))
        between = await mesh.backend("gateway", host="127.0.1.9", port=crossing)
        config = ""
        for host, tls in modes.items():
            account = {} if host == "nobody.test" else {"serviceAccount": "a"}
            far = {"address": "10.64.5.2", "network": "n2", **account}
            config += service(host, port, at(near, network="n1"), far) + unretried(host)
            config += rule(host, f"tls: {tls}", cert=files.certificate, key=files.key)
        await mesh.apply(config)
        await mesh.envoy(attrs.evolve(CLIENT, metadata={"NETWORK": "n1"}), delta=True)
        one = Mesh(mesh, port)
        assert await one.names("simple.test", 8) + await one.names("mutual.test", 8) == ["near"] * 16
        assert set(await one.names("nobody.test", 8)) == {"503"}  # a server of another kind
        assert between.connections == 0
        await one.names("mesh.test", 8)
        assert between.connections > 0
        await mesh.assert_all_taken()


# Connections to servers


async def test_settings_of_connections_are_for_the_ports_that_they_are_meant_for(
    tmp_path: Path, free_ports: Ports
) -> None:
    port, other = free_ports(2)
    async with backends(tmp_path, "web") as (mesh, (web,)):
        more = "loadBalancer: {simple: RANDOM}"
        policies = {
            "auto.test": "connectionPool: {http: {h2UpgradePolicy: UPGRADE}}",
            "header.test": "proxyProtocol: {version: V1}",
            "own.test": f"proxyProtocol: {{version: V1}}\nportLevelSettings: [{{port: {{number: {other}}}, {more}}}]",
            "idle.test": "connectionPool: {tcp: {idleTimeout: 0.2s}}",
            "kept.test": "connectionPool: {tcp: {idleTimeout: 0.2s}, http: {idleTimeout: 60s}}",
        }
        config = "".join(rule(host, policy) + unretried(host) for host, policy in policies.items())
        for host in policies:
            number = other if host in ("own.test", "auto.test") else port
            config += service(host, number, at(web), protocol="" if host == "auto.test" else "HTTP")
        await mesh.apply(config)
        envoy = await mesh.envoy(CLIENT, delta=True)
        one, others = Mesh(mesh, port), Mesh(mesh, other)
        # The server speaks HTTP/1.1 and knows nothing of PROXY headers.
        answers = {
            "auto.test": await others.names("auto.test", 1),
            "own.test": await others.names("own.test", 1),
            "header.test": await one.names("header.test", 1),
        }
        assert answers == {"auto.test": ["web"], "own.test": ["web"], "header.test": ["503"]}
        assert await one.names("kept.test", 1) + await one.names("idle.test", 1) == ["web"] * 2

        async def closed() -> bool:
            return await envoy.counted("idle.test.*upstream_cx_idle_timeout$") == 1

        await eventually(closed, seconds=20, what="the idle connection is closed")
        assert await envoy.counted("kept.test.*upstream_cx_idle_timeout$") == 0


# Connections that the host redirects


@attrs.frozen
class Redirected:
    """A client whose connections its Envoy gets. A PROXY header says in iptables' stead where they were going."""

    mesh: Fleet
    envoy: RealEnvoy
    listen: int

    async def get(self, host: str, address: str, port: int) -> bytes:
        """The whole answer to a request for a host at an address."""
        head = f"PROXY TCP4 127.0.0.1 {address} 9999 {port}\nGET / HTTP/1.1\nhost: {host}\nconnection: close\n\n"
        async with await trio.open_tcp_stream("127.0.0.1", self.listen) as stream:
            await stream.send_all(head.replace("\n", "\r\n").encode())
            return b"".join([data async for data in stream])


@asynccontextmanager
async def redirected(folder: Path, free_ports: Ports, config: str) -> AsyncIterator[Redirected]:
    listen, inbound = free_ports(2)
    told = patch("FILTER_CHAIN", "MERGE", {"use_proxy_proto": True}, listener={"name": "virtualOutbound"})
    async with fleet(folder, mesh=f"proxyListenPort: {listen}\nproxyInboundListenPort: {inbound}") as mesh:
        await mesh.apply(config + envoy_filter(told))
        envoy = await mesh.envoy(attrs.evolve(CLIENT, interception=Interception.REDIRECT), delta=True)
        yield Redirected(mesh, envoy, listen)
        await mesh.assert_all_taken()


async def test_an_egress_port_of_a_sidecar_is_one_of_its_services_addresses_only(
    tmp_path: Path, free_ports: Ports
) -> None:
    (port,) = free_ports(1)
    sidecar = """
    egress: [{port: {number: $port, name: tcp, protocol: TCP}, hosts: ["./db.test"]}]
    """
    async with http_backend("db") as db, http_backend("other", host="127.0.2.2", port=port):
        config = service("db.test", port, at(db), protocol="TCP", addresses=["127.0.2.1"])
        config += manifest("Sidecar", "default", sidecar, port=port)
        async with redirected(tmp_path, free_ports, config) as client:
            for address, name in (("127.0.2.1", b"db"), ("127.0.2.2", b"other")):
                assert b'"name": "%b"' % name in await client.get("any.test", address, port), address


async def test_the_original_destination_is_reached_at_the_target_port_and_not_kept_for_long(
    tmp_path: Path, free_ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is the test's."""
    pool = api.ConnectionPoolSettings(http=connection_pool.Http(idle_timeout=timedelta(seconds=0.2)))
    monkeypatch.setattr(outbound, "PASSTHROUGH_POLICY", attrs.evolve(outbound.PASSTHROUGH_POLICY, connection_pool=pool))
    port, target = free_ports(2)
    spec = {"ports": [{"number": port, "name": "main", "protocol": "HTTP", "targetPort": target}]}
    config = service("any.test", port, resolution="NONE", location="MESH_EXTERNAL", **spec)
    async with redirected(tmp_path, free_ports, config) as client:
        await client.mesh.backend("as declared", host="127.0.1.1", port=target)
        await client.mesh.backend("as asked", host="127.0.1.1", port=port)
        for host, name in (("any.test", b"as declared"), ("unknown.test", b"as asked")):
            assert name in await client.get(host, "127.0.1.1", port), host

        async def closed() -> bool:
            return await client.envoy.counted("PassthroughCluster.*upstream_cx_idle_timeout$") == 1

        await eventually(closed, seconds=20, what="the idle connection is closed")


# Clients that take their time


async def test_a_client_has_any_time_to_begin_and_15_seconds_to_finish_a_handshake(
    tmp_path: Path, free_ports: Ports
) -> None:
    port, outward = free_ports(2)
    servers = "- {port: {number: $port, name: https, protocol: HTTPS}, hosts: [a.test], "
    servers += "tls: {mode: SIMPLE, credentialName: a}}"
    async with secure(tmp_path) as at_edge:
        files = at_edge.credential("a", "a.test")
        far = await at_edge.mesh.backend("far", tls=serving(files))
        by_name = "{hosts: [a.test], tls: [{match: [{sniHosts: [a.test]}], route: [{destination: {host: a.test}}]}]}"
        await at_edge.mesh.apply(
            gateway("edge", servers, port=port)
            + service("a.test", outward, at(far), protocol="TLS")
            + manifest("VirtualService", "a", by_name)
        )
        await at_edge.mesh.envoy(EDGE, delta=True)
        await at_edge.mesh.envoy(CLIENT, delta=True)
        context = ssl.create_default_context(cafile=str(files.ca))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing, server_hostname="a.test").do_handshake()

        async def listens(number: int) -> trio.SocketStream:
            return await trio.open_tcp_stream("127.0.0.1", number)

        silent, hesitant = await listens(outward), await listens(port)
        async with silent, hesitant:
            with trio.fail_after(30):
                await hesitant.send_all(outgoing.read())
                while await hesitant.receive_some():
                    pass  # until the gateway has waited enough
            tls = trio.SSLStream(silent, context, server_hostname="a.test", https_compatible=True)
            await tls.send_all(b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n")
            assert (await tls.receive_some()).startswith(b"HTTP/1.1 200")
