"""Real grpcio without proxies: channels and servers do what the YAML says, and follow when it changes."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.proxyless import GrpcPeer, GrpcPeers, grpc_environment, grpc_peers

pytestmark = pytest.mark.process

HOST = "reviews.shop.svc.cluster.local"
TARGET = f"xds:///{HOST}:9000"


def entry(*endpoints: tuple[str, int], host: str = HOST, protocol: str = "GRPC", more: str = "") -> str:
    """A service on port 9000 with endpoints by version and port."""
    listed = "".join(
        f"\n  - {{address: 127.0.0.1, ports: {{main: {port}}}, serviceAccount: reviews, labels: {{version: {name}}}}}"
        for name, port in endpoints
    )
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {host.split(".")[0]}, namespace: shop}}
spec:
  hosts: [{host}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 9000, name: main, protocol: {protocol}}}]
  endpoints: {listed or "[]"}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {host.split(".")[0]}, namespace: shop}}
spec:
  host: {host}
  subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: {{version: v2}}}}]
  {more}
---"""


def routes(*rules: str) -> str:
    listed = "".join(f"\n  - {rule}" for rule in rules)
    return f"""
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: reviews, namespace: shop}}
spec:
  hosts: [{HOST}]
  http: {listed}
---"""


def to(subset: str, host: str = HOST) -> str:
    return f"route: [{{destination: {{host: {host}, subset: {subset}}}}}]"


def split(v1: int, v2: int) -> str:
    parts = (f"{{destination: {{host: {HOST}, subset: {s}}}, weight: {w}}}" for s, w in (("v1", v1), ("v2", v2)))
    return f"{{route: [{', '.join(parts)}]}}"


@attrs.frozen
class Scene:
    """A control plane, a client, and a process with two backends."""

    mesh: Fleet
    peers: GrpcPeers
    client: GrpcPeer
    backend: GrpcPeer
    v1: int
    """Port of the backend that says "v1"."""
    v2: int

    @property
    def service(self) -> str:
        """The service at both backends."""
        return entry(("v1", self.v1), ("v2", self.v2))

    def nothing_is_refused(self) -> None:
        assert self.mesh.plane.state.xds.status.recent_nacks() == ()


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    async with fleet(folder) as mesh, grpc_peers(mesh.plane.addresses.grpc, folder) as peers:
        client, backend = await peers.start("client"), await peers.start("backend")
        yield Scene(mesh, peers, client, backend, await backend.serve("v1"), await backend.serve("v2"))


