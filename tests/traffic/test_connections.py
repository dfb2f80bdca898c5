"""Connections through a real Envoy's listeners: by server name, by what is sniffed, by weight, by socket and proxy."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception
from tests.support.certificates import write_certificates
from tests.support.echo import Backend, greeting
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet

pytestmark = pytest.mark.envoy

CLIENT = EnvoyNode("web", "shop", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)


def service(name: str, port: int, protocol: str, backend: Backend, created: str = "2024-01-02") -> str:
    """A ServiceEntry for ``NAME.test`` at one backend, created on a day."""
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop, creationTimestamp: "{created}T00:00:00Z"}}
spec:
  hosts: [{name}.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: main, protocol: '{protocol}'}}]
  endpoints: [{{address: {backend.host}, ports: {{main: {backend.port}}}}}]
---"""


def routes(host: str, rules: str) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {host}, namespace: shop}}
spec:
  hosts: [{host}.test]
  {rules}
---"""


async def client(mesh: Fleet, config: str, *ports: int) -> None:
    """Start the client's Envoy on this config, and wait until it listens on these ports."""
    await mesh.apply(config)
    envoy = await mesh.envoy(CLIENT)

    async def there() -> bool:
        addresses = (await envoy.listening()).values()
        return all(any(a.endswith(f":{port}") for a in addresses) for port in ports)

    await eventually(there, what=f"Envoy listens on {ports}")


async def said(mesh: Fleet, log: Path, *lines: str) -> None:
    """Wait until a log has these lines and no others, in any order; Envoy on its own writes every ten seconds only."""

    async def written() -> bool:
        await mesh.client.post(f"http://{mesh.envoys[0].admin}/reopen_logs")
        path = trio.Path(log)
        return await path.exists() and sorted((await path.read_text()).splitlines()) == sorted(lines)

    await eventually(written, what=f"{log} says {lines}")


