"""Rollouts judged by what agents report of two real Envoys: faults are taken back, a healthy change reaches all."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.model.events import RolloutPlan
from mesh_pilot.model.traffic import Counter
from mesh_pilot.safety.rollout.controller import RolloutController
from mesh_pilot.safety.rollout.progress import RolloutPhase
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, nobody, service
from tests.support.proxy_process import proxy_process

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(900)]

REPORT_SECONDS = 10.0
"""The default of ``--traffic-reports``."""
PROXIES = ("web-1", "web-2")
CALLERS, RATE = 2, 25.0
"""Clients for each direction, and the requests a second of each. Both Envoys have the same listeners, so that half of
all requests are for each."""

SIDECAR = """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: shop}}
spec:
  ingress:
  - {{port: {{number: {inbound}, name: http, protocol: HTTP}}, bind: 127.0.0.1, defaultEndpoint: '127.0.0.1:{target}'}}
  egress: [{{hosts: ['./*']}}]
"""

ROUTES = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.test]
  http:
  - match: [{uri: {prefix: /some}}]
    headers: &headers {response: {set: {x-version: 'VERSION'}}}
    SOME
  - headers: *headers
    route: [{destination: {host: reviews.test}}]
"""

POLICY = """
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no.some, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {paths: [PATH]}}]}]}
"""

ANSWER = re.compile(r"^(?:HTTP/1.1|x-version:) (\d+)", re.MULTILINE)

SOME = "route: [{destination: {host: reviews.test}}]"


def routes(some: str = SOME, version: int = 1) -> str:
    return ROUTES.replace("SOME", some).replace("VERSION", str(version))


def policy(path: str = "/none") -> str:
    return POLICY.replace("PATH", path)


@attrs.frozen
class Fault:
    """A change that has one request in twenty fail."""

    file: str
    text: str
    traffic: str
    """The traffic that gets worse, as the reason names it."""
    changed: str


FAULTS = {
    "a subset that does not exist": Fault(
        "routes.yaml",
        routes("route: [{destination: {host: reviews.test, subset: missing}}]"),
        "requests of web.shop to a cluster that does not exist at listener outbound_127.0.0.1_{outbound}",
        "VirtualService/shop/reviews",
    ),
    "a policy": Fault(
        "policy.yaml",
        policy("/some"),
        "requests of web.shop denied by policies at listener inbound_127.0.0.1_{inbound}",
        "AuthorizationPolicy/shop/no.some",
    ),
    "a connection that is refused": Fault(
        "routes.yaml",
        routes("route: [{destination: {host: refused.test}}]"),
        "requests of web.shop to refused.test:{outbound}",
        "VirtualService/shop/reviews",
    ),
    "a timeout": Fault(
        "routes.yaml",
        routes(f"timeout: 50ms\n    {SOME}"),
        "requests of web.shop to reviews.test:{outbound}",
        "VirtualService/shop/reviews",
    ),
}


