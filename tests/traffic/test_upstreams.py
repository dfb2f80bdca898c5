"""How real Envoys choose among endpoints and connect to them, as DestinationRules say."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.service import Locality
from tests.support.certificates import write_certificates
from tests.support.echo import Backend, server_context
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet

pytestmark = pytest.mark.envoy

CLIENT = EnvoyNode(
    "web",
    "shop",
    "127.0.0.2",
    labels={"app": "web"},
    interception=Interception.NONE,
    locality=Locality("eu", "eu-1", ""),
)


def service(name: str, port: int, *backends: Backend, locality: tuple[str, ...] = (), policy: str = "") -> str:
    """A ServiceEntry for ``name.test`` and a DestinationRule with a policy."""
    places = locality or ("",) * len(backends)
    endpoints = "".join(
        f"\n  - {{address: {b.host}, ports: {{main: {b.port}}}, locality: '{where}'}}"
        for b, where in zip(backends, places, strict=True)
    )
    rule = f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {name}, namespace: shop}}
spec: {{host: {name}.test, trafficPolicy: {policy}}}
---"""
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: main, protocol: HTTP}}]
  endpoints: {endpoints}
---{rule if policy else ""}
"""


async def client(mesh: Fleet, config: str, services: int) -> None:
    """Start the client's Envoy once the control plane has this config."""
    mesh.write(config)
    await eventually(lambda: mesh.plane.state.world.statistics().services == services, what="config is read")
    await mesh.envoy(CLIENT)


async def listening(mesh: Fleet, port: int) -> None:
    """Wait until the client's Envoy listens on a port."""

    async def there() -> bool:
        return any(address.endswith(f":{port}") for address in (await mesh.envoys[0].listening()).values())

    await eventually(there, what=f"Envoy listens on port {port}")


