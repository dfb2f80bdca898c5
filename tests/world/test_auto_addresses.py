"""Automatic addresses: who gets one, and that it follows from the world alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.events import Delete, Upsert, item_key
from mesh_pilot.model.service import EPOCH, Port, Protocol, Service, ServiceKey
from mesh_pilot.world import World, auto_addresses
from mesh_pilot.world.auto_addresses import SLOTS, AutoAddresses, to_ipv6
from tests.support.worlds import SOURCE, configs, update, world_of

RANGE = ipaddress.ip_network("241.0.0.0/8")


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
    """Two names, in order, whose hosts want the same address."""
    seen: dict[str, str] = {}
    for number in range(SLOTS):
        name = f"n{number}"
        wanted = laid_out({f"{name}.example": EPOCH})[f"{name}.example"]
        if wanted in seen:
            return min(seen[wanted], name), max(seen[wanted], name)
        seen[wanted] = name
    raise AssertionError("no two names collide")


def laid_out(hosts: Mapping[str, datetime]) -> dict[str, str]:
    """The addresses as they are meant: each host, oldest first, has the next that is free from its hash on."""
    slots: dict[int, str] = {}
    for host in sorted(hosts, key=lambda host: (hosts[host], host)):
        slot = auto_addresses._slot_of(host)
        while slot in slots:
            slot = (slot + 1) % auto_addresses.SLOTS
        slots[slot] = host
    return {host: auto_addresses._address(slot) for slot, host in slots.items()}


COLLIDING = _colliding()


def test_of_hosts_of_one_age_that_want_one_address_the_first_by_name_has_it_in_whatever_order_they_come() -> None:
    first, second = COLLIDING
    forth = world_of(entry(first) + entry(second))
    back = world_of(entry(second))
    alone = address(back, f"{second}.example")
    update(back, entry(first))
    for name in (first, second):
        assert address(forth, f"{name}.example") == address(back, f"{name}.example")
    assert address(forth, f"{first}.example") == alone != address(forth, f"{second}.example")
    # With the other gone, the later one has what it wants.
    gone = configs(entry(first))[0]
    forth.apply([Delete(SOURCE, item_key(gone))])
    assert address(forth, f"{second}.example") == alone


def test_the_older_of_two_hosts_keeps_its_address() -> None:
    young, old = COLLIDING
    born = "{name: %s, namespace: shop, creationTimestamp: '%d-01-01T00:00:00Z'}"
    texts = [
        entry(name).replace(f"{{name: {name}, namespace: shop}}", born % (name, year))
        for name, year in ((old, 2020), (young, 2024))
    ]
    world = world_of(texts[0])
    before = address(world, f"{old}.example")
    update(world, texts[1])
    assert address(world, f"{old}.example") == before != address(world, f"{young}.example") != ""


def test_an_address_that_moves_is_seen_by_who_reads_the_service() -> None:
    first, second = COLLIDING
    world = world_of(entry(second))
    key = ServiceKey(f"{second}.example", "shop")
    before = world.services_named.peek(key.host)[0].auto_address
    world.apply([Upsert(SOURCE, c) for c in configs(entry(first))])
    assert world.services_named.peek(key.host)[0].auto_address == address(world, key.host) != before


def consul_service(name: str, *addresses: str, **changes: Any) -> Service:
    service = Service(
        f"{name}.service.consul",
        "default",
        (Port(5432, "tcp", Protocol.TCP),),
        addresses,
        registry="Consul",
        declared_by_users=False,
    )
    return attrs.evolve(service, **changes)


def test_services_of_registries_get_one_too_unless_they_have_an_address_or_none_on_purpose() -> None:
    world = world_of()
    others = {
        "virtual": consul_service("virtual", "10.9.0.1"),
        "headless": consul_service("headless", headless=True),
        "cluster": consul_service("cluster", namespaced_name=True),
    }
    world.apply([Upsert(SOURCE, service) for service in (consul_service("db"), *others.values())])
    assert ipaddress.ip_address(address(world, "db.service.consul", "default")) in RANGE
    for name in others:
        assert address(world, f"{name}.service.consul", "default") == ""


def test_a_service_that_comes_looks_at_its_neighbours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    world.apply([Upsert(SOURCE, consul_service(f"s{n}")) for n in range(300)])
    hashed: list[str] = []
    slot_of = auto_addresses._slot_of

    def counted(host: str) -> int:
        hashed.append(host)
        return slot_of(host)

    monkeypatch.setattr(auto_addresses, "_slot_of", counted)
    world.apply([Upsert(SOURCE, consul_service("more"))])
    world.apply([Upsert(SOURCE, consul_service("more", labels={"other": "labels"}))])
    assert hashed == ["more.service.consul"]


def test_a_copy_of_a_world_goes_its_own_way() -> None:
    addresses = AutoAddresses()
    addresses.put("a", EPOCH)
    copied = AutoAddresses()
    addresses.copy_to(copied)
    copied.remove("a")
    assert (addresses["a"] != "", copied["a"], len(addresses), len(copied)) == (True, "", 1, 0)


@pytest.mark.parametrize("slot", [0, 1, 300, SLOTS - 1])
def test_addresses_have_counterparts_of_ipv6(slot: int) -> None:
    address = auto_addresses._address(slot)
    assert ipaddress.ip_address(address) in RANGE
    assert address.rpartition(".")[2] not in ("0", "255")
    other = ipaddress.ip_address(to_ipv6(address))
    assert str(other) == to_ipv6(address)
    assert other in ipaddress.ip_network("2001:2::/48")
    assert int(other) & 0xFFFFFF == int(ipaddress.ip_address(address)) & 0xFFFFFF


CHANGES = st.lists(
    st.tuples(st.sampled_from([f"h{n}.example" for n in range(14)]), st.sampled_from([None, 2020, 2021, 2022])),
    max_size=40,
)


@given(CHANGES, st.sampled_from([16, 23, SLOTS]))
def test_addresses_depend_on_who_is_there_and_how_old_and_moves_are_told(
    changes: list[tuple[str, int | None]], slots: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto_addresses, "SLOTS", slots)
        addresses = AutoAddresses()
        there: dict[str, datetime] = {}
        for host, year in changes:
            before = {each: addresses[each] for each in there if each != host}
            if year is None:
                there.pop(host, None)
                moved = addresses.remove(host)
            else:
                there[host] = datetime(year, 1, 1, tzinfo=UTC)
                moved = addresses.put(host, there[host])
            assert {each: addresses[each] for each in there} == laid_out(there)
            assert moved >= {each for each, address in before.items() if addresses[each] != address}


def test_a_host_with_half_a_character_does_not_cost_the_others_their_addresses() -> None:
    addresses = AutoAddresses()
    addresses.put("a.b", EPOCH)
    addresses.put("\ud800.b", EPOCH)
    assert len({addresses["a.b"], addresses["\ud800.b"]}) == 2