@pytest.mark.smoke
async def test_tls_connections_follow_their_server_name_and_its_routes(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    names = ("one.test", "two.test", "moved.test")
    files = write_certificates(tmp_path, "server", dns=names)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    async with fleet(tmp_path) as mesh:
        one, two = await mesh.backend("one", tls=context), await mesh.backend("two", tls=context)
        moved = routes("moved", "tls: [{match: [{sniHosts: [moved.test]}], route: [{destination: {host: two.test}}]}]")
        config = (
            service("one", port, "TLS", one)
            + service("two", port, "HTTPS", two)
            + service("moved", port, "TLS", one)
            + moved
        )
        await client(mesh, config, port)
        answers = {name: (await mesh.https(port, name, ca=files.ca)).json()["name"] for name in names}
        assert answers == {"one.test": "one", "two.test": "two", "moved.test": "two"}
        with pytest.raises(httpx.HTTPError):
            await mesh.https(port, "unknown.test", ca=files.ca)
        await mesh.assert_all_taken()


async def test_http_and_other_connections_share_a_port(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    shared, unknown = free_ports(2)
    async with fleet(tmp_path, mesh="protocolDetectionTimeout: 1s") as mesh:
        web, raw, other = await mesh.backend("web"), await mesh.tcp_backend("raw"), await mesh.backend("other")
        config = (
            service("raw", shared, "TCP", raw, "2024-01-01")
            + service("web", shared, "HTTP", web)
            + service("any", unknown, "", other)
        )
        await client(mesh, config, shared, unknown)
        assert set(await mesh.names(f"http://127.0.0.1:{shared}/", host="web.test", count=2)) == {"web"}
        # Nobody says a word until the server does: the inspector gives up and the connection continues.
        assert await greeting("127.0.0.1", shared) == "raw"
        assert set(await mesh.names(f"http://127.0.0.1:{unknown}/", host="any.test", count=2)) == {"other"}
        await mesh.assert_all_taken()


@pytest.mark.parametrize("protocols", [("", ""), ("", "HTTP"), ("HTTP", "")], ids=["auto", "auto-http", "http-auto"])
async def test_the_host_decides_between_services_of_undeclared_protocol_on_a_port(
    tmp_path: Path, free_ports: Callable[[int], list[int]], protocols: tuple[str, str]
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        details, ratings = await mesh.backend("details"), await mesh.backend("ratings")
        config = service("details", port, protocols[0], details, "2024-01-01")
        config += service("ratings", port, protocols[1], ratings)
        config += routes("moved", "http: [{route: [{destination: {host: ratings.test}}]}]")
        await client(mesh, config + service("moved", port, "", details, "2024-01-03"), port)
        for host, name in (("details.test", "details"), ("ratings.test", "ratings"), ("moved.test", "ratings")):
            for authority in (host, f"{host}:{port}"):
                assert set(await mesh.names(f"http://127.0.0.1:{port}/", host=authority, count=2)) == {name}, authority
        await mesh.assert_all_taken()


async def test_tcp_connections_are_split_by_weight(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        old, new = await mesh.tcp_backend("old"), await mesh.tcp_backend("new")
        services = service("db", port, "TCP", old, "2024-01-01") + service("new", port, "TCP", new)
        ends = "{{destination: {{host: db.test}}, weight: {}}}, {{destination: {{host: new.test}}, weight: {}}}"
        rule = f"tcp: [{{{{route: [{ends}]}}}}]"
        await client(mesh, services + routes("db", rule.format(50, 50)), port)

        async def greeted() -> set[str]:
            found: Counter[str] = Counter()
            for _ in range(20):
                found[await greeting("127.0.0.1", port)] += 1
            return set(found)

        async def only_new() -> bool:
            return await greeted() == {"new"}

        assert await greeted() == {"old", "new"}
        await mesh.apply(services + routes("db", rule.format(0, 100)))
        await eventually(only_new, what="all connections go to new")
        await mesh.assert_all_taken()


async def test_an_application_may_use_a_unix_socket_or_an_http_proxy(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, proxy = free_ports(2)
    socket = tmp_path / "egress.sock"
    sidecar = f"""
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: web, namespace: shop}}
spec:
  egress:
  - {{port: {{number: 0, name: http, protocol: HTTP}}, bind: "unix://{socket}", captureMode: NONE, hosts: ["./*"]}}
  - {{hosts: ["./*"]}}
---"""
    async with fleet(tmp_path, mesh=f"proxyHttpPort: {proxy}") as mesh:
        web = await mesh.backend("web")
        await client(mesh, service("web", port, "HTTP", web) + sidecar, port, proxy)
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        async with httpx.AsyncClient(transport=transport, timeout=60) as unix:
            assert (await unix.get(f"http://web.test:{port}/unix")).json()["path"] == "/unix"
        async with httpx.AsyncClient(proxy=f"http://127.0.0.1:{proxy}", timeout=60) as proxied:
            assert (await proxied.get(f"http://web.test:{port}/proxied")).json()["path"] == "/proxied"
        await mesh.assert_all_taken()


async def test_access_logs_are_written_as_telemetry_says(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    web_port, raw_port = free_ports(2)
    everything, errors = tmp_path / "all.log", tmp_path / "errors.log"
    provider = '{{name: {}, envoyFileAccessLog: {{path: "{}", logFormat: {{text: "%PROTOCOL% %RESPONSE_CODE%"}}}}}}'
    providers = ", ".join((provider.format("all", everything), provider.format("errors", errors)))
    telemetry = """
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  accessLogging:
  - providers: [{name: all}]
  - {providers: [{name: errors}], filter: {expression: "response.code >= 400"}}
---"""
    async with fleet(tmp_path, mesh=f"extensionProviders: [{providers}]") as mesh:
        web, raw = await mesh.backend("web"), await mesh.tcp_backend("raw")
        config = service("web", web_port, "HTTP", web) + service("raw", raw_port, "TCP", raw) + telemetry
        await client(mesh, config, web_port, raw_port)
        web.answer = lambda request, body: (418, {})
        await mesh.get(f"http://127.0.0.1:{web_port}/", host="web.test")
        web.answer = None
        await mesh.get(f"http://127.0.0.1:{web_port}/", host="web.test")
        assert await greeting("127.0.0.1", raw_port) == "raw"
        await said(mesh, everything, "HTTP/1.1 418", "HTTP/1.1 200", "- 0")
        await said(mesh, errors, "HTTP/1.1 418")
        await mesh.assert_all_taken()
