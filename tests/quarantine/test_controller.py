"""Quarantine over a whole World: what clients refuse costs the object that they refuse."""

from __future__ import annotations

import pytest

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import LISTENER, ROUTE
from mesh_pilot.safety.quarantine.options import QuarantineOptions
from mesh_pilot.world import history
from mesh_pilot.xds.ads.messages import Variant
from tests.quarantine.fleet import MARK, Fleet, RefusingClient
from tests.support.worlds import sidecar

GATEWAY = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  selector: {app: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: infra}
spec:
  hosts: [web.example.com]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.9.9.9}]
"""


def route(tenant: str, value: str, *, host: str = "") -> str:
    """A tenant's VirtualService, with a header that tells its version."""
    return f"""
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {tenant}, namespace: {tenant}}}
spec:
  hosts: [{host or tenant + ".example.com"}]
  gateways: [infra/edge, mesh]
  http:
  - headers: {{response: {{set: {{x-version: "{value}"}}}}}}
    directResponse: {{status: 200}}
"""


def edge_of(name: str, *, ip: str = "10.1.1.1") -> Proxy:
    return sidecar(ip, name=name, namespace="infra", labels={"app": "edge"}, node_type="router")


EDGE = edge_of("edge-1")


def has(client: RefusingClient, text: str, type_url: str = ROUTE) -> bool:
    return any(text.encode() in resource.body for resource in client.has[type_url].values())