async def test_endpoints_are_chosen_as_the_rules_say(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with fleet(tmp_path) as mesh:
        eu, us = await mesh.backend("eu"), await mesh.backend("us")
        both = {"locality": ("eu/eu-1", "us/us-1")}
        spread = '{loadBalancer: {localityLbSetting: {distribute: [{from: "eu/*", to: {"us/*": 100}}]}}}'
        ejection = "consecutive5xxErrors: 1, interval: 0.1s, baseEjectionTime: 60s, maxEjectionPercent: 50"
        failover = f"{{outlierDetection: {{{ejection}}}}}"
        balanced = "{loadBalancer: {localityLbSetting: {enabled: false}}}"
        config = (
            service("hashed", port, eu, us, policy="{loadBalancer: {consistentHash: {httpHeaderName: x-user}}}")
            + service(
                "maglev",
                port,
                eu,
                us,
                policy="{loadBalancer: {consistentHash: {httpHeaderName: x-user, maglev: {tableSize: 101}}}}",
            )
            + service("spread", port, eu, us, **both, policy=spread)
            + service("failover", port, eu, us, **both, policy=failover)
            + service("balanced", port, eu, us, **both, policy=balanced)
        )
        await client(mesh, config, 5)
        await mesh.until_answered_by({"eu", "us"}, url, host="balanced.test")
        for host in ("hashed.test", "maglev.test"):
            chosen = [set(await mesh.names(url, host=host, headers={"x-user": f"u{i}"}, count=4)) for i in range(12)]
            assert all(len(names) == 1 for names in chosen), "one user, one backend"
            assert set().union(*chosen) == {"eu", "us"}, "users are spread"
        assert set(await mesh.names(url, host="spread.test")) == {"us"}
        assert set(await mesh.names(url, host="failover.test")) == {"eu"}
        eu.answer = lambda request, body: (503, {})
        await mesh.until_answered_by({"us"}, url, host="failover.test")
        await mesh.assert_all_taken()


async def test_connections_beyond_the_pool_are_turned_away(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    held = 0
    answers: list[tuple[int, str]] = []

    async def hold(stream: trio.SocketStream) -> None:
        nonlocal held
        held += 1
        await trio.sleep_forever()

    async with fleet(tmp_path) as mesh, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, hold, [listener])
        backend = Backend("slow", "127.0.0.1", listener.socket.getsockname()[1])
        pool = "{connectionPool: {tcp: {maxConnections: 1}, http: {http1MaxPendingRequests: 1}}}"
        await client(mesh, service("slow", port, backend, policy=pool), 1)

        async def ask() -> None:
            reply = await mesh.get(f"http://127.0.0.1:{port}/", host="slow.test")
            answers.append((reply.status_code, reply.text))

        await listening(mesh, port)
        nursery.start_soon(ask)
        await eventually(lambda: held == 1, what="the first request is held")
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await eventually(lambda: bool(answers), what="of two more requests one may wait, the other is turned away")
        assert answers == [(503, "upstream connect error or disconnect/reset before headers. reset reason: overflow")]
        assert held == 1
        nursery.cancel_scope.cancel()


@pytest.mark.smoke
async def test_tls_is_originated_with_the_names_roots_and_certificates_of_the_rule(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    files = write_certificates(tmp_path, "server", dns=("secure.test",))
    own = write_certificates(tmp_path, "client", dns=("client.test",))
    asked: list[str] = []
    async with fleet(tmp_path) as mesh:
        simple = await mesh.backend("simple", tls=server_context(files, asked, mutual=False))
        mutual = await mesh.backend("mutual", tls=server_context(files, asked, mutual=True))
        roots = f"caCertificates: {files.ca}"
        certificate = f"clientCertificate: {own.certificate}, privateKey: {own.key}"
        good = f"{roots}, sni: secure.test, subjectAltNames: [secure.test]"
        config = (
            service("good", port, simple, policy=f"{{tls: {{mode: SIMPLE, {good}}}}}")
            + service(
                "other", port, simple, policy=f"{{tls: {{mode: SIMPLE, {roots}, subjectAltNames: [other.test]}}}}"
            )
            + service("trusting", port, simple, policy="{tls: {mode: SIMPLE, insecureSkipVerify: true}}")
            + service("mutual", port, mutual, policy=f"{{tls: {{mode: MUTUAL, {certificate}, {good}}}}}")
            + service("lacking", port, mutual, policy=f"{{tls: {{mode: SIMPLE, {good}}}}}")
            + service("plain", port, simple)
        )
        await client(mesh, config, 6)
        await mesh.until_answered_by({"simple"}, url, host="good.test")
        await mesh.until_answered_by({"mutual"}, url, host="mutual.test")
        assert set(filter(None, asked)) == {"secure.test"}
        assert set(await mesh.names(url, host="trusting.test", count=2)) == {"simple"}
        assert "trusting.test" in asked
        for host in ("other.test", "lacking.test", "plain.test"):
            assert set(await mesh.names(url, host=host, count=2)) <= {"503"}, host
        await mesh.assert_all_taken()


async def test_a_proxy_header_says_who_the_client_is(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    heads: list[bytes] = []

    async def read(stream: trio.SocketStream) -> None:
        heads.append(await stream.receive_some())
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await stream.aclose()

    async with fleet(tmp_path) as mesh, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, read, [listener])
        backend = Backend("raw", "127.0.0.1", listener.socket.getsockname()[1])
        await client(mesh, service("proxied", port, backend, policy="{proxyProtocol: {version: V1}}"), 1)
        await listening(mesh, port)
        reply = await mesh.get(f"http://127.0.0.1:{port}/", host="proxied.test")
        assert reply.status_code == 200
        assert heads[0].startswith(b"PROXY TCP4 127.0.0.1 ")
        nursery.cancel_scope.cancel()


async def test_hosts_under_a_wildcard_are_resolved_as_requests_ask_for_them(tmp_path: Path) -> None:
    async with fleet(tmp_path) as mesh:
        asked: list[str] = []
        files = write_certificates(tmp_path, "server", dns=("a.localhost",))
        plain = await mesh.backend("plain")
        secure = await mesh.backend("secure", tls=server_context(files, asked, mutual=False))
        bind = "127.0.0.9"
        config = f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: dynamic, namespace: shop}}
