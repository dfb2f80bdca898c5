"""Replicas that see the same objects in different orders come to one order of owners: the leader's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import HostClaim
from mesh_pilot.world.host_owners import GRACE, Claim, HostPlace, Order, succession
from mesh_pilot.world.shared_order import MAX_BYTES, agreed, decode, encode
from tests.support.owned import BEGIN, OwnedWorld
from tests.world.test_host_owners import entry, provider

PLACE = HostPlace("", "be.test")
SHARED = {PLACE: (HostClaim("shop"), HostClaim("evil"))}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def namespaces(owned: OwnedWorld) -> list[str]:
    return [claim.namespace for claim in (owned.quarantine.orders() or {}).get(PLACE, ())]


# -- the rule

OBJECTS = st.lists(
    st.builds(
        lambda namespace, to, year: Claim(
            ConfigKey("ServiceEntry", namespace, f"n{year}"), to, datetime(year, 1, 1, tzinfo=UTC)
        ),
        st.sampled_from("abcd"),
        st.frozensets(st.sampled_from(("*", "x", "y")), min_size=1, max_size=2),
        st.integers(2000, 2030),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda claim: claim.key,
)


class Replica:
    """Sees objects of one host, one at a time."""

    def __init__(self) -> None:
        self.objects: list[Claim] = []
        self.order: Order = ()

    def see(self, *objects: Claim, gone: Sequence[Claim] = ()) -> None:
        had, self.objects = self.objects, [c for c in self.objects if c not in gone] + [*objects]
        self.order = succession(self.order, had, self.objects, NOW)

    def there(self) -> list[tuple[str, str]]:
        """The order of those that have objects: what others are sent depends on nothing else."""
        there = {(claim.key.namespace, to) for claim in self.objects for to in claim.to}
        return [(c.namespace, c.to) for c in self.order if (c.namespace, c.to) in there]


@given(st.data())
def test_replicas_that_see_objects_in_different_orders_end_with_the_same_owners(data: st.DataObject) -> None:
    objects = data.draw(OBJECTS)
    leader, follower = Replica(), Replica()
    for replica in (leader, follower):
        for claim in data.draw(st.permutations(objects)):
            replica.see(claim)
            if data.draw(st.booleans()):
                follower.order = agreed(leader.order, follower.order, NOW)
    gone = data.draw(st.lists(st.sampled_from(objects), unique=True))
    leader.see(gone=gone)
    follower.see(gone=gone)
    alone = leader.there()
    follower.order = agreed(leader.order, follower.order, NOW)
    assert follower.there() == leader.there() == alone
    assert agreed(leader.order, follower.order, NOW) == follower.order, "to take it again changes nothing"
    heir = agreed(leader.order, follower.order, NOW)  # who leads next, and what it says to others
    assert agreed(heir, leader.order, NOW)[: len(leader.order)] == leader.order


@given(st.data())
def test_what_a_replica_has_seen_and_the_leader_has_not_goes_last_in_its_own_order(data: st.DataObject) -> None:
    replica = Replica()
    for claim in data.draw(OBJECTS):
        replica.see(claim)
    named = data.draw(st.lists(st.sampled_from("abcd"), unique=True))
    order = agreed(tuple(map(HostClaim, named)), replica.order, NOW)
    assert [c.namespace for c in order if c.to == "*"][: len(named)] == named
    assert [c for c in order if c.namespace not in named] == [c for c in replica.order if c.namespace not in named]
    assert {*replica.order} <= {*order}


def test_who_left_too_long_ago_has_no_place_in_a_shared_order_either() -> None:
    own = (HostClaim("evil"), HostClaim("shop"))
    assert agreed((HostClaim("shop", left=NOW - GRACE - timedelta(1)), HostClaim("evil")), own, NOW) == own
    (first, _) = agreed((HostClaim("shop", left=NOW + timedelta(9)), HostClaim("evil")), own[:1], NOW)
    assert first == HostClaim("shop", left=NOW), "a clock that is ahead prolongs nothing"


def test_an_order_that_is_written_is_read_as_it_was() -> None:
    orders = {PLACE: (HostClaim("shop", "x", NOW), HostClaim("evil")), HostPlace("mesh", "*.a"): (HostClaim("b"),)}
    assert decode(encode(orders)[0]) == orders
    assert encode({}) == (b"[]", 0)


def test_an_order_has_no_more_hosts_than_the_store_takes() -> None:
    orders = {HostPlace("", f"h{n:05}.test"): SHARED[PLACE] for n in range(5000)}
    text, left_out = encode(orders)
    assert MAX_BYTES - 200 < len(text) <= MAX_BYTES
    assert decode(text) == dict([*orders.items()][: 5000 - left_out])


@pytest.mark.parametrize(
    "text",
    [b"", b"rubbish", b"{}", b"[1]", b'[{"gateway": "", "host": "x"}]', b"\xff", b"[" * 100_000,
     b'[{"gateway": "", "host": "x", "order": [{"namespace": 1}]}]'],
)  # fmt: skip
def test_anything_else_in_the_store_is_refused_with_a_reason(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(text)


def test_a_time_without_a_zone_is_of_utc_and_a_claim_counts_once() -> None:
    first = b'{"namespace":"a","left":"2026-01-01T00:00:00"}'
    read = decode(b'[{"gateway":"","host":"x","order":[%b,{"namespace":"b"},{"namespace":"a"}]}]' % first)
    assert read == {HostPlace("", "x"): (HostClaim("a", left=NOW), HostClaim("b"))}


# -- the keeper


def test_a_replica_that_saw_the_other_first_takes_the_shared_order_and_says_so() -> None:
    owned = OwnedWorld(entry("evil"))
    owned.put(entry("shop"))
    assert provider(owned) == "evil"
    with capture_logs() as logs:
        owned.quarantine.take(SHARED)
    owned.apply([])
    assert provider(owned) == provider(owned.restarted()) == "shop"
    (said,) = [log for log in logs if log["event"] == "host changed its owner"]
    assert (said["owner"], said["before"], said["reason"]) == ("shop", "evil", "the order that replicas share")
    revision = owned.world.revision
    owned.quarantine.take(SHARED)
    owned.apply([])
    assert owned.world.revision == revision, "to take it again changes nothing"


def test_a_new_replica_begins_with_the_shared_order_instead_of_age() -> None:
    owned = OwnedWorld(entry("evil") + entry("shop"), shared=SHARED)
    assert provider(owned) == "shop" and namespaces(owned) == ["shop", "evil"]
    owned.pass_time(minutes=11)
    owned.put(entry("bank"))
    assert provider(owned, "dev") == "shop" and namespaces(owned) == ["shop", "evil", "bank"]


def test_objects_on_their_way_find_the_places_that_the_leader_gave_them() -> None:
    owned = OwnedWorld(entry("evil"))
    owned.quarantine.take(SHARED)
    owned.apply([])
    assert provider(owned) == "evil"
    owned.put(entry("shop"))
    assert provider(owned) == "shop"
    owned.pass_time(minutes=11)
    owned.put(entry("bank", host="x.test"))
    assert namespaces(owned) == ["shop", "evil"], "who has objects stays"


def test_places_of_objects_that_never_come_are_forgotten() -> None:
    owned = OwnedWorld(entry("evil"))
    owned.quarantine.take({PLACE: SHARED[PLACE], HostPlace("mesh", "gone.test"): SHARED[PLACE]})
    owned.apply([])
    assert len(owned.owners()) == 2
    owned.pass_time(minutes=11)
    owned.put(entry("bank", host="x.test"))
    assert not owned.owners() and not owned.quarantine._orders and not owned.quarantine._leaving


def test_hosts_that_the_shared_order_does_not_name_stay_with_whom_they_are() -> None:
    owned = OwnedWorld(entry("evil") + entry("bank", host="x.test"))
    owned.put(entry("shop") + entry("dev", host="x.test"))
    owned.quarantine.take({})
    owned.quarantine.take({HostPlace("", "other.test"): SHARED[PLACE]})
    owned.apply([])
    assert provider(owned) == "evil" and provider(owned, "shop", "x.test") == "bank"


def test_before_its_first_full_picture_a_replica_has_no_order_for_others() -> None:
    owned = OwnedWorld(entry("evil"))
    assert owned.quarantine.orders() == {}
    changed = owned.quarantine.changed
    owned.put(entry("shop"))
    assert changed.is_set()
    assert owned.quarantine.orders() == {PLACE: (HostClaim("evil"), HostClaim("shop"))}
    assert owned.now == BEGIN