@pytest.fixture(params=list(Variant))
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history is full after a few changes. To be named before ``fleet``."""
    monkeypatch.setattr(history, "MAX_CHANGES", 3)


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("good", "good-1") + route("bad", "bad-1"))
    return fleet


def test_a_refused_object_is_served_in_its_last_accepted_version(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert has(edge, "bad-1")
    assert [*fleet.withheld().values()] == [["VirtualService/bad/bad"]]
    assert fleet.quarantine.statistics().trials == 1


def test_later_edits_of_others_take_effect(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert has(edge, "good-2") and has(edge, "bad-1")
    assert edge.refusals == 1


def test_an_object_that_was_never_accepted_is_left_out(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("new", MARK) + route("good", "good-2"))
    fleet.settle()
    assert has(edge, "good-2") and not has(edge, "new.example.com")
    assert [*fleet.withheld().values()] == [["VirtualService/new/new"]]


def test_a_client_that_restarts_is_sent_nothing_that_it_refuses(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    edge = fleet.restart(edge)
    fleet.settle()
    assert edge.refusals == 0
    assert has(edge, "good-1") and has(edge, "bad-1")


def test_what_two_identities_refuse_is_sent_to_no_other_client_of_the_build(fleet: Fleet) -> None:
    fleet.join(EDGE, identity="one")
    fleet.join(edge_of("edge-2"), identity="two")
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert "all proxies of envoy 1.40.0" in fleet.withheld()
    other = fleet.join(sidecar(namespace="elsewhere"))
    fleet.settle()
    assert other.refusals == 0


def test_clients_of_another_build_get_what_they_accept(fleet: Fleet, variant: Variant) -> None:
    fleet.join(EDGE, variant)
    newer = fleet.join(
        sidecar(name="edge-2", namespace="infra", labels={"app": "edge"}, node_type="router"),
        marks=frozenset(),
        build="envoy 2",
    )
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert has(newer, MARK)
    assert [*fleet.withheld()] == ["proxies of spiffe://cluster.local/ns/infra/sa/default with envoy 1.40.0"]


def test_it_ends_when_the_object_changes(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    fleet.edit(route("bad", "bad-2"))
    fleet.settle()
    assert has(edge, "bad-2")
    assert not fleet.withheld() and not fleet.world.overlays


def test_it_ends_when_the_object_is_deleted(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    fleet.delete("VirtualService", "bad", "bad")
    fleet.settle()
    assert not has(edge, "bad.example.com")
    assert not fleet.withheld() and not fleet.world.overlays


def test_an_object_that_changes_to_another_refused_version_stays_at_the_accepted_one(
    fleet: Fleet, variant: Variant
) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    for number in range(3):
        fleet.edit(route("bad", f"{MARK}-{number}"))
        fleet.settle()
    assert has(edge, "bad-1")
    assert edge.refusals == 3


def test_of_many_that_changed_together_only_the_guilty_is_withheld(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant, words="no, and I do not say why")
    fleet.settle()
    fleet.edit("".join(route(f"tenant-{n}", f"v-{n}") for n in range(30)) + route("bad", MARK))
    fleet.settle()
    assert all(has(edge, f"v-{n}") for n in range(30)) and has(edge, "bad-1")
    assert [*fleet.withheld().values()] == [["VirtualService/bad/bad"]]
    assert fleet.quarantine.statistics().trials <= 12


def test_a_new_client_that_knows_nothing_gets_all_that_it_accepts(fleet: Fleet, variant: Variant) -> None:
    fleet.edit("".join(route(f"tenant-{n}", f"v-{n}") for n in range(30)) + route("bad", MARK))
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    assert all(has(edge, f"v-{n}") for n in range(30)) and not has(edge, "bad.example.com")


def test_a_refusal_that_another_client_in_the_same_place_contradicts_concerns_one_alone(
    fleet: Fleet, variant: Variant
) -> None:
    good = fleet.join(edge_of("edge-1", ip="10.1.1.2"), variant, frozenset())
    alone = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert has(good, MARK) and has(alone, "bad-1")
    (domain,) = fleet.withheld()
    assert domain == f"{EDGE.id} at {EDGE.identity} alone"
    assert not fleet.quarantine.held()


def test_a_refused_gateway_does_not_take_the_listeners_of_others(variant: Variant) -> None:
    fleet = Fleet()
    fleet.edit(GATEWAY)
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(GATEWAY.replace("name: edge", "name: other").replace("80", "81").replace('"*"', f"{MARK}.com"))
    fleet.edit(route("good", "good-1"))
    fleet.settle()
    assert has(edge, "good-1") and "0.0.0.0_80" in edge.has[LISTENER]


def test_more_objects_than_the_limit_are_held() -> None:
    fleet = Fleet(QuarantineOptions(max_objects=2))
    fleet.edit(GATEWAY + route("good", "good-1"))
    edge = fleet.join(EDGE)
    fleet.settle()
    for number in range(3):
        fleet.edit(route(f"bad-{number}", f"{MARK}-{number}"))
        fleet.settle()
    assert sum(map(len, fleet.withheld().values())) == 2
    (held,) = fleet.quarantine.held()
    assert "more than 2 objects" in held.why
    assert has(edge, "good-1")


def test_more_trials_than_the_limit_are_held() -> None:
    fleet = Fleet(QuarantineOptions(trials_per_minute=3))
    fleet.edit(GATEWAY + route("good", "good-1"))
    fleet.join(EDGE, words="no")
    fleet.settle()
    fleet.edit("".join(route(f"tenant-{n}", "x") for n in range(30)) + route("bad", MARK))
    fleet.settle()
    (held,) = fleet.quarantine.held()
    assert "more than 3 trials a minute" in held.why


def test_a_client_that_refuses_whatever_changed_or_not_withholds_nothing(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    edge.marks = frozenset(("example.com",))
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert not fleet.withheld()
    assert fleet.quarantine.held()
    assert fleet.quarantine.statistics().trials == 1


def test_a_trial_whose_client_leaves_ends(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    edge.look()
    fleet.leave(edge)
    fleet.settle()
    assert not fleet.world.overlays and not fleet.withheld()


def test_nothing_is_computed_and_nothing_is_decided_while_nothing_is_refused(fleet: Fleet, variant: Variant) -> None:
    fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", "bad-2"))
    fleet.settle()
    assert not fleet.world.overlays
    assert fleet.quarantine.statistics().trials == 0 and fleet.quarantine.take_events() == []


def test_an_internal_error_costs_neither_the_stream_nor_what_is_withheld(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = fleet.join(EDGE)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr("mesh_pilot.safety.quarantine.cases.suspects", fail)
        fleet.edit(route("good", f"{MARK}-2"))
        fleet.settle()
    assert [*fleet.withheld().values()] == [["VirtualService/bad/bad"]]
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert has(edge, "good-2") and has(edge, "bad-1")


def test_a_second_refusal_of_the_same_response_is_ignored(fleet: Fleet) -> None:
    edge = fleet.join(EDGE)
    fleet.settle()
    stream = edge.stream
    for _ in range(3):
        edge._ask(ROUTE, {"http.80"}, nonce=stream.statistics()[-1].nonce, error="no")
    fleet.settle()
    assert fleet.quarantine.statistics().trials == 0


def test_what_was_accepted_longer_ago_than_is_remembered_is_not_taken_away(forgetful: None, fleet: Fleet) -> None:
    honest = fleet.join(sidecar(name="honest", namespace="one"))
    fleet.settle()
    for number in range(9):
        fleet.edit(route("unseen", f"unseen-{number}").replace("[infra/edge, mesh]", "[infra/none]"))
    fleet.settle()
    liar = fleet.join(sidecar(name="liar", namespace="two"), marks=frozenset({"good-1"}))
    fleet.settle()
    assert not has(liar, "good-1")
    fleet.restart(honest)
    fleet.settle()
    assert has(fleet.clients[-1], "good-1")


def test_after_more_changes_than_are_remembered_the_last_accepted_version_is_known(
    forgetful: None, fleet: Fleet
) -> None:
    edge = fleet.join(EDGE)
    fleet.settle()
    for number in range(9):
        fleet.edit(route("unseen", f"unseen-{number}").replace("[infra/edge, mesh]", "[infra/none]"))
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert has(edge, "bad-1") and has(edge, "good-1")
    assert fleet.quarantine.statistics().trials == 1


def test_after_a_restart_of_the_control_plane_a_client_does_not_lose_what_others_wrote(variant: Variant) -> None:
    tenants = [f"tenant-{number}" for number in range(8)]
    good = "".join(route(tenant, f"{tenant} is served") for tenant in tenants)
    before, after = Fleet(), Fleet()
    before.edit(GATEWAY + good + route("bad", "bad-1"))
    edge = before.join(EDGE, variant)
    before.settle()
    after.edit(GATEWAY + good + route("bad", MARK))
    after.take_over(edge)
    happens = True
    while happens:
        happens = after.step()
        assert all(has(edge, f"{tenant} is served") for tenant in tenants)
    after.settle()
    assert all(has(edge, f"{tenant} is served") for tenant in tenants)
    assert [*after.withheld().values()] == [["VirtualService/bad/bad"]]
