"""Rollouts over streams: the canary has the new values, all others have the bytes that they had."""

from __future__ import annotations

import pytest

from mesh_pilot.app.sources import PolicyKeySets
from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.model.config import Origin
from mesh_pilot.model.events import MeshConfigValue, Replace, RolloutPlan, Synced, Upsert
from mesh_pilot.model.resource import ROUTE
from mesh_pilot.safety.rollout.controller import SOURCE as ROLLOUT
from mesh_pilot.safety.rollout.progress import RolloutPhase
from mesh_pilot.safety.state.codec import decode, encode
from mesh_pilot.xds.ads.messages import Nack, Variant
from mesh_pilot.xds.ads.warming import NOT_IN_USE
from tests.quarantine.fleet import MARK, RefusingClient
from tests.quarantine.test_controller import GATEWAY, edge_of, has, route
from tests.quarantine.test_controller_property import BASE
from tests.rollout.fleet import RolloutFleet
from tests.support.worlds import SOURCE

PLAN = RolloutPlan((25.0, 50.0, 100.0), interval=60.0)


def fleet_of(clients: int = 4, variant: Variant = Variant.DELTA, always: RolloutPlan | None = None) -> RolloutFleet:
    fleet = RolloutFleet()
    fleet.edit(GATEWAY + route("good", "good-1") + route("bad", "bad-1"))
    fleet.rollouts.progress._always = always
    for number in range(clients):
        fleet.join(edge_of(f"edge-{number}"), variant)
    fleet.settle()
    return fleet


def with_text(fleet: RolloutFleet, text: str) -> list[RefusingClient]:
    return [client for client in fleet.clients if has(client, text)]


@pytest.mark.parametrize("variant", list(Variant))
def test_a_good_change_goes_on_to_all_by_steps(variant: Variant) -> None:
    fleet = fleet_of(8, variant)
    fleet.arm(PLAN)
    before = {id(client): client.held for client in fleet.clients}
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    counts = [len(with_text(fleet, "good-2"))]
    for client in fleet.clients:
        if client not in fleet.canary():
            assert client.held == before[id(client)]
    while fleet.phase is RolloutPhase.RUNNING:
        fleet.later(30)
        counts.append(len(with_text(fleet, "good-2")))
    assert counts == [2, 2, 4, 4, 8, 8, 8]
    assert not fleet.world.overlays
    fleet.edit(route("good", "good-3"))
    fleet.settle()
    assert len(with_text(fleet, "good-3")) == 8, "the rollout is over: the next change is none"


@pytest.mark.parametrize("variant", list(Variant))
def test_a_refused_change_is_taken_back_by_itself(variant: Variant) -> None:
    fleet = fleet_of(8, variant)
    fleet.arm(PLAN)
    fleet.edit(route("bad", MARK) + route("good", "good-2"))
    fleet.settle()
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    assert [client.refusals for client in fleet.clients].count(0) >= 6
    assert len(with_text(fleet, "bad-1")) == len(with_text(fleet, "good-1")) == 8
    assert fleet.withheld() == {}, "quarantine had nothing to do"
    fleet.edit(route("bad", "bad-3"))  # the fix: all begins again, with the innocent one
    fleet.settle()
    assert fleet.phase is RolloutPhase.RUNNING
    assert len(with_text(fleet, "bad-3")) == len(with_text(fleet, "good-2")) == 2
    fleet.later(60), fleet.later(60), fleet.later(60)
    assert fleet.phase is RolloutPhase.OFF
    assert len(with_text(fleet, "bad-3")) == 8


@pytest.mark.parametrize("variant", list(Variant))
def test_a_change_that_the_canary_accepts_and_never_uses_is_taken_back(variant: Variant) -> None:
    fleet = fleet_of(8, variant)
    fleet.arm(PLAN)
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    canary = fleet.canary()[0]
    (table,) = canary.stream.client_state(ROUTE).values()
    nack = Nack(canary.proxy, ROUTE, "", "", NOT_IN_USE, (table.name,), (), (table,), is_warming=True)
    fleet.rollouts.warms(canary._number, nack)
    fleet.settle()
    assert fleet.phase is RolloutPhase.TAKEN_BACK
    assert "does not use RDS" in fleet.rollouts.progress.state.reason
    assert len(with_text(fleet, "good-1")) == 8
    assert fleet.withheld() == {}, "quarantine had nothing to do"


def test_a_refused_change_that_is_taken_out_of_the_source_leaves_nothing() -> None:
    fleet = fleet_of()
    fleet.arm(PLAN)
    fleet.edit(route("bad", MARK))
    fleet.settle()
    fleet.edit(route("bad", "bad-1"))
    fleet.settle()
    assert fleet.phase is RolloutPhase.OFF
    assert not fleet.world.overlays


def test_a_promoted_change_that_is_refused_is_withheld_by_quarantine() -> None:
    fleet = fleet_of()
    fleet.arm(PLAN)
    fleet.edit(route("bad", MARK))
    fleet.settle()
    fleet.rollouts.order(lambda progress: progress.promote(), "promote")
    fleet.settle()
    assert fleet.phase is RolloutPhase.OFF
    assert [*fleet.withheld().values()] == [["VirtualService/default/bad"]] or fleet.withheld()
    assert len(with_text(fleet, "bad-1")) == 4


