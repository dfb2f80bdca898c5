"""Traffic as a control plane knows it from an agent and its Envoy, against what a load program counted itself."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import h11
import httpx
import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.traffic import NO_ALLOW_MATCHED, RowKind
from tests.support.binaries import require_binary
from tests.support.echo import Backend, http_backend
from tests.support.envoy import eventually, http_client
from tests.support.planes import running_plane
from tests.support.proxy_process import ProxyProcess, proxy_process

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(240)]

FreePorts = Callable[[int], list[int]]
CLUSTER, LISTENER, POLICY = RowKind.CLUSTER, RowKind.LISTENER, RowKind.POLICY
INTERVAL = 1.0
NODE = ("--name=web-1", "--namespace=shop", "--ip=127.0.0.1", "--plaintext")

SERVICE = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.internal]
  addresses: [{address}]
  resolution: STATIC
  ports: [{{number: {port}, name: port, protocol: {protocol}, targetPort: {target}}}]
  endpoints: {endpoints}
---"""

OBJECTS = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: ok, namespace: shop}}
spec:
  hosts: [ok.internal]
  http:
  - match: [{{uri: {{prefix: /slow}}}}]
    timeout: 0.2s
    route: [{{destination: {{host: ok.internal}}}}]
  - match: [{{uri: {{prefix: /retried}}}}]
    retries: {{attempts: 2, retryOn: 5xx}}
    route: [{{destination: {{host: ok.internal}}}}]
  - match: [{{uri: {{prefix: /missing}}}}]
    route: [{{destination: {{host: ok.internal, subset: missing}}}}]
  - match: [{{uri: {{prefix: /status}}}}]
    retries: {{attempts: 0}}
    route: [{{destination: {{host: ok.internal}}}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: shop}}
spec:
  ingress:
  - {{port: {{number: {inbound}, name: http, protocol: HTTP}}, bind: 127.0.0.1, defaultEndpoint: '127.0.0.1:{target}'}}
  egress: [{{hosts: ['./*']}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: no.admin, namespace: shop}}
spec: {{action: DENY, rules: [{{to: [{{operation: {{paths: [/admin]}}}}]}}]}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: pages, namespace: shop}}
spec:
  action: ALLOW
  rules:
  - {{to: [{{operation: {{paths: [/a, /admin]}}}}]}}
  - {{to: [{{operation: {{paths: [/b]}}}}]}}
