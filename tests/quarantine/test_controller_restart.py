"""Verdicts over a restart of the control plane: nobody is sent again what the build has refused."""

from __future__ import annotations

import pytest

from mesh_pilot.model.events import Item, Quarantine, Replace, Synced
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.quarantine.verdicts import SOURCE as QUARANTINE
from mesh_pilot.safety.state.codec import decode, encode
from mesh_pilot.xds.ads.messages import Variant
from tests.quarantine.fleet import MARK, Fleet
from tests.quarantine.test_controller import EDGE, GATEWAY, edge_of, has, route
from tests.support.worlds import SOURCE

OBJECTS = GATEWAY + route("good", "good-1") + route("bad", "bad-1")


def of(fleet: Fleet, source: str) -> tuple[Item, ...]:
    """The picture of a source as the next run finds it."""
    return tuple(decode(encode(item)) for item in fleet.world.items_of(source).values())


def restarted(fleet: Fleet) -> Fleet:
    """Another control plane, with the state that this one leaves."""
    after, kept = Fleet(), of(fleet, QUARANTINE)
    after.quarantine.seed(kept)
    pictures = [Replace(SOURCE, (), of(fleet, SOURCE)), Replace(QUARANTINE, (), kept)]
    after.apply(*pictures, Synced(QUARANTINE))
    after.settle()
    return after


@pytest.fixture(params=list(Variant))
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


@pytest.fixture
def fleet(variant: Variant) -> Fleet:
    """A fleet in which an object is withheld."""
    fleet = Fleet()
    fleet.edit(OBJECTS)
    fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert fleet.withheld()
    return fleet


def test_a_new_client_is_not_sent_what_was_withheld(fleet: Fleet, variant: Variant) -> None:
    after = restarted(fleet)
    assert after.withheld() == fleet.withheld()
    edge = after.join(edge_of("edge-2"), variant)
    after.settle()
    assert has(edge, "bad-1") and has(edge, "good-1")
    assert edge.refusals == 0
    assert after.quarantine.statistics().trials == 0


def test_a_changed_object_is_tried_again(fleet: Fleet, variant: Variant) -> None:
    after = restarted(fleet)
    edge = after.join(edge_of("edge-2"), variant)
    after.edit(route("bad", "bad-2"))
    after.settle()
    assert after.withheld() == {}
    assert has(edge, "bad-2")
    assert after.world.items_of(QUARANTINE) == {}


def test_verdicts_of_a_scope_and_of_a_build_stay_apart(variant: Variant) -> None:
    """A verdict on a build that ends leaves those of its scopes, also after a restart."""
    fleet = Fleet()
    fleet.edit(OBJECTS)
    client = fleet.join(EDGE, variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    fleet.edit(route("good", MARK))
    fleet.settle()
    before = fleet.withheld()
    after = restarted(fleet)
    assert after.withheld() == before
    for one in (fleet, after):
        one.edit(route("bad", "bad-3"))
        one.settle()
    assert after.withheld() == fleet.withheld() != before
    assert client.refusals


def test_trials_are_not_taken_up_again() -> None:
    fleet = Fleet()
    fleet.quarantine.seed([Quarantine("client 1", (), is_trial=True), Quarantine("empty", ())])
    assert fleet.quarantine.take_events() == [Synced(QUARANTINE)]
    assert isinstance(fleet.quarantine, QuarantineController)


def test_an_object_that_is_gone_when_the_next_run_begins_is_forgotten(fleet: Fleet, variant: Variant) -> None:
    after, kept = Fleet(), of(fleet, QUARANTINE)
    after.world.expect("late")
    after.quarantine.seed(kept)
    after.apply(Replace(QUARANTINE, (), kept), Synced(QUARANTINE))
    after.settle()
    assert after.withheld() == fleet.withheld(), "a source may still bring it"
    after.edit(GATEWAY + route("good", "good-1"))
    after.apply(Synced("late"))
    after.settle()
    assert after.withheld() == {} and after.quarantine.statistics().objects == 0
    assert after.world.items_of(QUARANTINE) == {}


def test_an_object_that_changed_before_the_next_run_began_is_tried_again(fleet: Fleet, variant: Variant) -> None:
    after, kept = Fleet(), of(fleet, QUARANTINE)
    after.world.expect("late")
    after.quarantine.seed(kept)
    after.apply(Replace(QUARANTINE, (), kept), Synced(QUARANTINE))
    after.edit(GATEWAY + route("good", "good-1") + route("bad", "bad-2"))
    after.apply(Synced("late"))
    edge = after.join(EDGE, variant)
    after.settle()
    assert after.withheld() == {} and has(edge, "bad-2")
