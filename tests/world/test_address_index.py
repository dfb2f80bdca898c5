"""The index over addresses: who has endpoints where, oldest service first."""

from __future__ import annotations

from mesh_pilot.engine import Index, Memo
from mesh_pilot.model.service import Endpoint, ServiceKey
from mesh_pilot.world.endpoints import AddressIndex
from mesh_pilot.world.indexes import ServiceEndpoints

OLD, NEW = ServiceKey("z.example.com", "shop"), ServiceKey("a.example.com", "shop")


def table() -> tuple[Index[str, tuple[ServiceEndpoints, ...]], AddressIndex]:
    index: Index[str, tuple[ServiceEndpoints, ...]] = Memo().index("endpoints_at", ())
    return index, AddressIndex(index, lambda key: (key is not OLD,))


def at(*addresses: str, port: int = 80) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(address, port, "http") for address in addresses)


def test_services_that_come_together_or_one_after_the_other_stand_in_order_of_age() -> None:
    index, addresses = table()
    addresses.put(NEW, (), at("1.1.1.1", "1.1.1.2"))
    addresses.put(OLD, (), at("1.1.1.1"))
    addresses.flush()
    assert index.peek("1.1.1.1") == ((OLD, at("1.1.1.1")), (NEW, at("1.1.1.1")))
    addresses.put(OLD, at("1.1.1.1"), at("1.1.1.1", "1.1.1.2"))
    addresses.flush()
    assert index.peek("1.1.1.2") == ((OLD, at("1.1.1.2")), (NEW, at("1.1.1.2")))


def test_a_service_that_leaves_an_address_leaves_the_others_there() -> None:
    index, addresses = table()
    addresses.put(OLD, (), at("1.1.1.1", "1.1.1.2"))
    addresses.put(NEW, (), at("1.1.1.1"))
    addresses.flush()
    addresses.put(OLD, at("1.1.1.1", "1.1.1.2"), at("1.1.1.3"))
    addresses.flush()
    assert dict(index.items()) == {"1.1.1.1": ((NEW, at("1.1.1.1")),), "1.1.1.3": ((OLD, at("1.1.1.3")),)}
    addresses.put(NEW, at("1.1.1.1"), ())
    addresses.flush()
    assert "1.1.1.1" not in index


def test_all_ports_of_a_service_at_an_address_stand_together() -> None:
    index, addresses = table()
    endpoints = (*at("1.1.1.1", port=80), *at("1.1.1.2", port=80), *at("1.1.1.1", port=90))
    addresses.put(OLD, (), endpoints)
    addresses.flush()
    assert index.peek("1.1.1.1") == ((OLD, (endpoints[0], endpoints[2])),)
    addresses.put(OLD, endpoints, endpoints[:2])
    addresses.flush()
    assert index.peek("1.1.1.1") == ((OLD, endpoints[:1]),)
