"""Sidecar objects: what a proxy may reach, where it listens for its application, and what it hands on to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, service
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]
REGISTRY_ONLY = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"

SERVER = EnvoyNode(
    "app", "shop", "127.0.0.4", labels={"app": "server"}, interception=Interception.NONE,
    metadata={"SERVICE_ACCOUNT": "server"},
)  # fmt: skip
PLAIN = manifest("PeerAuthentication", "default", "mtls: {mode: DISABLE}")


async def answered(mesh: Fleet, port: int, wanted: dict[str, str], address: str = "127.0.0.1") -> None:
    """Wait until each of these hosts is answered by the backend, or with the status, that is wanted."""

    async def all_are() -> bool:
        url = f"http://{address}:{port}/"
        return {host: set(await mesh.names(url, host=host, count=2)) for host in wanted} == {
            host: {name} for host, name in wanted.items()
        }

    await eventually(all_are, what=f"answers are {wanted}")


@pytest.mark.smoke
async def test_a_proxy_reaches_what_the_sidecar_that_applies_to_it_lets_it(tmp_path: Path, free_ports: Ports) -> None:
    """That of the root namespace, then that of its own, then the one that selects it."""
    (port,) = free_ports(1)
    async with fleet(tmp_path, mesh=REGISTRY_ONLY) as mesh:
        near, far, other = [await mesh.backend(name) for name in ("near", "far", "other")]
        services = (
            service("near.test", port, at(near))
            + service("far.test", port, at(far), namespace="bank")
            + service("other.test", port, at(other), namespace="bank")
        )
        await mesh.apply(services)
        envoy = await mesh.envoy(CLIENT, delta=True)
        everything = {"near.test": "near", "far.test": "far", "other.test": "other"}
        await answered(mesh, port, everything)

        async def only(*hosts: str) -> None:
            await answered(mesh, port, {host: name if host in hosts else "502" for host, name in everything.items()})

            async def pruned() -> bool:
                held = {name.rpartition("|")[2] for name in await envoy.dynamic("Cluster") if "outbound|" in name}
                return held == set(hosts)

            await eventually(pruned, what=f"only clusters of {hosts} are left")

        root = manifest("Sidecar", "root", 'egress: [{hosts: ["./*"]}]', namespace="istio-system")
        await mesh.apply(services + root)
        await only("near.test")
        own = manifest("Sidecar", "own", 'egress: [{hosts: ["./*", "bank/far.test"]}]')
        await mesh.apply(services + root + own)
        await only("near.test", "far.test")
        chosen = 'workloadSelector: {labels: {app: web}}\negress: [{hosts: ["*/other.test"]}]'
        stranger = 'workloadSelector: {labels: {app: teller}}\negress: [{hosts: ["~/*"]}]'
        selected = manifest("Sidecar", "chosen", chosen) + manifest("Sidecar", "stranger", stranger)
        await mesh.apply(services + root + own + selected)
        await only("other.test")
        await mesh.apply(services + root)
        await only("near.test")
        await mesh.apply(services)
        await answered(mesh, port, everything)
        await mesh.assert_all_taken()


async def test_egress_listeners_have_their_ports_addresses_and_hosts(tmp_path: Path, free_ports: Ports) -> None:
    port, other = free_ports(2)
    spec = """
    egress:
    - {port: {number: $port, name: http, protocol: HTTP}, bind: 127.0.0.21, hosts: ["./near.test"]}
    - {port: {number: $other, name: http, protocol: HTTP}, hosts: ["bank/*"]}
    - {hosts: ["./*"]}
    outboundTrafficPolicy: {mode: REGISTRY_ONLY}
    """
    async with fleet(tmp_path) as mesh:
        near, far = await mesh.backend("near"), await mesh.backend("far")
        await mesh.apply(
            service("near.test", port, at(near))
            + service("next.test", port, at(near))
            + service("far.test", other, at(far), namespace="bank")
            + service("third.test", other, at(near))
            + manifest("Sidecar", "own", spec, port=port, other=other)
        )
        envoy = await mesh.envoy(CLIENT)
        assert set((await envoy.listening()).values()) == {
            f"127.0.0.21:{port}", f"127.0.0.1:{port}", f"127.0.0.1:{other}"
        }  # fmt: skip
        await answered(mesh, port, {"near.test": "near", "next.test": "502", "far.test": "502"}, "127.0.0.21")
        await answered(mesh, other, {"far.test": "far", "third.test": "502", "near.test": "502"})
        await mesh.assert_all_taken()


async def test_requests_to_unknown_hosts_are_refused_or_sent_to_the_egress_proxy(
    tmp_path: Path, free_ports: Ports
) -> None:
    """What passes through without a proxy goes where the client was going, which only redirection tells."""
    port, other = free_ports(2)
    own = """
    egress: [{hosts: ["./*"]}]
    outboundTrafficPolicy: $policy
    """
    async with fleet(tmp_path) as mesh:
        near, out = await mesh.backend("near"), await mesh.backend("out")
        services = service("near.test", port, at(near)) + service("out.test", other, at(out))
        await mesh.apply(services)
        envoy = await mesh.envoy(CLIENT)
        await answered(mesh, port, {"near.test": "near", "unknown.test": "503"})
        assert (await envoy.stats("PassthroughCluster.*none_healthy"))[
            "cluster.PassthroughCluster.upstream_cx_none_healthy"
        ]
        proxied = f"{{mode: ALLOW_ANY, egressProxy: {{host: out.test, port: {{number: {other}}}}}}}"
        for policy, name in ((proxied, "out"), ("{mode: REGISTRY_ONLY}", "502"), ("{mode: ALLOW_ANY}", "503")):
            await mesh.apply(services + manifest("Sidecar", "own", own, policy=policy))
            await answered(mesh, port, {"near.test": "near", "unknown.test": name})
        assert out.seen[-1]["headers"]["host"] == "unknown.test"
        await mesh.assert_all_taken()


INGRESS = """
workloadSelector: {labels: {app: server}}
ingress:
- {port: {number: $one, name: http, protocol: HTTP}, bind: 127.0.0.4, defaultEndpoint: "unix://$socket"}
- {port: {number: $two, name: http-two, protocol: HTTP}, bind: 127.0.0.4, defaultEndpoint: "127.0.0.1:$app"}
- {port: {number: $three, name: http-three, protocol: HTTP}, bind: 127.0.0.4, defaultEndpoint: "0.0.0.0:$own"}
- {port: {number: $four, name: tcp-four, protocol: TCP}, bind: 127.0.0.4, defaultEndpoint: ":$raw"}
- port: {number: $five, name: https-five, protocol: HTTPS}
  bind: 127.0.0.4
  defaultEndpoint: 127.0.0.1:$app
  tls: {mode: SIMPLE, serverCertificate: $certificate, privateKey: $key}