def test_what_is_withheld_by_quarantine_stays_so_during_a_rollout_of_something_else() -> None:
    fleet = fleet_of()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert fleet.withheld()
    fleet.arm(PLAN)
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert len(with_text(fleet, "good-2")) == 1
    assert len(with_text(fleet, "bad-1")) == 4
    fleet.later(60), fleet.later(60), fleet.later(60)
    assert len(with_text(fleet, "good-2")) == 4
    assert len(with_text(fleet, "bad-1")) == 4


def test_a_restart_goes_on_with_the_same_share_and_the_same_old_values() -> None:
    fleet = fleet_of(8)
    fleet.arm(PLAN)
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    fleet.later(60)
    chosen = {client.proxy.id for client in fleet.canary()}
    assert len(chosen) == 4
    after = RolloutFleet()
    kept = tuple(decode(encode(item)) for item in fleet.picture(ROLLOUT))
    after.rollouts.seed(kept)
    after.world.apply([Replace(SOURCE, (), fleet.picture(SOURCE)), Replace(ROLLOUT, (), kept), Synced(ROLLOUT)])
    for number in range(8):
        after.join(edge_of(f"edge-{number}"))
        after.settle()
    assert {client.proxy.id for client in after.canary()} == chosen
    assert {client.proxy.id for client in with_text(after, "good-2")} == chosen
    after.later(60), after.later(60)
    assert after.phase is RolloutPhase.OFF
    assert len(with_text(after, "good-2")) == 8


@pytest.mark.parametrize("variant", list(Variant))
def test_the_correction_of_what_quarantine_withholds_is_rolled_out_and_nobody_refuses_again(variant: Variant) -> None:
    fleet = fleet_of(8, variant)
    fleet.edit(route("bad", MARK))
    fleet.settle()
    refusals = sum(client.refusals for client in fleet.clients)
    fleet.arm(PLAN)
    fleet.edit(route("bad", "bad-2"))
    fleet.settle()
    assert (len(with_text(fleet, "bad-2")), len(with_text(fleet, "bad-1"))) == (2, 6)
    while fleet.phase is RolloutPhase.RUNNING:
        fleet.later(60)
    assert len(with_text(fleet, "bad-2")) == 8
    assert sum(client.refusals for client in fleet.clients) == refusals
    assert fleet.withheld() == {}


def test_what_is_refused_and_not_made_of_a_changed_object_is_quarantines() -> None:
    """R1: no proxy of the canary takes a change back by what it was sent nothing of."""
    fleet = fleet_of(4)
    entry = BASE.split("---")[2]
    assert "kind: ServiceEntry" in entry
    fleet.edit(entry)
    fleet.settle()
    fleet.arm(PLAN)
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    (client,) = fleet.canary()
    client.marks |= {"10.9.9.77"}
    fleet.edit(entry.replace("10.9.9.9", "10.9.9.77"))  # endpoints, which reach all at once
    fleet.settle()
    assert fleet.phase is RolloutPhase.RUNNING
    assert fleet.withheld() or fleet.quarantine.held(), "its reason is another one, and quarantine knows of it"
    assert not fleet.rollouts._clients[client._number].deferred


def test_settings_of_the_mesh_are_rolled_out() -> None:
    fleet = fleet_of(4)
    fleet.arm(PLAN)
    before = {client._number: client.held for client in fleet.clients}
    mesh = decode_mesh({"accessLogFile": "/dev/stdout"}, origin=Origin(SOURCE, "mesh.yaml"))
    fleet.apply(Upsert(SOURCE, MeshConfigValue(mesh)))
    fleet.settle()
    assert fleet.phase is RolloutPhase.RUNNING
    changed = [client for client in fleet.clients if client.held != before[client._number]]
    assert changed == fleet.canary()
    assert len(changed) == 1
    while fleet.phase is RolloutPhase.RUNNING:
        fleet.later(60)
    assert all(client.held == changed[0].held for client in fleet.clients)


def test_key_sets_of_old_policies_are_wanted_while_some_proxies_have_them() -> None:
    def policy(issuer: str) -> str:
        return f"""
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: jwt, namespace: infra}}
spec: {{jwtRules: [{{issuer: "https://{issuer}.test", jwksUri: "https://{issuer}.test/keys"}}]}}
"""

    fleet = fleet_of(4)
    fleet.edit(policy("first"))
    fleet.arm(PLAN)
    fleet.edit(policy("second"))
    demand = PolicyKeySets(fleet.world)
    assert sorted(ref.url for ref in demand.wanted_key_sets()) == [
        "https://first.test/keys",
        "https://second.test/keys",
    ]
    while fleet.phase is RolloutPhase.RUNNING:
        fleet.later(60)
    assert [ref.url for ref in demand.wanted_key_sets()] == ["https://second.test/keys"]