spec:
  hosts: ["*.localhost"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{{number: {plain.port}, name: http, protocol: HTTP}}, {{number: {secure.port}, name: tls, protocol: TLS}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: shop}}
spec:
  egress:
  - {{port: {{number: {plain.port}, name: http, protocol: HTTP}}, bind: {bind}, captureMode: NONE, hosts: ["*/*"]}}
  - {{port: {{number: {secure.port}, name: tls, protocol: TLS}}, bind: {bind}, captureMode: NONE, hosts: ["*/*"]}}
"""
        await client(mesh, config, 1)
        await listening(mesh, secure.port)
        url = f"http://{bind}:{plain.port}/"
        await mesh.until_answered_by({"plain"}, url, host=f"a.localhost:{plain.port}")
        context = ssl.create_default_context(cafile=str(files.ca))
        raw = await trio.open_tcp_stream(bind, secure.port)
        async with trio.SSLStream(raw, context, server_hostname="a.localhost", https_compatible=True) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: a.localhost\r\n\r\n")
            assert b"200" in await stream.receive_some()
        assert asked == ["a.localhost"]
        await mesh.assert_all_taken()


EVERYTHING = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: all, namespace: shop}
spec:
  hosts: [all.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: main, protocol: HTTP}]
  endpoints: [{address: 10.2.1.1, locality: eu/eu-1, serviceAccount: a}, {address: 10.2.1.2, locality: us, weight: 3}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: dynamic, namespace: shop}
spec:
  hosts: ["*.dynamic.test"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: 80, name: main, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: names, namespace: shop}
spec:
  hosts: [names.test]
  location: MESH_INTERNAL
  resolution: DNS_ROUND_ROBIN
  ports: [{number: 80, name: main, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: all, namespace: shop}
spec:
  host: all.test
  trafficPolicy:
    proxyProtocol: {version: V2}
    retryBudget: {percent: 30, minRetryConcurrency: 4, budgetInterval: 5s}
    outlierDetection: {consecutive5xxErrors: 3, splitExternalLocalOriginErrors: true, minHealthPercent: 10,
                       outlierDetectionHttpErrorCodes: [500, 429]}
    connectionPool:
      http: {maxConcurrentStreams: 7, http2KeepAlive: {interval: 5s, timeout: 2s}, h2UpgradePolicy: UPGRADE,
             idleTimeout: 9s, maxRequestsPerConnection: 5, maxRetries: 1}
      tcp: {maxConnectionDuration: 60s, tcpKeepalive: {time: 5s, probes: 2, interval: 1s}}
  subsets:
  - name: warm
    trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN, warmup: {duration: 10s, minimumPercent: 5, aggression: 0.5}}}
  - {name: maglev, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x, maglev: {tableSize: 101}}}}}
  - {name: zones, trafficPolicy: {loadBalancer: {zoneAwareLbSetting: {enabled: true, minClusterSize: 2}}}}
  - {name: labels, trafficPolicy: {loadBalancer: {localityLbSetting: {failoverPriority: [app]}}}}
  - {name: skip, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true, sni: a.test}}}
  - {name: credential, trafficPolicy: {tls: {mode: SIMPLE, credentialName: partner, sni: a.test}}}
  - {name: none, trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}}
---
"""


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_envoy_takes_every_setting(tmp_path: Path, delta: bool) -> None:
    async with fleet(tmp_path, EVERYTHING) as mesh:
        envoy = await mesh.envoy(EnvoyNode("web", "shop", "127.0.0.2", locality=Locality("eu")), delta=delta)
        held = await envoy.dynamic("Cluster")
        subsets = ("", "warm", "maglev", "zones", "labels", "skip", "credential", "none")
        assert {f"outbound|80|{s}|all.test" for s in subsets} <= held.keys()
        assert {"outbound|80||*.dynamic.test", "outbound|80||names.test"} <= held.keys()
        (limits,) = held["outbound|80||all.test"]["circuit_breakers"]["thresholds"]
        assert limits["retry_budget"]["budget_interval"] == "5s"
        await mesh.assert_all_taken()
