"""Rollouts judged by traffic: what got worse is taken back, what is well continues, and too little traffic waits."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from mesh_pilot.cli.change.rollout import status_lines
from mesh_pilot.model.events import RolloutPlan
from mesh_pilot.model.json import as_json
from mesh_pilot.model.traffic import RowKind
from mesh_pilot.ops.api.rollout import rollout_status
from mesh_pilot.safety.rollout import judge
from mesh_pilot.safety.rollout.conditions import RolloutCondition, condition_of
from mesh_pilot.safety.rollout.progress import RolloutError, RolloutPhase, plan_of
from mesh_pilot.traffic.table import CallingWorkload, ReportingProxy, TrafficTable
from tests.quarantine.fleet import RefusingClient
from tests.quarantine.test_controller import GATEWAY, edge_of, has, route
from tests.rollout.fleet import RolloutFleet
from tests.support.traffic_counts import row

PLAN = RolloutPlan((25.0, 50.0, 100.0), interval=30.0)
UPSTREAM = "outbound|80||good.example.com"
OTHER = "outbound|80||elsewhere.test"
LISTENER = "outbound_0.0.0.0_80"


class JudgedFleet(RolloutFleet):
    """A fleet whose proxies report traffic every ten seconds of its time."""

    def __init__(self) -> None:
        super().__init__()
        self.chance = Random(1)
        self.rate = 20.0
        self.errors: dict[str, float] = {}
        """The share of requests that fail, by client, in all clusters."""
        self.silent: set[str] = set()
        self.has_agents = True
        self.fault: Any = None
        """What a client of the canary reports, in place of requests without errors."""

    def ten_seconds(self) -> None:
        self.report()
        self.settle()

    def report(self) -> None:
        self.time += 5
        for client in self.clients:
            if client.proxy.id not in self.silent:
                workload = CallingWorkload("infra", "edge")
                reporting = ReportingProxy(client.proxy.id, client.proxy.name, workload)
                self.table.add(reporting, self.rows_of(client), of_agent=self.has_agents)
        self.time += 5

    def rows_of(self, client: RefusingClient) -> list[Any]:
        number = round(self.rate * 10)
        rate = self.errors.get(client.proxy.name, 0.0)
        failures = sum(self.chance.random() < rate for _ in range(number))
        if client in self.canary() and self.fault is not None:
            return list(self.fault(number))
        if not self.has_agents:
            return [row(UPSTREAM, attempts=number, failed_attempts=failures)]
        return [
            row(UPSTREAM, requests=number, errors=failures),
            row(OTHER, requests=number),
            row(LISTENER, RowKind.LISTENER, requests=2 * number),
        ]

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 10)):
            self.ten_seconds()

    def text(self) -> str:
        return "\n".join(status_lines(as_json(rollout_status(self.rollouts))))


def fleet_of(clients: int = 4, plan: RolloutPlan = PLAN, *, has_agents: bool = True) -> JudgedFleet:
    """A rollout that has just begun, after two minutes of traffic."""
    fleet = JudgedFleet()
    fleet.has_agents = has_agents
    fleet.edit(GATEWAY + route("good", "good-1"))
    for number in range(clients):
        fleet.join(edge_of(f"edge-{number}"))
    fleet.run(120)
    fleet.arm(plan)
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert fleet.phase is RolloutPhase.RUNNING
    return fleet


def few_fail(number: int, failures: int = 10) -> list[Any]:
    return [row(UPSTREAM, requests=number, errors=failures)]


FAULTS: dict[str, tuple[Callable[[int, int], list[Any]], str]] = {
    "an application's 503": (few_fail, "requests of edge.infra to good.example.com:80 fail more often: "),
    "a timeout": (
        lambda n, bad: [
            row(LISTENER, RowKind.LISTENER, requests=n, errors=bad),
            row(UPSTREAM, requests=n, errors=bad, timeouts=bad),
        ],
        "requests of edge.infra to good.example.com:80",
    ),
    "connections that are refused": (
        lambda n, bad: [row(UPSTREAM, connections=n, connect_failures=bad)],
        "connections of edge.infra to good.example.com:80",
    ),
    "a subset that does not exist": (
        lambda n, bad: [
            row(OTHER, requests=n),
            row(LISTENER, RowKind.LISTENER, requests=n, errors=bad, no_cluster=bad),
        ],
        "requests of edge.infra to a cluster that does not exist at listener outbound_0.0.0.0_80",
    ),
    "a policy": (
        lambda n, bad: [row("inbound_0.0.0.0_80", RowKind.LISTENER, requests=n, allowed=n - bad, denied=bad)],
        "requests of edge.infra denied by policies at listener inbound_0.0.0.0_80",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_canary_that_fails_one_request_in_twenty_is_taken_back_within_three_intervals(name: str) -> None:
    fleet = JudgedFleet()
    fleet.edit(GATEWAY + route("good", "good-1"))
    for number in range(4):
        fleet.join(edge_of(f"edge-{number}"))
    fault, what = FAULTS[name]
    fleet.rows_of = lambda client: fault(200, 10 if client in fleet.canary() else 0)  # type: ignore[method-assign]
    fleet.run(120)
    fleet.arm(PLAN)
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    fleet.run(30)
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    assert what in fleet.reason
    assert "0 of 1,200 (0.00%) at the others, 0 of 2,400 (0.00%) before" in fleet.reason
    assert "changed: VirtualService/good/good (test.yaml:" in fleet.reason
    assert f"taken back: {fleet.reason}" in fleet.text()
    assert len([client for client in fleet.clients if has(client, "good-1")]) == 4


def test_a_report_that_arrives_just_after_the_change_is_about_the_time_before() -> None:
    fleet = JudgedFleet()
    fleet.edit(GATEWAY + route("good", "good-1"))
    for number in range(4):
        fleet.join(edge_of(f"edge-{number}"))
    fleet.run(120)
    fleet.time += 4
    fleet.arm(PLAN)
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    fleet.ten_seconds()
    fleet.fault = few_fail
    fleet.run(20)
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    assert "20 of 400 (5.00%) in the canary" in fleet.reason


def test_load_reports_alone_are_judged_by_attempts() -> None:
    fleet = fleet_of(has_agents=False)
    (canary,) = fleet.canary()
    fleet.errors[canary.proxy.name] = 0.05
    fleet.run(30)
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    assert "attempts of edge.infra to good.example.com:80" in fleet.reason


def test_a_healthy_change_reaches_all_unattended() -> None:
    fleet = fleet_of()
    fleet.errors = {client.proxy.name: 0.002 for client in fleet.clients}
    fleet.run(400)
    assert fleet.phase is RolloutPhase.OFF
    assert not fleet.world.overlays


def test_a_service_that_was_not_called_before_is_compared_with_all_calls() -> None:
    fleet = fleet_of()
    fleet.fault = lambda number: [
        row(UPSTREAM, requests=number - 10),
        row("outbound|80||new.test", requests=10, errors=10),
    ]
    fleet.run(30)
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    reason = fleet.reason
    assert reason.startswith("requests of edge.infra to new.test:80 fail more often: 20 of 20 (100.00%) in the canary")


def test_errors_of_all_take_nothing_back() -> None:
    fleet = fleet_of()
    fleet.errors = {client.proxy.name: 0.3 for client in fleet.clients}
    fleet.run(60)
    assert fleet.phase is not RolloutPhase.TAKEN_BACK


def test_a_proxy_that_was_bad_before_takes_nothing_back() -> None:
    fleet = JudgedFleet()
    fleet.edit(GATEWAY + route("good", "good-1"))
    for number in range(4):
        fleet.join(edge_of(f"edge-{number}"))
    fleet.errors[fleet.clients[0].proxy.name] = 0.1
    fleet.run(120)
    fleet.arm(attrs.evolve(PLAN, steps=(0.0, 100.0), names=("edge-0",)))
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert [client.proxy.name for client in fleet.canary()] == [fleet.clients[0].proxy.name]
    fleet.run(170)
    assert fleet.phase is RolloutPhase.OFF


def test_of_a_large_canary_the_same_proxies_are_read_before_the_change_and_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judge, "MOST_PROXIES", 1)
    fleet = JudgedFleet()
    fleet.edit(GATEWAY + route("good", "good-1"))
    for number in range(12):
        fleet.join(edge_of(f"edge-{number}"))
    fleet.errors = {client.proxy.name: 0.1 for client in fleet.clients[:6]}
    fleet.run(120)
    fleet.arm(attrs.evolve(PLAN, steps=(0.0, 100.0), names=("edge-[0-9]",)))
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert len(fleet.canary()) == 10
    fleet.run(120)
    assert fleet.phase is not RolloutPhase.TAKEN_BACK


def test_at_the_last_step_all_are_compared_with_the_time_before() -> None:
    fleet = fleet_of()
    while fleet.phase is RolloutPhase.RUNNING and fleet.state.share < 100:
        fleet.ten_seconds()
    fleet.fault = few_fail
    fleet.run(30)
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    assert "before" in fleet.reason


def test_a_paused_rollout_is_judged_too() -> None:
    fleet = fleet_of()
    fleet.rollouts.order(lambda progress: progress.pause(), "pause")
    fleet.fault = few_fail
    fleet.run(30)
    assert fleet.phase is RolloutPhase.TAKEN_BACK


def test_too_little_traffic_waits_and_says_so() -> None:
    fleet = fleet_of()
    fleet.rate = 0.5
    fleet.run(60)
    assert fleet.phase is RolloutPhase.RUNNING
    assert "step 1 of 3" in fleet.text()
    assert "waits for more traffic: 25 of about 300 requests to good.example.com:80 so far" in fleet.text()
    assert "traffic is judged: 50 calls from the canary in this step, 0 failed" in fleet.text()
    fleet.run(550)
    assert "step 1 of 3" not in fleet.text(), "300 requests have come"


def test_no_traffic_at_all_waits_until_an_operator_promotes_it() -> None:
    fleet = fleet_of()
    fleet.rows_of = lambda client: []  # type: ignore[method-assign]
    fleet.run(300)
    assert "waits for traffic: there was none yet" in fleet.text()
    fleet.rollouts.order(lambda progress: progress.promote(), "promote")
    fleet.settle()
    assert fleet.phase is RolloutPhase.OFF


def test_without_reports_answers_alone_count() -> None:
    fleet = JudgedFleet()
    fleet.edit(GATEWAY + route("good", "good-1"))
    for number in range(4):
        fleet.join(edge_of(f"edge-{number}"))
    fleet.arm(PLAN)
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert "traffic is not judged: none of the canary's proxies reports any" in fleet.text()
    fleet.later(30), fleet.later(30), fleet.later(30)
    assert fleet.phase is RolloutPhase.OFF


def test_traffic_is_not_judged_if_that_is_asked() -> None:
    fleet = fleet_of(plan=attrs.evolve(PLAN, judged_by="acks"))
    fleet.fault = few_fail
    fleet.run(20)
    assert "traffic is not judged: by acks alone" in fleet.text()
    fleet.run(100)
    assert fleet.phase is RolloutPhase.OFF


def test_an_order_that_comes_while_traffic_is_looked_at_is_not_overtaken_by_what_is_found() -> None:
    fleet = fleet_of()
    fleet.fault = few_fail
    fleet.run(20)
    fleet.report()
    looking = fleet.rollouts.looking()
    next(looking)
    fleet.rollouts.order(lambda progress: progress.abort("an operator"), "abort")
    fleet.apply()
    for _ in looking:
        pass
    assert fleet.rollouts.finding.worse
    fleet.rollouts.tick()
    fleet.settle()
    assert fleet.reason == "an operator"


def test_after_an_internal_error_in_judging_answers_alone_count(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of()
    fleet.rate = 0.5
    fleet.run(60)
    assert "waits for more traffic" in fleet.text()
    monkeypatch.delattr(TrafficTable, "edges")
    with capture_logs() as logs:
        fleet.run(120)
    assert fleet.phase is RolloutPhase.OFF
    assert {each["event"] for each in logs if each["log_level"] == "error"} == {
        "internal error in judging traffic: acks alone count"
    }


def test_connections_without_a_healthy_endpoint_are_judged() -> None:
    fleet = fleet_of()
    fleet.fault = lambda number: [row(UPSTREAM, connections=number - 10, none_healthy=10)]
    fleet.rows_of = lambda client: (  # type: ignore[method-assign]
        fleet.fault(200) if client in fleet.canary() else [row(UPSTREAM, connections=200)]
    )
    fleet.run(30)
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    assert fleet.reason.startswith("connections of edge.infra to good.example.com:80 fail more often: ")


def test_a_bound_on_errors_takes_back_what_exceeds_it_and_lets_pass_what_does_not() -> None:
    plan = attrs.evolve(PLAN, judged_by="errors < 2%")
    fleet = fleet_of(plan=plan)
    fleet.errors = {client.proxy.name: 0.08 for client in fleet.clients}
    fleet.run(30)
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    assert "fail at 2.00% or more" in fleet.reason
    fleet = fleet_of(plan=plan)
    fleet.errors = {client.proxy.name: 0.004 for client in fleet.clients}
    fleet.run(300)
    assert fleet.phase is RolloutPhase.OFF


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("not worse", RolloutCondition(not_worse=True)),
        ("acks", RolloutCondition()),
        ("errors < 1%", RolloutCondition(errors=0.01)),
        ("errors<0.5 %  and  not  worse", RolloutCondition(not_worse=True, errors=0.005)),
    ],
)
def test_conditions(text: str, found: RolloutCondition) -> None:
    assert condition_of(text) == found


@pytest.mark.parametrize(
    "text",
    ["", "worse", "errors < 0%", "errors < 100%", "errors > 1%", "acks and not worse", "errors < 1% and errors < 2%"],
)
def test_other_texts_are_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(ValueError, match="is not a condition: those are 'not worse', 'errors < 1%'"):
        condition_of(text)
    with pytest.raises(RolloutError, match="is not a condition"):
        plan_of(judged_by=text)
