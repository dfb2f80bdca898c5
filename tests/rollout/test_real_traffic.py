"""A rollout that a stock Envoy's load reports take back, and one that they let pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.events import RolloutPlan
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.traffic import Counter
from mesh_pilot.safety.rollout.progress import RolloutPhase
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, nobody, service

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(600)]

ROUTES = """
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: reviews, namespace: shop}}
spec: {{hosts: [reviews.test], http: [{rule}]}}
"""
GOOD = (
    "{{headers: {{response: {{set: {{x-version: '{version}'}}}}}}, route: [{{destination: {{host: reviews.test}}}}]}}"
)
REFUSED = "{route: [{destination: {host: reviews.test}, weight: 95}, {destination: {host: refused.test}, weight: 5}]}"
FAILING = "{rewrite: {uri: /503}, match: [{uri: {prefix: /5}}], route: [{destination: {host: reviews.test}}]}"


async def requests(mesh: Fleet, port: int) -> None:
    """Some 25 requests a second or more, a twentieth of which the second fault is about, until cancelled."""
    number = 0
    while True:
        number += 1
        path = "5" if number % 20 == 0 else "ok"
        await mesh.get(f"http://127.0.0.1:{port}/{path}", host="reviews.test")
        await trio.sleep(0.03)


async def follow(mesh: Fleet, config: Callable[[str], str], port: int, fault: str) -> None:
    keeper, traffic = mesh.plane.state.rollouts, mesh.plane.state.traffic
    assert keeper is not None and traffic is not None
    progress = keeper.progress

    def attempts() -> int:
        return sum(edge.counts[Counter.ATTEMPTS] for edge in traffic.table.edges())

    async def answered(version: str) -> bool:
        reply = await mesh.get(f"http://127.0.0.1:{port}/5", host="reviews.test")
        return reply.status_code == 200 and reply.headers.get("x-version") == version

    await eventually(lambda: attempts() > 400, seconds=120, what="there is traffic before the change")
    keeper.order(lambda to: to.arm(RolloutPlan((50.0, 100.0), interval=3600.0), trio.current_time()), "start")
    await mesh.apply(config(REFUSED if "refused" in fault else f"{FAILING}, {GOOD.format(version=1)}"))
    await eventually(lambda: progress.phase is RolloutPhase.TAKEN_BACK, seconds=180)
    host = "refused.test" if "refused" in fault else "reviews.test"
    assert progress.state is not None
    assert progress.state.reason.startswith(f"attempts of web.shop to {host}:{port} fail more often: ")
    assert "changed: VirtualService/shop/reviews (" in progress.state.reason
    await eventually(lambda: answered("1"), what="the old route is back")

    keeper.order(lambda to: to.promote(), "promote")
    await mesh.apply(config(GOOD.format(version=2)))
    await eventually(lambda: not mesh.plane.state.world.overlays)
    await mesh.apply(config(GOOD.format(version=3)))
    keeper.order(lambda to: to.arm(RolloutPlan((50.0, 100.0), interval=1.0), trio.current_time()), "start")
    await mesh.apply(config(GOOD.format(version=4)))
    assert progress.phase is RolloutPhase.RUNNING
    await eventually(lambda: progress.phase is RolloutPhase.OFF, seconds=180, what="a healthy change reaches all")
    await eventually(lambda: answered("4"))


@pytest.mark.parametrize("fault", ["a connection that is refused", "an application's 503"])
async def test_a_canary_that_fails_one_request_in_twenty_is_taken_back_and_a_healthy_one_reaches_all(
    tmp_path: Path, free_ports: Callable[[int], list[int]], fault: str
) -> None:
    port, refused = free_ports(2)
    async with fleet(tmp_path, traffic_reports=1.0) as mesh:
        backend = await mesh.backend("reviews")
        backend.answer = lambda request, _: (503, {}) if request.target == b"/503" else None

        def config(rule: str) -> str:
            services = service("reviews.test", port, at(backend)) + service("refused.test", port, nobody(refused))
            return services + ROUTES.format(rule=rule)

        await mesh.apply(config(GOOD.format(version=1)))
        node = EnvoyNode("web", "shop", "127.0.0.2", interception=Interception.NONE)
        await mesh.envoy(node)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(requests, mesh, port)
            await follow(mesh, config, port, fault)
            nursery.cancel_scope.cancel()
