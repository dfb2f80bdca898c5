"""Weights on their way: exact at the end, served to all by steps, taken back where more requests fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import RolloutPlan, Synced, Upsert
from mesh_pilot.safety.rollout.controller import SOURCE as ROLLOUT
from mesh_pilot.safety.rollout.progress import RolloutError, RolloutPhase, plan_of
from mesh_pilot.safety.rollout.weights import shifted, weights_between
from mesh_pilot.safety.state.codec import decode, encode
from mesh_pilot.traffic.table import CallingWorkload, ReportingProxy
from mesh_pilot.world import World
from tests.quarantine.test_controller import GATEWAY, edge_of
from tests.rollout.fleet import RolloutFleet
from tests.rollout.test_rollout_property import served
from tests.support.envoy_model import EnvoyModel
from tests.support.traffic_counts import row
from tests.support.worlds import SOURCE, configs

PLAN = RolloutPlan((5.0, 25.0, 50.0, 100.0), interval=30.0, by_weights=True)
RULE = """
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: infra}
spec:
  host: shop.test
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: infra}
spec:
  hosts: [shop.test]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.9.0.1, labels: {version: v1}}, {address: 10.9.0.2, labels: {version: v2}}]
"""


def service(*weights: int, more: str = "") -> str:
    routes = ", ".join(
        f"{{destination: {{host: shop.test, subset: v{at + 1}}}, weight: {weight}}}"
        for at, weight in enumerate(weights)
    )
    return f"""
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: shop, namespace: infra}}
spec: {{hosts: [shop.test], gateways: [mesh, edge], http: [{{{more}route: [{routes}]}}]}}
"""


def config(*weights: int, more: str = "") -> Config:
    (found,) = configs(service(*weights, more=more))
    assert isinstance(found, Config)
    return found


def weights_of(found: Any) -> list[int]:
    return [each.weight for each in found[0].spec.http[0].route]


@pytest.mark.parametrize(
    ("old", "new", "share", "found"),
    [
        ((100, 0), (0, 100), 5.0, [95, 5]),
        ((100, 0), (0, 100), 25.0, [75, 25]),
        ((90, 10), (80, 20), 25.0, [88, 12]),
        ((1, 1), (1, 3), 50.0, [38, 62]),
        ((1, 1, 1), (3, 0, 0), 50.0, [66, 17, 17]),
        ((300, 100), (100, 300), 50.0, [200, 200]),
    ],
)
def test_weights_between_two_versions(
    old: tuple[int, ...], new: tuple[int, ...], share: float, found: list[int]
) -> None:
    between = weights_between((config(*old),), (config(*new),), share)
    assert between is not None
    assert sorted(weights_of(between)) == sorted(found)
    assert sum(weights_of(between)) == max(100, sum(old), sum(new))


@given(
    pair=st.integers(2, 5).flatmap(
        lambda n: st.tuples(*[st.lists(st.integers(0, 1000), min_size=n, max_size=n).filter(any)] * 2)
    ),
    share=st.floats(0, 100),
)
def test_weights_lie_between_and_their_sum_is_exact(pair: tuple[list[int], list[int]], share: float) -> None:
    old, new = pair
    between = weights_between((config(*old),), (config(*new),), share)
    if old == new:
        assert between is None
        return
    assert between is not None
    total = max(100, sum(old), sum(new))
    found = weights_of(between)
    assert sum(found) == total
    for weight, a, b in zip(found, old, new, strict=True):
        low, high = sorted((total * a / sum(old), total * b / sum(new)))
        assert low - 1 <= weight <= high + 1


def test_what_differs_otherwise_has_nothing_between() -> None:
    assert weights_between((config(100, 0),), (config(0, 100, more="timeout: 1s, "),), 50.0) is None
    assert weights_between((config(100, 0),), (config(50, 50, 0),), 50.0) is None
    assert weights_between((config(100, 0),), (), 50.0) is None
    assert weights_between((), (config(100, 0),), 50.0) is None


def test_destinations_gain_or_lose() -> None:
    assert shifted((config(80, 20, 0),), (config(50, 30, 20),)) == (
        {("shop.test", "v2"), ("shop.test", "v3")},
        {("shop.test", "v1")},
    )


def test_weights_select_no_proxies() -> None:
    assert plan_of(by="weights").by_weights
    with pytest.raises(RolloutError, match="weights change at all proxies"):
        plan_of(by="weights", names=["web-*"])
    with pytest.raises(RolloutError, match="is by proxies or weights"):
        plan_of(by="luck")


class WeighedFleet(RolloutFleet):
    """A fleet whose proxies send requests as the weights say that they are served, and report."""

    errors = 0.0
    """The share of requests to the second subset that fail."""

    def weights(self) -> set[tuple[int, ...]]:
        """Those that clients are served."""
        return {tuple(weights_of([view])) for view in self.served()}

    def served(self) -> Iterator[Any]:
        for client in self.clients:
            overlay = self.world.overlay_of(client.proxy.domains, client.proxy.id)
            view = overlay.view if overlay is not None else self.world.view
            found = view.config(ConfigKey("VirtualService", "infra", "shop"))
            assert found is not None
            yield found

    def ten_seconds(self) -> None:
        self.time += 5
        for client, config in zip(self.clients, self.served(), strict=True):
            rows = []
            for subset, weight in zip(("v1", "v2"), weights_of([config]), strict=True):
                number = 4 * weight
                failures = round(self.errors * number) if subset == "v2" else 0
                rows.append(row(f"outbound|80|{subset}|shop.test", requests=number, errors=failures))
            proxy = ReportingProxy(client.proxy.id, client.proxy.name, CallingWorkload("infra", "edge"))
            self.table.add(proxy, rows, of_agent=True)
        self.time += 5
        self.settle()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 10)):
            self.ten_seconds()


def fleet_of(plan: RolloutPlan = PLAN) -> WeighedFleet:
    fleet = WeighedFleet()
    fleet.edit(GATEWAY + RULE + service(100, 0))
    for number in range(3):
        fleet.join(edge_of(f"edge-{number}"))
    fleet.settle()
    fleet.run(60)
    fleet.arm(plan)
    return fleet


def test_weights_reach_all_proxies_by_steps_and_are_what_is_written_at_the_end() -> None:
    fleet = fleet_of()
    fleet.edit(service(0, 100))
    fleet.settle()
    seen = []
    while fleet.phase is RolloutPhase.RUNNING:
        (found,) = fleet.weights()
        if found not in seen:
            seen.append(found)
            for client in fleet.clients:
                fresh = World()
                fresh.apply([*(Upsert(SOURCE, item) for item in served(fleet, client).values()), Synced(SOURCE)])
                model = EnvoyModel(WorldCatalog(fresh), client.proxy, client.variant)
                model.settle()
                assert client.held == model.held
        fleet.ten_seconds()
    assert seen == [(95, 5), (75, 25), (50, 50), (0, 100)]
    assert fleet.phase is RolloutPhase.OFF
    assert not fleet.world.overlays
    assert fleet.weights() == {(0, 100)}


def test_weights_are_taken_back_where_more_requests_fail() -> None:
    fleet = fleet_of()
    fleet.edit(service(0, 100))
    fleet.settle()
    fleet.errors = 0.05
    fleet.run(150)
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    assert fleet.weights() == {(100, 0)}
    assert fleet.reason.startswith("requests to where weight goes by VirtualService/infra/shop fail more often: ")
    assert "0 of" in fleet.reason
    assert "where it comes from" in fleet.reason
    assert "changed: VirtualService/infra/shop (test.yaml:" in fleet.reason
    fleet.errors = 0.0
    fleet.edit(service(50, 50))  # another way
    fleet.settle()
    assert fleet.phase is RolloutPhase.RUNNING
    assert fleet.weights() == {(98, 2)} or fleet.weights() == {(97, 3)}
    fleet.run(300)
    assert fleet.weights() == {(50, 50)}


def test_orders_and_changes_on_the_way() -> None:
    fleet = fleet_of(attrs.evolve(PLAN, judged_by="acks"))
    fleet.edit(service(0, 100))
    fleet.settle()
    fleet.rollouts.order(lambda progress: progress.pause(), "pause")
    fleet.run(120)
    assert fleet.weights() == {(95, 5)}
    fleet.rollouts.order(lambda progress: progress.resume(fleet.time), "resume")
    fleet.run(30)
    assert fleet.weights() == {(75, 25)}
    fleet.edit(service(20, 80))  # the step begins again, on the new way
    fleet.settle()
    assert fleet.weights() == {(80, 20)}
    fleet.rollouts.order(lambda progress: progress.abort("an operator"), "abort")
    fleet.settle()
    assert fleet.weights() == {(100, 0)}
    fleet.rollouts.order(lambda progress: progress.promote(), "promote")
    fleet.settle()
    assert fleet.weights() == {(20, 80)}
    assert fleet.phase is RolloutPhase.OFF


def test_what_changes_otherwise_reaches_all_at_once() -> None:
    fleet = fleet_of()
    fleet.edit(service(50, 50, more="timeout: 3s, "))
    fleet.settle()
    assert fleet.phase is RolloutPhase.ARMED
    assert fleet.weights() == {(50, 50)}
    fleet.edit(service(0, 100, more="timeout: 3s, "))
    fleet.settle()
    assert fleet.phase is RolloutPhase.RUNNING
    fleet.edit(service(0, 100, more="timeout: 4s, "))
    fleet.settle()
    assert fleet.phase is RolloutPhase.OFF
    assert fleet.weights() == {(0, 100)}


def test_a_change_back_ends_it() -> None:
    fleet = fleet_of()
    fleet.edit(service(0, 100))
    fleet.settle()
    fleet.edit(service(100, 0))
    fleet.settle()
    assert fleet.phase is RolloutPhase.OFF
    assert fleet.weights() == {(100, 0)}


def test_weights_on_their_way_survive_a_restart() -> None:
    fleet = fleet_of()
    fleet.edit(service(0, 100))
    fleet.settle()
    kept = [decode(encode(item)) for item in fleet.picture(ROLLOUT)]
    after = WeighedFleet()
    after.rollouts.seed(kept)
    after.world.apply([*(Upsert(SOURCE, item) for item in fleet.picture(SOURCE)), Upsert(ROLLOUT, kept[0])])
    for number in range(3):
        after.join(edge_of(f"edge-{number}"))
    after.settle()
    assert after.weights() == {(95, 5)}
    after.rollouts.order(lambda progress: progress.abort("an operator"), "abort")
    after.settle()
    assert after.weights() == {(100, 0)}