async def test_a_channel_balances_over_the_endpoints_of_its_service_and_follows_them(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.mesh.write(s.service)
        await s.client.until_answered_by({"v1", "v2"}, TARGET)
        found = await s.client.answers(TARGET, count=40)
        assert found == {"v1": 20, "v2": 20}
        for short in ("reviews:9000", "reviews.shop:9000", "reviews.shop.svc:9000", HOST):
            assert set(await s.client.answers(f"xds:///{short}")) == {"v1", "v2"}
        third = await s.backend.serve("third")
        s.mesh.write(entry(("v1", s.v1), ("v1", third)))
        await s.client.until_answered_by({"v1", "third"}, TARGET)
        s.mesh.write(entry())
        await s.client.until_answered_by({"UNAVAILABLE"}, TARGET, count=2)
        s.mesh.write(entry(("v2", s.v2)))
        await s.client.until_answered_by({"v2"}, TARGET)
        s.nothing_is_refused()


@pytest.mark.smoke
async def test_calls_follow_weights_subsets_and_matches_as_these_change(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.mesh.write(s.service + routes(split(100, 0)))
        await s.client.until_answered_by({"v1"}, TARGET)
        s.mesh.write(s.service + routes(split(50, 50)))
        await s.client.until_answered_by({"v1", "v2"}, TARGET)
        s.mesh.write(s.service + routes(split(10, 90)))
        await s.client.until_answered_by({"v1", "v2"}, TARGET, count=100)
        found = await s.client.answers(TARGET, count=400)
        assert 320 < found["v2"] < 400
        matches = routes(
            f"{{match: [{{headers: {{x-try: {{exact: a}}}}}}, {{uri: {{prefix: /other.}}}}], {to('v2')}}}",
            f"{{match: [{{headers: {{x-two: {{regex: 'a|b'}}}}, method: {{exact: POST}}}}], {to('v2')}}}",
            f"{{match: [{{withoutHeaders: {{x-all: {{exact: stay}}}}}}], {to('v1')}}}",
            f"{{{to('v2')}}}",
        )
        s.mesh.write(s.service + matches)
        await s.client.until_answered_by({"v1"}, TARGET)
        assert set(await s.client.answers(TARGET, metadata={"x-try": "a"})) == {"v2"}
        assert set(await s.client.answers(TARGET, method="/other.Echo/Say")) == {"v2"}
        assert set(await s.client.answers(TARGET, metadata={"x-two": "b"})) == {"v2"}
        assert set(await s.client.answers(TARGET, metadata={"x-two": "c"})) == {"v1"}
        assert set(await s.client.answers(TARGET, metadata={"x-all": "go"})) == {"v1"}
        assert set(await s.client.answers(TARGET, metadata={"x-all": "stay"})) == {"v2"}
        s.nothing_is_refused()


async def test_retries_time_limits_and_faults(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:

        def by_header(value: str, what: str) -> str:
            return f"{{match: [{{headers: {{x-do: {{exact: {value}}}}}}}], {to('v1')}, {what}}}"

        s.mesh.write(
            s.service
            + routes(
                by_header("retry", 'retries: {attempts: 3, retryOn: "503"}'),
                by_header("never", "retries: {attempts: 0}"),
                by_header("limit", "timeout: 0.2s"),
                by_header("abort", "fault: {abort: {httpStatus: 403, percentage: {value: 100}}}"),
                by_header("grpc", "fault: {abort: {grpcStatus: DATA_LOSS, percentage: {value: 100}}}"),
                by_header("half", "fault: {abort: {grpcStatus: ABORTED, percentage: {value: 50}}}"),
                by_header("delay", "fault: {delay: {fixedDelay: 0.3s, percentage: {value: 100}}}"),
                f"{{{to('v1')}}}",
            )
        )
        await s.client.until_answered_by({"v1"}, TARGET)
        await s.backend.do("behave", name="v1", failures=3)
        assert await s.client.answers(TARGET, 1, metadata={"x-do": "retry"}) == {"v1": 1}
        assert await s.backend.do("behave", name="v1", failures=1) == 4
        assert await s.client.answers(TARGET, 1, metadata={"x-do": "never"}) == {"UNAVAILABLE": 1}
        await s.backend.do("behave", name="v1", failures=9, code="INTERNAL")
        assert await s.client.answers(TARGET, 1, metadata={"x-do": "retry"}) == {"INTERNAL": 1}
        assert await s.backend.do("behave", name="v1", hangs=True) == 1
        limited = await s.client.call(TARGET, metadata={"x-do": "limit"}, timeout=20)
        assert limited["answers"] == {"DEADLINE_EXCEEDED": 1} and limited["seconds"] < 15
        await s.backend.do("behave", name="v1")
        assert await s.client.answers(TARGET, 2, metadata={"x-do": "abort"}) == {"PERMISSION_DENIED": 2}
        assert await s.client.answers(TARGET, 2, metadata={"x-do": "grpc"}) == {"DATA_LOSS": 2}
        assert set(await s.client.answers(TARGET, 60, metadata={"x-do": "half"})) == {"v1", "ABORTED"}
        delayed = await s.client.call(TARGET, metadata={"x-do": "delay"})
        assert delayed["answers"] == {"v1": 1} and delayed["seconds"] >= 0.3
        s.nothing_is_refused()


async def test_a_channel_hashes_by_header_and_by_client(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:

        def hashing(by: str) -> str:
            policy = f"trafficPolicy: {{loadBalancer: {{consistentHash: {{{by}}}}}}}"
            return entry(("v1", s.v1), ("v2", s.v2), more=policy)

        s.mesh.write(hashing("httpHeaderName: x-user"))
        await s.client.until_answered_by({"v1", "v2"}, TARGET)
        homes = {}
        for user in map(str, range(12)):
            found = await s.client.answers(TARGET, 6, metadata={"x-user": user})
            assert len(found) == 1
            homes[user] = next(iter(found))
        assert set(homes.values()) == {"v1", "v2"}
        s.mesh.write(hashing("useSourceIp: true"))

        async def always_the_same() -> bool:
            return len(await s.client.answers(TARGET, 30)) == 1

        await eventually(always_the_same)
        s.nothing_is_refused()


async def test_least_request_is_taking_turns_for_a_library_without_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        policy = "trafficPolicy: {loadBalancer: {simple: LEAST_REQUEST}}"
        s.mesh.write(entry(("v1", s.v1), ("v2", s.v2), more=policy))
        await s.client.until_answered_by({"v1", "v2"}, TARGET)
        assert await s.client.answers(TARGET, count=40) == {"v1": 20, "v2": 20}
        s.nothing_is_refused()


async def test_what_nobody_serves_fails_at_once_and_holds_up_nobody(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.mesh.write(
            s.service
            + routes(
                f"{{match: [{{headers: {{x-to: {{exact: host}}}}}}], {to('v1', 'nobody.shop.svc.cluster.local')}}}",
                f"{{match: [{{headers: {{x-to: {{exact: subset}}}}}}], {to('v9')}}}",
                f"{{{to('v1')}}}",
            )
        )
        first = await s.client.call(TARGET, timeout=40)
        assert first["answers"] == {"v1": 1} and first["seconds"] < 20
        for there in ("host", "subset"):
            failed = await s.client.call(TARGET, timeout=40, metadata={"x-to": there})
            assert failed["answers"] == {"UNAVAILABLE": 1} and failed["seconds"] < 20
        s.mesh.write("")
        await s.client.until_answered_by({"UNAVAILABLE"}, TARGET, 2)
        s.mesh.write(s.service)
        await s.client.until_answered_by({"v1", "v2"}, TARGET)
        s.nothing_is_refused()


async def test_grpc_takes_tables_with_what_it_does_not_have(tmp_path: Path) -> None:
    """Its own words for it, or nothing: but one rule that only proxies understand must not cost the whole table."""
    async with scene(tmp_path) as s:
        s.mesh.write(
            s.service
            + routes(
                "{match: [{uri: {prefix: /away}}], redirect: {uri: /x}}",
                "{match: [{uri: {prefix: /direct}}], directResponse: {status: 418}}",
                f"{{match: [{{queryParams: {{q: {{exact: a}}}}}}], {to('v2')}}}",
                f"{{match: [{{method: {{exact: GET}}}}], {to('v2')}}}",
                f"{{corsPolicy: {{allowOrigins: [{{exact: 'http://a.example.com'}}], allowMethods: [GET]}},"
                f" rewrite: {{uri: /other, authority: a.example.com}},"
                f" headers: {{request: {{set: {{x-a: b}}}}, response: {{remove: [x-b]}}}},"
                f" mirror: {{host: {HOST}, subset: v2}},"
                f" retries: {{attempts: 2, perTryTimeout: 1s, retryOn: 'reset,retriable-4xx', backoff: 10ms}},"
                f" {to('v1')}}}",
            )
            + entry(("v1", s.v1), host="bytes.shop.svc.cluster.local", protocol="TCP")
            + entry(("v2", s.v2), host="unsaid.shop.svc.cluster.local", protocol="''")
        )
        await s.client.until_answered_by({"v1"}, TARGET)
        assert set(await s.client.answers("xds:///bytes.shop:9000")) == {"v1"}
        assert set(await s.client.answers("xds:///unsaid.shop:9000")) == {"v2"}
        s.nothing_is_refused()


async def test_a_service_found_by_its_name(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.mesh.write(
            s.service.replace("resolution: STATIC", "resolution: DNS")
            .replace(f"  - {{address: 127.0.0.1, ports: {{main: {s.v2}}}", "  #")
            .replace("address: 127.0.0.1", "address: localhost")
        )
        await s.client.until_answered_by({"v1"}, TARGET)
        s.nothing_is_refused()


STRICT = """
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---"""


async def test_an_xds_server_gets_its_listener_and_serves(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    async with scene(tmp_path) as s:
        await s.backend.serve("served", address=f"127.0.0.1:{port}", xds=True)
        s.mesh.write(entry(("v1", port)))
        await s.client.until_answered_by({"served"}, TARGET)
        assert set(await s.client.answers(f"127.0.0.1:{port}")) == {"served"}
        s.nothing_is_refused()


async def test_an_xds_server_and_an_xds_channel_speak_mutual_tls_where_rules_say_so(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    client_files = write_certificates(tmp_path, "client", uris=("spiffe://cluster.local/ns/shop/sa/client",))
    server_files = write_certificates(tmp_path, "server", uris=("spiffe://cluster.local/ns/shop/sa/reviews",))
    async with scene(tmp_path) as s:
        server = await s.peers.start("tls-server", certificates=server_files)
        client = await s.peers.start("tls-client", certificates=client_files)
        mutual = entry(("v1", port), more="trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}")
        s.mesh.write(mutual + STRICT)
        await server.serve("secret", address=f"127.0.0.1:{port}", xds=True)
        await client.until_answered_by({"secret"}, TARGET, tls=True)
        assert set(await client.answers(f"127.0.0.1:{port}", 2)) == {"UNAVAILABLE"}
        s.mesh.write(mutual.replace("serviceAccount: reviews", "serviceAccount: someone-else") + STRICT)
        await client.until_answered_by({"UNAVAILABLE"}, TARGET, 2, tls=True)
        s.mesh.write(entry(("v1", port)))
        await client.until_answered_by({"secret"}, TARGET, tls=True)
        s.nothing_is_refused()


def authorization(name: str, action: str, rules: str) -> str:
    return f"""
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: {name}, namespace: shop}}
spec: {{action: {action}, rules: {rules}}}
---"""


async def test_an_xds_server_refuses_calls_as_policies_say(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    client_files = write_certificates(tmp_path, "client", uris=("spiffe://cluster.local/ns/shop/sa/client",))
    server_files = write_certificates(tmp_path, "server", uris=("spiffe://cluster.local/ns/shop/sa/reviews",))
    async with scene(tmp_path) as s:
        server = await s.peers.start("tls-server", certificates=server_files)
        client = await s.peers.start("tls-client", certificates=client_files)
        fixed = entry(("v1", port), more="trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}") + STRICT
        s.mesh.write(fixed)
        await server.serve("secret", address=f"127.0.0.1:{port}", xds=True)
        await client.until_answered_by({"secret"}, TARGET, tls=True)

        async def then(answer: str, *policies: str) -> None:
            s.mesh.write(fixed + "".join(policies))
            await client.until_answered_by({answer}, TARGET, 2, tls=True)

        await then("PERMISSION_DENIED", authorization("nobody", "ALLOW", "[]"))
        own = '[{from: [{source: {principals: ["cluster.local/ns/shop/sa/client"]}}]}]'
        await then("secret", authorization("client", "ALLOW", own))
        await then("PERMISSION_DENIED", authorization("client", "ALLOW", own.replace("sa/client", "sa/other")))
        await then("secret")
        s.mesh.write(
            fixed + authorization("header", "DENY", '[{when: [{key: "request.headers[x-do]", values: [never]}]}]')
        )
        await client.until_answered_by({"PERMISSION_DENIED"}, TARGET, 2, tls=True, metadata={"x-do": "never"})
        assert set(await client.answers(TARGET, 2, tls=True)) == {"secret"}
        asked = authorization("ask", "CUSTOM, provider: {name: somebody}", '[{to: [{operation: {paths: ["/*"]}}]}]')
        await then("PERMISSION_DENIED", asked)
        await then("secret", asked.replace("/*", "/other/*"))
        everything = [
            {"key": "request.headers[x-a]", "values": ["*", "a*", "*b"]},
            {"key": "request.headers[grpc-b]", "values": ["a"]},
            {"key": "request.auth.claims[role]", "notValues": ["admin"]},
            {"key": "connection.sni", "values": ["*.no"]},
            {"key": "source.ip", "values": ["10.0.0.0/8"]},
            {"key": "destination.port", "values": ["1"]},
            {"key": "experimental.envoy.filters.network.mysql_proxy[db]", "values": ["[a]"]},
        ]
        paths = '["/{*}/x/{**}", "*/no", "/no*"]'
        to_no = f'to: [{{operation: {{hosts: ["*.no"], methods: [GET], paths: {paths}, ports: ["1"]}}}}]'
        await then("secret", authorization("all", "DENY", f"[{{when: {json.dumps(everything)}, {to_no}}}]"))
        tokens = '[{from: [{source: {requestPrincipals: ["issuer/alice"]}}]}]'
        await then("PERMISSION_DENIED", authorization("token", "ALLOW", tokens))
        s.nothing_is_refused()


SAMPLE = Path(__file__).parents[2] / "samples" / "grpc"


async def test_the_sample_does_what_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    ports = free_ports(2)
    config = (SAMPLE / "config" / "greeter.yaml").read_text(encoding="utf-8")
    for shown, port in zip((50051, 50052), ports, strict=True):
        config = config.replace(str(shown), str(port))
    async with fleet(tmp_path, config) as mesh, trio.open_nursery() as nursery:
        bootstrap = json.loads((SAMPLE / "bootstrap.json").read_text(encoding="utf-8"))
        bootstrap["xds_servers"][0]["server_uri"] = mesh.plane.addresses.grpc
        run = partial(trio.run_process, env=grpc_environment(bootstrap), check=False, capture_stderr=True)
        greeter = [sys.executable, SAMPLE / "greeter.py"]
        for name, port in zip(("v1", "v2"), ports, strict=True):
            nursery.start_soon(run, [*greeter, "serve", name, f"127.0.0.1:{port}"])

        async def answers(*arguments: str) -> dict[str, int]:
            done = await run([*greeter, "call", *arguments], capture_stdout=True)
            return {
                name: int(count) for count, name in (line.split(" ", 1) for line in done.stdout.decode().splitlines())
            }

        async def served() -> bool:
            return set(await answers("xds:///greeter:9000", "60")) == {"v1", "v2"}

        await eventually(served)
        assert await answers("xds:///greeter.shop:9000", "5", "x-version=v2") == {"v2": 5}
        nursery.cancel_scope.cancel()
