"""Routes of Consul's chains that lead to another service lead to that service's port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mesh_pilot.consul.mesh import ConsulMesh, MeshSettings, ServiceFacts
from mesh_pilot.consul.mesh.values import ClientPort

ROUTER = {"Routes": [{"Match": {"HTTP": {"PathPrefix": "/admin"}}, "Destination": {"Service": "admin"}}]}
SPLITTER = {"Splits": [{"Weight": 50}, {"Weight": 50, "Service": "admin"}]}
REDIRECT = {"Redirect": {"Service": "admin"}}


def ports(*numbers: int, **named: int) -> ServiceFacts:
    every = (*(ClientPort(n, "http") for n in numbers), *(ClientPort(n, name) for name, n in named.items()))
    return ServiceFacts(client_ports=every)


def spec_of(mesh: ConsulMesh, service: str = "shop") -> Mapping[str, Any]:
    made = {o.name: o for part in mesh.flush() for change in part for o in change.objects if o.kind == "VirtualService"}
    return made[f"consul-{service}"].spec


def mesh_of(kind: str, entry: dict[str, Any], **services: ServiceFacts) -> ConsulMesh:
    mesh = ConsulMesh(MeshSettings(datacenter="dc1"))
    for name, facts in services.items():
        mesh.put_service(name, facts)
    mesh.put_entry(kind, "shop", entry)
    return mesh


def at_admin(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The destinations at admin, with the port that their match names."""
    return [
        {"at": [m.get("port", 0) for m in route.get("match", [])], **each["destination"]}
        for route in (*spec.get("http", ()), *spec.get("tcp", ()))
        for each in route["route"]
        if each["destination"]["host"].startswith("admin.")
    ]


@pytest.mark.parametrize(
    ("kind", "entry", "count"),
    [("service-router", ROUTER, 1), ("service-splitter", SPLITTER, 1), ("service-resolver", REDIRECT, 2)],
)
def test_a_destination_has_the_port_of_its_own_service(kind: str, entry: dict[str, Any], count: int) -> None:
    found = at_admin(spec_of(mesh_of(kind, entry, shop=ports(9001), admin=ports(9002))))
    assert [each.get("port") for each in found] == [{"number": 9002}] * count


def test_a_redirect_with_a_subset_and_one_by_a_resolver_of_a_split_have_it_too() -> None:
    mesh = mesh_of("service-splitter", {"Splits": [{"Weight": 1, "Service": "old"}]}, shop=ports(80), admin=ports(81))
    mesh.put_entry("service-resolver", "old", {"Redirect": {"Service": "admin", "ServiceSubset": "v1"}})
    mesh.put_entry("service-resolver", "admin", {"Subsets": {"v1": {"Filter": "Service.Meta.version == v1"}}})
    (found,) = at_admin(spec_of(mesh))
    assert (found["port"], found["subset"]) == ({"number": 81}, "v1")


def test_a_service_without_instances_leads_to_the_port_of_the_other() -> None:
    found = at_admin(spec_of(mesh_of("service-resolver", REDIRECT, admin=ports(9002))))
    assert [each["port"] for each in found] == [{"number": 9002}] * 2


def test_the_port_follows_the_catalog() -> None:
    mesh = mesh_of("service-router", ROUTER, shop=ports(9001))
    assert "port" not in at_admin(spec_of(mesh))[0]
    mesh.put_service("admin", ports(9002))
    assert at_admin(spec_of(mesh))[0]["port"] == {"number": 9002}
    mesh.put_service("admin", ports(9003))
    assert at_admin(spec_of(mesh))[0]["port"] == {"number": 9003}
    mesh.put_service("shop", ports(9003))
    assert "port" not in at_admin(spec_of(mesh))[0], "the port of the call is that of admin"


def test_each_port_of_a_service_leads_to_its_counterpart() -> None:
    """By number, else by name, else to the port of the registration."""
    shop, admin = ports(80, grpc=90, metrics=91), ports(8080, grpc=90, debug=92)
    found = at_admin(spec_of(mesh_of("service-router", ROUTER, shop=shop, admin=admin)))
    assert [(each["at"], each.get("port")) for each in found] == [
        ([80], {"number": 8080}),
        ([90], None),
        ([91], {"number": 8080}),
    ]


def test_equal_ports_and_targets_in_other_datacenters_are_named_without_a_port() -> None:
    assert "port" not in at_admin(spec_of(mesh_of("service-router", ROUTER, shop=ports(80), admin=ports(80))))[0]
    redirect = {"Redirect": {"Service": "admin", "Datacenter": "dc2"}}
    found = at_admin(spec_of(mesh_of("service-resolver", redirect, shop=ports(80), admin=ports(81))))
    assert all("port" not in each and each["host"] == "admin.service.dc2.consul" for each in found)


def test_a_problem_is_reported_once_however_many_ports_a_service_has() -> None:
    mesh = mesh_of("service-router", {"Routes": [{"Destination": {"ServiceSubset": "v9"}}]}, shop=ports(80, grpc=90))
    problems = [p for part in mesh.flush() for change in part for p in change.problems]
    assert [str(p) for p in problems] == [
        "service-router/shop.Routes[0]: 'shop' has no subset 'v9'; the route is left out, its requests go on to the "
        "next one"
    ]
