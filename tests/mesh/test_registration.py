"""Which endpoints of a registry a proxy takes for its own."""

from __future__ import annotations

import pytest

from mesh_pilot.mesh.proxy.registration import registered, registration_claim
from mesh_pilot.model.events import Endpoints, Upsert
from mesh_pilot.model.proxy import parse_proxy
from mesh_pilot.model.service import Endpoint, Port, Protocol, Registration, Service
from mesh_pilot.world import World

VM, OTHER = "10.0.0.1", "10.0.0.2"


def world() -> World:
    """Two services on a machine, one of them on another too, under the same id, and one without any registration."""
    found = World()
    instances = {
        "web": [(VM, Registration("vm-1", "web", "web")), (OTHER, Registration("vm-2", "web", "web"))],
        "api": [(VM, Registration("vm-1", "api", "api-1"))],
        "plain": [(VM, None)],
    }
    for name, placed in instances.items():
        service = Service(f"{name}.service.consul", "default", (Port(80, "http", Protocol.HTTP),))
        endpoints = tuple(Endpoint(address, 80, "http", registration=known) for address, known in placed)
        found.apply([Upsert("consul", service), Upsert("consul", Endpoints(service.key, endpoints))])
    return found


def taken(ip: str, **metadata: str) -> set[str]:
    """Service at address, of each endpoint that a proxy here takes for its own."""
    proxy = parse_proxy(f"sidecar~{ip}~x.default~default.svc.cluster.local", metadata)
    found = registered(world().view, registration_claim(proxy))
    return {f"{service.host.partition('.')[0]} at {e.address}" for service, endpoints in found for e in endpoints}


@pytest.mark.parametrize(
    ("ip", "metadata", "expected"),
    [
        (VM, {}, {f"web at {VM}", f"api at {VM}", f"plain at {VM}"}),
        (VM, {"CONSUL_SERVICE": "web"}, {f"web at {VM}"}),
        (VM, {"REGISTRATION_SERVICE": "web"}, {f"web at {VM}"}),
        (VM, {"REGISTRATION_SERVICE": "web", "CONSUL_SERVICE": "api"}, {f"web at {VM}"}),
        (VM, {"REGISTRATION_ID": "api-1"}, {f"api at {VM}"}),
        (VM, {"REGISTRATION_NODE": "vm-2"}, set()),
        (VM, {"CONSUL_SERVICE": "web, api"}, {f"web at {VM}", f"api at {VM}"}),
        (VM, {"CONSUL_SERVICE_ID": "api-1"}, {f"api at {VM}"}),
        (VM, {"CONSUL_SERVICE_ID": "web"}, {f"web at {VM}"}),
        (VM, {"CONSUL_NODE": "vm-2"}, set()),
        ("192.168.0.9", {}, set()),
        ("192.168.0.9", {"CONSUL_SERVICE": "web"}, set()),
        ("192.168.0.9", {"CONSUL_SERVICE_ID": "api-1"}, {f"api at {VM}"}),
        ("192.168.0.9", {"CONSUL_SERVICE_ID": "web"}, set()),
        ("192.168.0.9", {"CONSUL_SERVICE_ID": "web", "CONSUL_NODE": "vm-2"}, {f"web at {OTHER}"}),
        ("192.168.0.9", {"CONSUL_SERVICE_ID": "api-1", "NAMESPACE": "other"}, set()),
    ],
)
def test_addresses_and_metadata_say_which_instance_is_meant(
    ip: str, metadata: dict[str, str], expected: set[str]
) -> None:
    assert taken(ip, **metadata) == expected


def test_an_instance_that_moves_or_goes_is_found_no_more() -> None:
    moving = world()
    service = Service("api.service.consul", "default").key
    moving.apply([Upsert("consul", Endpoints(service, (Endpoint(VM, 80, "http"),)))])
    assert moving.view.endpoints_with_id("api-1") == ()
