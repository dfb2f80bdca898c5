"""The facts about objects, from a World with quarantine, a rollout, guards and connected proxies."""

from __future__ import annotations

import attrs
import pytest

from mesh_pilot.explain.truth.facts import PlaneFacts, gather
from mesh_pilot.explain.truth.states import Truth, TruthState
from mesh_pilot.model.config import Origin, Problem
from mesh_pilot.model.events import NewValue, Rejected
from mesh_pilot.model.resource import ROUTE
from mesh_pilot.model.warming import Awaited, WaitKind, WarmingResource
from mesh_pilot.world.guard import HeldObjects
from mesh_pilot.xds.ads.messages import Variant
from mesh_pilot.xds.ads.status import Connection, StatusRegistry
from mesh_pilot.xds.ads.warming import Warming
from tests.quarantine.fleet import MARK, Fleet, RefusingClient
from tests.quarantine.test_controller import EDGE, GATEWAY, edge_of, has, route
from tests.support.worlds import SOURCE

BAD = ("config", "VirtualService", "bad", "bad")
GOOD = ("config", "VirtualService", "good", "good")


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("good", "good-1") + route("bad", "bad-1"))
    return fleet


def stream_of(client: RefusingClient) -> Connection:
    connection = StatusRegistry().connect(client.variant, "test")
    connection.stream, connection.proxy = client.stream, client.stream.proxy
    return connection


def facts_of(fleet: Fleet, **more: object) -> PlaneFacts:
    return attrs.evolve(gather(fleet.world, fleet.quarantine, None, {}, {}, fleet.catalog.as_written), **more)


def truth(fleet: Fleet, client: RefusingClient, key: tuple[str, ...] = BAD, **more: object) -> Truth:
    assert client.stream.proxy is not None
    return facts_of(fleet, **more).of_object(key, client.stream.proxy, [stream_of(client)])


@pytest.mark.parametrize("variant", list(Variant))
def test_an_object_is_in_force_where_it_was_accepted_and_absent_where_nothing_is_made_of_it(
    fleet: Fleet, variant: Variant
) -> None:
    edge = fleet.join(EDGE, variant)
    other = fleet.join(attrs.evolve(edge_of("other", ip="10.1.1.2"), labels={}), variant)
    fleet.settle()
    assert truth(fleet, edge).state is TruthState.IN_FORCE
    assert truth(fleet, other).state is TruthState.ABSENT
    assert truth(fleet, edge, ("config", "VirtualService", "bad", "unknown")).state is TruthState.ABSENT


@pytest.mark.parametrize("variant", list(Variant))
def test_a_withheld_object_has_the_version_that_the_proxy_accepted(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    before = tuple(fleet.world.current(BAD))
    fleet.edit(route("bad", MARK))
    fleet.settle()
    found = truth(fleet, edge)
    assert found.state is TruthState.WITHHELD and found.served == before
    assert found.why.startswith("edge-1.infra refused it; quarantine of ")
    assert truth(fleet, edge, GOOD).state is TruthState.IN_FORCE
    on_its_way = facts_of(fleet).on_its_way(BAD)
    assert on_its_way is not None and on_its_way.state is TruthState.WITHHELD
    assert facts_of(fleet).on_its_way(GOOD) is None


def test_an_object_in_a_rollout_has_its_old_version_at_all_others(fleet: Fleet) -> None:
    edge = fleet.join(EDGE)
    fleet.settle()
    new = tuple(fleet.world.current(BAD))
    change = NewValue(BAD, new, ())
    for has_new, served in ((False, ()), (True, new)):
        found = truth(fleet, edge, changes=(change,), phase="running", has_new=lambda node, own=has_new: own)
        assert (found.state, found.served) == (TruthState.CANARY, served)
        assert found.why.endswith("rollout: running")
    taken_back = attrs.evolve(change, is_held=True)
    found = truth(fleet, edge, changes=(taken_back,), reason="it was wrong", has_new=lambda node: True)
    assert (found.state, found.served) == (TruthState.TAKEN_BACK, ())
    assert found.why == "the version before is in force: it was wrong"


def test_an_object_that_is_refused_held_or_stale_says_so(fleet: Fleet) -> None:
    edge = fleet.join(EDGE)
    fleet.settle()
    held = HeldObjects(SOURCE, (BAD,), "8 of 10 objects went at once", 0.0)
    assert truth(fleet, edge, held={SOURCE: held}).state is TruthState.HELD
    assert truth(fleet, edge, held={SOURCE: held}).fix == f"mesh-pilot admin accept {SOURCE}"
    found = truth(fleet, edge, stale={SOURCE: "silent for 90 s"})
    assert (found.state, found.why) == (TruthState.STALE, f"{SOURCE}: silent for 90 s")
    fleet.apply(Rejected(SOURCE, Origin(SOURCE, "test.yaml", 1), (Problem("spec", "is wrong"),), BAD))
    assert truth(fleet, edge).state is TruthState.REFUSED
    assert "spec: is wrong" in facts_of(fleet).at_door(BAD).why


def test_an_object_warms_with_the_resource_that_is_made_of_it(fleet: Fleet) -> None:
    edge = fleet.join(EDGE)
    fleet.settle()
    assert has(edge, "bad-1") and edge.stream.proxy is not None
    connection = stream_of(edge)
    (table,) = edge.stream.client_state(ROUTE)
    awaited = (Awaited(WaitKind.SDS, "x"),)
    connection.warming = (Warming(WarmingResource(ROUTE, table, "", awaited), 11),)
    found = facts_of(fleet).of_object(BAD, edge.stream.proxy, [connection])
    assert (found.state, found.why) == (TruthState.WARMING, "it waits for SDS x")