egress: [{hosts: ["~/*"]}]
"""


async def test_ingress_listeners_hand_on_to_where_the_application_is(tmp_path: Path, free_ports: Ports) -> None:
    one, two, three, four, five = free_ports(5)
    files = write_certificates(tmp_path, "server", dns=("app.test",))
    async with fleet(tmp_path) as mesh:
        socket = tmp_path / "app.sock"
        await mesh.backend("unix", unix=socket)
        app, own = await mesh.backend("app"), await mesh.backend("own", host="127.0.0.4")
        raw = await mesh.tcp_backend("raw")
        sidecar = manifest(
            "Sidecar", "server", INGRESS, one=one, two=two, three=three, four=four, five=five, socket=socket,
            app=app.port, own=own.port, raw=raw.port, certificate=files.certificate, key=files.key,
        )  # fmt: skip
        await mesh.apply(sidecar + PLAIN)
        await mesh.envoy(SERVER, delta=True)
        for port, name in ((one, "unix"), (two, "app"), (three, "own")):
            await answered(mesh, port, {"any.test": name}, "127.0.0.4")
        stream = await trio.open_tcp_stream("127.0.0.4", four)
        async with stream:
            assert await stream.receive_some() == b"raw\n"
        secure = await mesh.https(five, "app.test", ca=files.ca, address="127.0.0.4")
        assert secure.json()["name"] == "app"
        await mesh.assert_all_taken()


async def test_what_comes_in_is_for_the_ports_of_the_workloads_services(tmp_path: Path, free_ports: Ports) -> None:
    """Without ingress listeners: the proxy has the workload's address, the application the loopback."""
    port, target = free_ports(2)
    async with fleet(tmp_path) as mesh:
        await mesh.backend("app", port=target)
        endpoint = {"address": "127.0.0.4", "ports": {"main": target}, "serviceAccount": "server"}
        spec = 'workloadSelector: {labels: {app: server}}\negress: [{hosts: ["~/*"]}]'
        await mesh.apply(service("app.test", port, endpoint) + manifest("Sidecar", "server", spec))
        await mesh.envoy(SERVER)
        await mesh.envoy(CLIENT)
        reply = await mesh.get(f"http://127.0.0.1:{port}/", host="app.test")
        assert reply.json()["name"] == "app"
        peer = reply.json()["headers"]["x-forwarded-client-cert"]
        assert "By=spiffe://cluster.local/ns/shop/sa/server" in peer
        await answered(mesh, target, {"app.test": "app"}, "127.0.0.4")
        await mesh.assert_all_taken()


async def test_connections_to_the_application_are_limited(tmp_path: Path, free_ports: Ports) -> None:
    """By the Sidecar for all ports, by an ingress listener for its own."""
    one, two = free_ports(2)
    spec = """
    workloadSelector: {labels: {app: server}}
    inboundConnectionPool: {tcp: {maxConnections: 1}, http: {http1MaxPendingRequests: 1}}
    ingress:
    - {port: {number: $one, name: http, protocol: HTTP}, bind: 127.0.0.4, defaultEndpoint: "127.0.0.1:$app"}
    - port: {number: $two, name: http-two, protocol: HTTP}
      bind: 127.0.0.4
      defaultEndpoint: 127.0.0.1:$app
      connectionPool: {http: {maxRequestsPerConnection: 1}}
    egress: [{hosts: ["~/*"]}]
    """
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(manifest("Sidecar", "server", spec, one=one, two=two, app=app.port) + PLAIN)
        envoy = await mesh.envoy(SERVER)
        for port, connections in ((one, 1), (two, 4)):
            before = app.connections
            assert set(await mesh.names(f"http://127.0.0.4:{port}/", host="app.test", count=4)) == {"app"}
            assert app.connections - before == connections
        app.gate = trio.Event()
        statuses: list[int] = []

        async def ask() -> None:
            statuses.append((await mesh.get(f"http://127.0.0.4:{one}/held", host="app.test")).status_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await eventually(lambda: app.asked("/held") == 1)
            nursery.start_soon(ask)

            async def waits() -> bool:
                return sum((await envoy.stats(f"inbound.{one}.*upstream_rq_pending_active")).values()) == 1

            await eventually(waits, what="a request waits")
            over = await mesh.get(f"http://127.0.0.4:{one}/held", host="app.test")
            assert (over.status_code, over.headers["x-envoy-overloaded"]) == (503, "true")
            app.gate.set()
        assert statuses == [200, 200]
        await mesh.assert_all_taken()