"""

PROXY_CONFIG = """
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: threads, namespace: shop}
spec: {concurrency: 1}
"""

SAMPLE = re.compile(r"^([a-z_]+)", re.MULTILINE)


def status_of(request: h11.Request, body: bytes) -> tuple[int, dict[str, str]] | None:
    """The status that the last part of a path says; ``/slow`` has none, so it waits at the gate."""
    last = request.target.rpartition(b"/")[2]
    return (int(last), {}) if last.isdigit() else None


@attrs.define
class Mesh:
    """A sidecar between a load program and its services."""

    folder: Path
    config: Path
    ports: dict[str, int]
    proxy_ports: list[int]
    client: httpx.AsyncClient
    backend: Backend
    plane: ControlPlane | None = None
    seen: Tally[tuple[str, int]] = attrs.field(factory=Tally)
    """The answers, by where they were asked and status."""

    async def ask(self, where: str, path: str, count: int = 1) -> None:
        """Requests to a service, or ``inbound``, one after the other."""
        port = self.ports["inbound" if where == "inbound" else "http"]
        for _ in range(count):
            reply = await self.client.get(f"http://127.0.0.1:{port}{path}", headers={"host": f"{where}.internal"})
            self.seen[where, reply.status_code] += 1

    async def connect(self, where: str) -> None:
        """A connection that is made and ends."""
        with trio.fail_after(20):
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", self.ports[where])
                async with stream:
                    await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                    while await stream.receive_some():
                        pass
            except (OSError, trio.BrokenResourceError):
                pass

    async def until_loads_are_counted(self, proxy: ProxyProcess) -> None:
        """Wait for a load report, with requests to Envoy's admin interface through its listener.

        What a cluster counts before the first that follows it is in none.
        """
        before = (await proxy.state())["load_reports"]["reports_total"]

        async def has_begun() -> bool:
            await self.client.get(f"http://127.0.0.1:{proxy.ports[3]}/stats/prometheus?usedonly")
            return bool((await proxy.state())["load_reports"]["reports_total"] > before)

        await eventually(has_begun, what="load reports come")

    def rows(self) -> dict[tuple[RowKind, str], dict[str, int]]:
        """The counts of the last ten minutes, without those in flight."""
        assert self.plane is not None and self.plane.state.traffic is not None
        found: dict[tuple[RowKind, str], dict[str, int]] = {}
        for edge in self.plane.state.traffic.table.edges():
            values = {counter.name.lower(): count for counter, count in edge.counts.values.items()}
            found[edge.kind, edge.name] = values
        return found

    def of(self, kind: RowKind, name: str, *counters: str) -> tuple[int, ...]:
        row = self.rows().get((kind, name), {})
        return tuple(row.get(counter, 0) for counter in counters)

    def cluster(self, host: str, port: str = "http") -> str:
        return f"outbound|{self.ports[port]}||{host}.internal"

    def requests(self) -> tuple[int, int]:
        """Requests and errors of the service that answers, as the plane knows them."""
        requests, errors = self.of(CLUSTER, self.cluster("ok"), "requests", "errors")
        return requests, errors

    async def until_marked(self, proxy: ProxyProcess, losses: int) -> None:
        """Wait until the agent has reported so many losses, and the control plane knows."""
        assert self.plane is not None and self.plane.state.traffic is not None
        table = self.plane.state.traffic.table

        async def is_marked() -> bool:
            told = (await proxy.state())["traffic"]["gaps_total"]
            return told == losses and not any(edge.counts.is_complete for edge in table.edges())

        await eventually(is_marked, what=f"{losses} losses are marked")

    async def settled(self, proxy: ProxyProcess) -> int:
        """The requests that are known once the agent has looked twice more, and reported after the first look."""
        before = (await proxy.state())["traffic"]["reads_total"]

        async def has_looked() -> bool:
            return bool((await proxy.state())["traffic"]["reads_total"] >= before + 2)

        await eventually(has_looked)
        return self.requests()[0]

    async def hot_restart(self, proxy: ProxyProcess) -> None:
        """Have the bootstrap change, and wait for the next Envoy."""
        before = (await proxy.state())["envoy"]["hot_restarts"]
        (self.config / "proxy.yaml").write_text(PROXY_CONFIG)

        async def is_over() -> bool:
            return bool((await proxy.state())["envoy"]["hot_restarts"] > before)

        await eventually(is_over, what="Envoy was hot restarted")

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[ControlPlane]:
        """A control plane at its port."""
        more = {"traffic_reports": INTERVAL, **settings}
        async with running_plane(self.config, grpc_addr=f"127.0.0.1:{self.ports['grpc']}", **more) as plane:
            self.plane = plane
            yield plane

    @asynccontextmanager
    async def proxy(self, *flags: str) -> AsyncIterator[ProxyProcess]:
        pilot = f"--pilot=127.0.0.1:{self.ports['grpc']}"
        async with proxy_process(self.folder / "proxy", self.proxy_ports, *NODE, pilot, *flags) as proxy:
            await proxy.wait_ready()
            yield proxy
        assert "Traceback" not in proxy.log.read_text()


@pytest.fixture
async def mesh(tmp_path: Path, free_ports: FreePorts) -> AsyncIterator[Mesh]:
    require_binary("envoy")
    names = ("grpc", "http", "tcp", "refused", "inbound", "nobody")
    grpc, http, tcp, refused, inbound, nobody, *proxy = free_ports(len(names) + 4)
    async with http_backend("ok") as backend, http_client() as client:
        backend.answer = status_of
        alive = "[{address: 127.0.0.1}]"
        services = (
            ("ok", "240.1.0.1", http, "HTTP", backend.port, alive),
            ("refused", "240.1.0.2", http, "HTTP", nobody, alive),
            ("none", "240.1.0.3", http, "HTTP", backend.port, "[]"),
            ("bytes", "240.1.0.4", tcp, "TCP", backend.port, alive),
            ("refusing", "240.1.0.5", refused, "TCP", nobody, alive),
        )
        config = tmp_path / "config"
        config.mkdir()
        fields = ("name", "address", "port", "protocol", "target", "endpoints")
        text = "".join(SERVICE.format(**dict(zip(fields, each, strict=True))) for each in services)
        (config / "mesh.yaml").write_text(text + OBJECTS.format(inbound=inbound, target=backend.port))
        ports = dict(zip(names, (grpc, http, tcp, refused, inbound, nobody), strict=True))
        yield Mesh(tmp_path, config, ports, proxy, client, backend)


async def test_requests_and_errors_are_what_the_callers_saw(mesh: Mesh) -> None:
    async with mesh.running(), mesh.proxy() as proxy:
        await mesh.until_loads_are_counted(proxy)
        await mesh.ask("ok", "/status/200", 30)
        await mesh.ask("ok", "/status/503", 4)
        await mesh.ask("ok", "/status/404", 3)
        await mesh.ask("ok", "/retried/503", 5)
        await mesh.ask("ok", "/missing", 2)
        await mesh.ask("ok", "/nowhere", 3)
        mesh.backend.gate = trio.Event()
        await mesh.ask("ok", "/slow", 2)
        mesh.backend.gate = None
        await mesh.ask("refused", "/", 3)
        await mesh.ask("none", "/", 2)
        await mesh.ask("inbound", "/a", 6)
        await mesh.ask("inbound", "/b", 5)
        await mesh.ask("inbound", "/admin", 4)
        await mesh.ask("inbound", "/other", 3)
        for _ in range(2):
            await mesh.connect("tcp")
            await mesh.connect("refused")
        await mesh.connect("refused")
        assert mesh.seen["ok", 200] == 30 and mesh.seen["ok", 504] == 2 and mesh.seen["ok", 404] == 6
        ok, inbound = mesh.cluster("ok"), f"inbound|{mesh.ports['inbound']}||"
        listener = f"inbound_127.0.0.1_{mesh.ports['inbound']}"
        outbound = f"outbound_127.0.0.1_{mesh.ports['http']}"
        rule = "ns[shop]-policy[{}]-rule[{}]"

        def is_told() -> bool:
            return (
                mesh.of(LISTENER, listener, "requests")[0] == 18
                and mesh.of(CLUSTER, mesh.cluster("refusing", "refused"), "connect_failures")[0] == 3
                and mesh.of(CLUSTER, ok, "attempts")[0] >= 54
                and mesh.of(CLUSTER, inbound, "attempts")[0] >= 11
            )

        await eventually(is_told, what="everything is reported")
        classes = ("requests", "errors", "client_errors", "timeouts", "retries")
        assert mesh.of(CLUSTER, ok, *classes) == (44, 11, 3, 2, 10)
        assert mesh.of(CLUSTER, ok, "attempts", "failed_attempts") == (54, 21)  # each retry is one more
        assert mesh.of(CLUSTER, mesh.cluster("refused"), *classes, "connect_failures") == (3, 3, 0, 0, 6, 9)
        assert mesh.of(CLUSTER, mesh.cluster("none"), *classes, "none_healthy") == (2, 2, 0, 0, 0, 2)
        assert mesh.of(CLUSTER, mesh.cluster("bytes", "tcp"), "requests", "connections", "connect_failures") == (
            0,
            2,
            0,
        )
        refusing = mesh.cluster("refusing", "refused")
        assert mesh.of(CLUSTER, refusing, "requests", "connections", "connect_failures") == (0, 3, 3)
        asked = ("requests", "errors", "client_errors", "no_route", "no_cluster")
        assert mesh.of(LISTENER, outbound, *asked) == (54, 18, 6, 3, 2)
        assert mesh.of(CLUSTER, inbound, "requests", "errors") == (11, 0)
        assert mesh.of(LISTENER, listener, "requests", "client_errors", "denied") == (18, 7, 7)
        assert mesh.of(POLICY, rule.format("pages", 0), "allowed", "denied") == (6, 0)
        assert mesh.of(POLICY, rule.format("pages", 1), "allowed", "denied") == (5, 0)
        assert mesh.of(POLICY, rule.format("no.admin", 0), "allowed", "denied") == (0, 4)
        assert mesh.of(POLICY, NO_ALLOW_MATCHED, "allowed", "denied") == (0, 3)
        assert {name for kind, name in mesh.rows() if kind is CLUSTER} <= {
            ok, inbound, refusing, *map(mesh.cluster, ("refused", "none")), mesh.cluster("bytes", "tcp"),
        }  # fmt: skip


async def test_a_restart_of_any_part_loses_one_interval_at_most_and_is_marked(mesh: Mesh) -> None:
    """What is lost is in no report; all else is, once."""
    asked = 0

    async def ask(count: int) -> None:
        nonlocal asked
        await mesh.ask("ok", "/status/503", count)
        asked += count

    async def is_told() -> bool:
        return mesh.requests() == (asked, asked)

    async with mesh.running():
        async with mesh.proxy() as proxy:
            await ask(20)
            await eventually(is_told)
            await mesh.until_marked(proxy, 1)  # nobody knows what an agent before has counted last
            # Envoy exits: what it has counted since the last look is lost
            await ask(3)
            (envoy,) = proxy.envoy_pids()
            os.kill(envoy, signal.SIGKILL)
            await eventually(lambda: proxy.envoy_pids() not in ([], [envoy]), what="Envoy is restarted")
            await proxy.wait_ready()
            await ask(5)
            await mesh.until_marked(proxy, 2)
            asked = await mesh.settled(proxy)
            assert 25 <= asked <= 28, "what was asked after it, and before the last look"
            # a hot restart: what was counted between the last look and the first is lost
            await mesh.hot_restart(proxy)
            await mesh.until_marked(proxy, 3)
            await ask(7)
            await eventually(is_told, what="the next Envoy is read")
            # the agent ends in order: nothing is lost
            await ask(4)
            await proxy.end(signal.SIGTERM)
            await eventually(is_told, what="the last report has come")
        async with mesh.proxy() as proxy:
            await ask(6)
            await eventually(is_told, what="the next agent reports")
            # the agent is killed, and Envoy ends with it
            await ask(3)
            await proxy.end(signal.SIGKILL)
        assert asked - 3 <= mesh.requests()[0] <= asked
    # the control plane was away, and knows nothing of the time before
    async with mesh.proxy("--log-level=debug") as proxy:
        asked = 0
        await ask(9)
        async with mesh.running():
            await eventually(is_told, what="what was counted while there was no control plane")
            await ask(2)
            await eventually(is_told)


async def test_a_hot_restart_under_load_counts_nothing_twice(mesh: Mesh) -> None:
    """A new Envoy takes over what the old one has counted last, a part of which was reported."""
    async with mesh.running(), mesh.proxy() as proxy:
        asked = 0

        async def load() -> None:
            nonlocal asked
            while True:
                await mesh.ask("ok", "/status/200")
                asked += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await eventually(lambda: mesh.requests()[0] > 100)
            await mesh.hot_restart(proxy)
            await mesh.until_marked(proxy, 2)
            told = mesh.requests()[0]
            await eventually(lambda: mesh.requests()[0] > told + 50)
            nursery.cancel_scope.cancel()
        assert await mesh.settled(proxy) <= asked


async def test_a_control_plane_that_counts_nothing_costs_nothing(mesh: Mesh) -> None:
    async with mesh.running(traffic_reports=None), mesh.proxy("--envoy-log-level=info") as proxy:
        await mesh.ask("ok", "/status/200", 3)

        async def is_off() -> bool:
            return (await proxy.state())["traffic"]["interval_seconds"] == 0

        await eventually(is_off)
        state = await proxy.state()
        assert state["load_reports"]["streams"] == 1, "Envoy's stream is kept open"
        assert state["traffic"]["reports_total"] == 0
        log = proxy.log.read_text()
        assert "StreamLoadStats" not in log, "Envoy has no reason to complain"


async def test_metrics_are_those_that_there_were_without_counting(mesh: Mesh) -> None:
    families = []
    async with mesh.running():
        for flag in ("--traffic", "--no-traffic"):
            async with mesh.proxy(flag) as proxy:
                await mesh.ask("ok", "/retried/503", 3)
                await mesh.ask("inbound", "/admin", 2)

                async def is_on_disk(proxy: ProxyProcess = proxy) -> bool:
                    return (await proxy.state())["relay"]["age_seconds"] is not None

                await eventually(is_on_disk, what="the age of what is on disk is a metric")
                pages = [
                    (await mesh.client.get(f"http://127.0.0.1:{port}/stats/prometheus")).text
                    for port in (proxy.ports[1], proxy.ports[3])
                ]
                families.append([set(SAMPLE.findall(text)) for text in pages])
                assert all("reviews" not in text and "ok.internal" not in text for text in pages)
                state = await proxy.state()
                assert ("traffic" in state) is (flag == "--traffic")
                await proxy.end(signal.SIGTERM)
    counting, without = families
    prefixes = ("mesh_pilot_agent_traffic_", "mesh_pilot_agent_load_reports_")
    own = {name for name in counting[0] if name.startswith(prefixes)}
    assert own
    assert counting[0] - own == without[0]
    assert counting[1] == without[1]
