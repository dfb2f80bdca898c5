"""Automatic addresses: who gets one, and that it follows from the world alone."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.events import Delete, Upsert, item_key
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world import World
from mesh_pilot.world.auto_addresses import SLOTS, allocate
from tests.support.worlds import SOURCE, configs, update, world_of

RANGE = ipaddress.ip_network("240.240.0.0/16")


def entry(name: str, more: str = "", *, namespace: str = "shop", resolution: str = "DNS") -> str:
    return f"""
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  hosts: [{name}.example]
  resolution: {resolution}
  ports: [{{number: 5432, name: tcp, protocol: TCP}}]
  {more}
"""


def address(world: World, host: str, namespace: str = "shop") -> str:
    service = world.services.peek(ServiceKey(host, namespace))
    assert service is not None
    return service.auto_address


def test_a_service_entry_without_addresses_is_given_one() -> None:
    world = world_of(entry("db") + entry("has", "addresses: [10.9.0.1]"))
    assert ipaddress.ip_address(address(world, "db.example")) in RANGE
    assert address(world, "has.example") == ""


def test_services_that_no_lookup_can_name_get_none() -> None:
    wild = entry("wild", "endpoints: [{address: 10.0.0.9}]", resolution="STATIC")
    world = world_of(entry("any", resolution="NONE") + wild.replace("wild.example", "'*.wild.example'"))
    assert address(world, "any.example") == ""
    assert address(world, "*.wild.example") == ""


def test_the_same_host_in_two_namespaces_has_one_address() -> None:
    world = world_of(entry("db") + entry("db", namespace="other"))
    assert address(world, "db.example") == address(world, "db.example", "other") != ""


def test_a_service_that_gets_addresses_of_its_own_gives_its_automatic_one_back() -> None:
    world = world_of(entry("db"))
    update(world, entry("db", "addresses: [10.9.0.1]"))
    assert address(world, "db.example") == ""
    update(world, entry("db"))
    assert address(world, "db.example") != ""


def _colliding() -> tuple[str, str]:
    """Two names whose hosts want the same address."""
    seen: dict[str, str] = {}
    for number in range(SLOTS):
        name = f"n{number}"
        wanted = allocate([f"{name}.example"])[f"{name}.example"]
        if wanted in seen:
            return seen[wanted], name
        seen[wanted] = name
    raise AssertionError("no two names collide")


def test_of_hosts_that_want_one_address_the_first_by_name_has_it_in_whatever_order_they_come() -> None:
    first, second = _colliding()
    forth = world_of(entry(first) + entry(second))
    back = world_of(entry(second))
    alone = address(back, f"{second}.example")
    update(back, entry(first))
    for name in (first, second):
        assert address(forth, f"{name}.example") == address(back, f"{name}.example")
    assert address(forth, f"{first}.example") != address(forth, f"{second}.example")
    # With the other gone, the later one has what it wants.
    gone = configs(entry(first))[0]
    forth.apply([Delete(SOURCE, item_key(gone))])
    assert address(forth, f"{second}.example") == alone


def test_an_address_that_moves_is_seen_by_who_reads_the_service() -> None:
    first, second = sorted(_colliding())
    world = world_of(entry(second))
    key = ServiceKey(f"{second}.example", "shop")
    before = world.services_named.peek(key.host)[0].auto_address
    world.apply([Upsert(SOURCE, c) for c in configs(entry(first))])
    assert world.services_named.peek(key.host)[0].auto_address == address(world, key.host) != before


def test_more_hosts_than_addresses_leave_some_without() -> None:
    given = allocate(f"h{n}" for n in range(SLOTS + 10))
    assert len(given) == len(set(given.values())) == SLOTS
    assert all(ipaddress.ip_address(a) in RANGE for a in list(given.values())[::1000])


@given(st.permutations([f"h{n}.example" for n in range(12)]))
def test_addresses_do_not_depend_on_order(hosts: list[str]) -> None:
    assert allocate(hosts) == allocate(sorted(hosts))
