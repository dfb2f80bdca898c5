"""The states of objects over all proxies: only those count that an object applies to, and the worst state is told."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from mesh_pilot.explain.truth.facts import PlaneFacts, gather, streams_by_proxy
from mesh_pilot.explain.truth.fleet import FleetTruth, SeenAt, added_up, fleet_of
from mesh_pilot.explain.truth.states import Truth, TruthState
from mesh_pilot.safety.rollout.progress import plan_of
from mesh_pilot.xds.ads.status import StatusRegistry
from tests.quarantine.fleet import MARK, Fleet
from tests.quarantine.test_controller import GATEWAY, edge_of
from tests.quarantine.test_controller import route as route_of_all
from tests.rollout.fleet import RolloutFleet
from tests.support.worlds import sidecar

BAD = ("config", "VirtualService", "bad", "bad")
GOOD = ("config", "VirtualService", "good", "good")
REASON = "an operator has aborted it"


def route(tenant: str, value: str) -> str:
    """A tenant's VirtualService for gateways alone."""
    return route_of_all(tenant, value).replace("[infra/edge, mesh]", "[infra/edge]")


def known(fleet: Fleet) -> tuple[PlaneFacts, StatusRegistry]:
    status = StatusRegistry()
    for client in fleet.clients:
        connection = status.connect(client.variant, "test")
        connection.stream, connection.proxy = client.stream, client.stream.proxy
    progress = fleet.rollouts.progress if isinstance(fleet, RolloutFleet) else None
    return gather(fleet.world, fleet.quarantine, progress, {}, {}, fleet.catalog.as_written), status


def seen(fleet: Fleet, *asked: tuple[str, ...]) -> dict[tuple[str, ...], FleetTruth]:
    return added_up(fleet_of(*known(fleet), asked))


def withheld_of(fleet: Fleet) -> Iterator[str]:
    """The names of the proxies that quarantine is said to withhold something from."""
    facts, status = known(fleet)
    for own in streams_by_proxy(status).values():
        assert own[0].proxy is not None
        if facts.withheld_of(own[0].proxy, own):
            yield own[0].proxy.name


def join(fleet: Fleet, edges: int, others: int) -> None:
    for number in range(edges):
        fleet.join(edge_of(f"edge-{number}", ip=f"10.1.1.{number + 1}"), identity=f"edge-{number}")
    for number in range(others):
        fleet.join(sidecar(f"10.1.2.{number + 1}", name=f"web-{number}", namespace="elsewhere"), identity="web")
    fleet.settle()


@pytest.mark.parametrize("before", [True, False], ids=["an older version is served", "it is left out"])
def test_proxies_that_a_withheld_object_does_not_apply_to_do_not_count(before: bool) -> None:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("good", "good-1") + (route("bad", "bad-1") if before else ""))
    join(fleet, edges=3, others=4)
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert "all proxies of envoy 1.40.0" in fleet.withheld()
    found = seen(fleet)
    assert found.keys() == {BAD}
    assert (found[BAD].count(TruthState.WITHHELD), found[BAD].proxies) == (3, 3)
    verdict = found[BAD].verdict()
    assert verdict.state is TruthState.WITHHELD
    assert verdict.why.startswith("from all 3 proxies that it applies to: edge-0.infra refused it; quarantine of ")
    assert bool(verdict.served) is before
    assert [*withheld_of(fleet)] == ["edge-0.infra", "edge-1.infra", "edge-2.infra"]
    assert seen(fleet, GOOD)[GOOD].proxies == 3


def test_a_proxy_that_accepts_what_another_one_refuses_has_the_newest_version() -> None:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("bad", "bad-1"))
    join(fleet, edges=1, others=0)
    fleet.join(edge_of("tolerant", ip="10.1.1.9"), marks=frozenset(), identity="tolerant")
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    verdict = seen(fleet, BAD)[BAD].verdict()
    assert verdict.why.startswith("from 1 of 2 proxies that it applies to: edge-0.infra refused it")


@pytest.mark.parametrize("is_new", [False, True], ids=["changed", "new"])
def test_an_object_in_a_rollout_says_how_many_proxies_have_its_new_version(is_new: bool) -> None:
    fleet = RolloutFleet()
    fleet.edit(GATEWAY + route("good", "good-1") + ("" if is_new else route("bad", "bad-1")))
    join(fleet, edges=4, others=2)
    fleet.arm(plan_of(names=["edge-1"], interval=60))
    fleet.edit(route("bad", "bad-2"))
    fleet.settle()
    verdict = seen(fleet)[BAD].verdict()
    assert verdict.state is TruthState.CANARY
    assert verdict.why.startswith("1 of 4 proxies that it applies to have the new version: ")
    fleet.rollouts.order(lambda progress: progress.abort(REASON), "abort")
    fleet.settle()
    verdict = seen(fleet)[BAD].verdict()
    assert verdict.state is TruthState.TAKEN_BACK and bool(verdict.served) is not is_new
    assert verdict.why == f"from all 4 proxies that it applies to: the version before is in force: {REASON}"


def test_what_workers_have_seen_is_added_up() -> None:
    old = Truth(TruthState.WITHHELD, "web-1 refused it", has_newest=False)
    own = FleetTruth((SeenAt(old, 2, ("a", "b")), SeenAt(Truth(TruthState.IN_FORCE), 1, ("c",))))
    other = FleetTruth((SeenAt(attrs.evolve(old, why="web-9 refused it"), 3, ("d", "e", "f")),))
    both = added_up([{BAD: own}, {BAD: other, GOOD: FleetTruth()}])[BAD]
    assert (both.proxies, both.count(TruthState.WITHHELD)) == (6, 5)
    assert both.names(TruthState.WITHHELD) == ["a", "b", "d", "e", "f"]
    verdict = both.verdict(Truth(TruthState.STALE, "files: silent"))
    assert verdict.why == "from 5 of 6 proxies that it applies to: web-1 refused it"
    assert FleetTruth().verdict(Truth(TruthState.STALE, "files: silent")).why == "files: silent"