@attrs.frozen
class Shop:
    """Two proxies of one workload that listen at the same ports, under load.

    Linux gives each new connection to either of them.
    """

    mesh: Fleet
    ports: dict[str, int]

    @property
    def keeper(self) -> RolloutController:
        keeper = self.mesh.plane.state.rollouts
        assert keeper is not None
        return keeper

    async def ask(self, direction: str, path: str) -> bytes:
        """The head of the answer to a request on a new connection."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.ports[direction])
        async with stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nhost: reviews.test\r\nconnection: close\r\n\r\n".encode())
            return b"".join([part async for part in stream]).partition(b"\r\n\r\n")[0]

    async def load(self, direction: str) -> None:
        """Requests at the rate, every twentieth for what the faults are about, until cancelled."""
        number, due = 0, trio.current_time()
        while True:
            number += 1
            await self.ask(direction, "/some" if number % 20 == 0 else "/other")
            due += 1 / RATE
            await trio.sleep_until(due)

    async def answers(self, direction: str, path: str) -> set[tuple[str, ...]]:
        """The status and version of many answers, so that some are of either proxy."""
        heads = [(await self.ask(direction, path)).decode() for _ in range(30)]
        return {tuple(ANSWER.findall(head)) for head in heads}

    def requests(self, node: str) -> int:
        """The requests that arrived at a proxy, and those that it made, whichever are fewer."""
        traffic = self.mesh.plane.state.traffic
        assert traffic is not None
        found = {edge.name: edge.counts[Counter.REQUESTS] for edge in traffic.table.edges(nodes=[node])}
        return min(found.get(f"{direction}_127.0.0.1_{port}", 0) for direction, port in self.ports.items())

    async def start(self, file: str, text: str, interval: float) -> None:
        """Begin a rollout with one of the two proxies, and return when it has accepted the change."""
        plan = RolloutPlan((50.0, 100.0), interval=interval)
        self.keeper.order(lambda progress: progress.arm(plan, trio.current_time()), "start")
        await self.mesh.apply(text, file)
        assert self.keeper.progress.state is not None
        (canary,) = self.keeper.progress.state.canary
        await eventually(lambda: self.keeper.members()[canary].has_accepted, what="the canary accepts the change")


@asynccontextmanager
async def shop(folder: Path, free_ports: Callable[[int], list[int]]) -> AsyncIterator[Shop]:
    outbound, inbound, refused, *ports = free_ports(3 + 4 * len(PROXIES))
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(fleet(folder, traffic_reports=REPORT_SECONDS))
        backend = await mesh.backend("reviews")
        backend.delays["/some"] = 0.1
        text = service("reviews.test", outbound, at(backend)) + service("refused.test", outbound, nobody(refused))
        text += SIDECAR.format(inbound=inbound, target=backend.port)
        for name, part in (("services.yaml", text), ("routes.yaml", routes()), ("policy.yaml", policy())):
            await mesh.apply(part, name)
        for number, name in enumerate(PROXIES):
            who = f"--name={name}", "--namespace=shop", "--label=app=web", "--ip=127.0.0.1"
            pilot = "--plaintext", f"--pilot={mesh.plane_address}"
            own = ports[4 * number : 4 * number + 4]
            proxy = await stack.enter_async_context(proxy_process(folder / name, own, *who, *pilot))
            await proxy.wait_ready()
        nursery = await stack.enter_async_context(trio.open_nursery())
        found = Shop(mesh, {"outbound": outbound, "inbound": inbound})
        for direction in CALLERS * tuple(found.ports):
            nursery.start_soon(found.load, direction)
        yield found
        nursery.cancel_scope.cancel()


async def reaches_all(found: Shop) -> None:
    """A healthy change reaches all proxies without an order."""
    progress = found.keeper.progress
    await found.start("routes.yaml", routes(version=2), 5.0)
    assert await found.answers("outbound", "/other") == {("200", "1"), ("200", "2")}, "one of two proxies has it"
    await eventually(lambda: progress.phase is RolloutPhase.OFF, seconds=180, what="a healthy change reaches all")
    assert await found.answers("outbound", "/other") == {("200", "2")}


async def is_taken_back(found: Shop, name: str, fault: Fault) -> None:
    """A fault is taken back without an order, with the reason."""
    progress = found.keeper.progress
    await found.start(fault.file, fault.text, 3600.0)
    await eventually(lambda: progress.phase is RolloutPhase.TAKEN_BACK, seconds=180, what=f"{name} is found")
    assert progress.state is not None
    reason = progress.state.reason
    assert reason.startswith(f"{fault.traffic.format(**found.ports)} fail more often: ")
    assert f"; changed: {fault.changed} (" in reason
    assert reason.endswith(f"/{fault.file}:2)")

    async def is_well() -> bool:
        outbound, inbound = [await found.answers(direction, "/some") for direction in found.ports]
        return outbound == {("200", "2")} and inbound == {("200",)}

    await eventually(is_well, what="all proxies have the old objects")


async def test_a_canary_that_fails_one_request_in_twenty_is_taken_back_and_a_healthy_change_reaches_all(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with shop(tmp_path, free_ports) as found:

        def is_known() -> bool:
            nodes = [*found.keeper.members()]
            return len(nodes) == len(PROXIES) and all(found.requests(node) > 400 for node in nodes)

        await eventually(is_known, seconds=120, what="both proxies have traffic before the change")
        await reaches_all(found)
        before = {"routes.yaml": routes(version=2), "policy.yaml": policy()}
        for name, fault in FAULTS.items():
            await is_taken_back(found, name, fault)
            await found.mesh.apply(before[fault.file], fault.file)
            assert found.keeper.progress.phase is RolloutPhase.OFF, "the source has the old objects again"
