"""The World as collections: what is served, what a change costs, and what comes out at the other end."""

from __future__ import annotations

from datetime import UTC, datetime

import attrs
import pytest

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.istio.reading.encode_proto import encode
from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.model.config import Config, Origin
from mesh_pilot.model.events import Delete, Endpoints, Item, MeshConfigValue, Upsert, item_key
from mesh_pilot.model.service import Endpoint, Health, Locality, Port, Protocol, Service
from mesh_pilot.sources.mcp.translate import decode_item
from mesh_pilot.world import World
from mesh_pilot.xds.config_api import served_collections
from mesh_pilot.xds.config_api.served_collections import WorldCollections
from mesh_pilot.xds.config_api.stream import CollectionStream
from mesh_pilot.xds.mcp.collections import COLLECTIONS, MESH_CONFIG, SYNTHETIC_ENTRIES, is_same_message
from mesh_pilot.xds.mcp.identity import SinkNode
from mesh_pilot.xds.mcp.messages import McpRequest, McpResponse
from mesh_pilot.xds.mcp.wire import SourceDialect, decode_request, encode_response

ORIGIN = Origin("test", "here")
SERVICES = "istio/networking/v1alpha3/virtualservices"


def virtual_service(name: str, seconds: int = 1) -> Config:
    return decode(
        {
            "apiVersion": "networking.istio.io/v1",
            "kind": "VirtualService",
            "metadata": {
                "name": name,
                "namespace": "shop",
                "labels": {"team": "a"},
                "creationTimestamp": "2024-01-02T03:04:05Z",
            },
            "spec": {
                "hosts": [name],
                "http": [{"timeout": f"{seconds}s", "route": [{"destination": {"host": "x"}}]}],
            },
        },
        origin=ORIGIN,
    )


@attrs.define
class Served:
    """A World, and its collections as they are served."""

    world: World = attrs.field(factory=World)
    collections: WorldCollections = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.collections = WorldCollections(self.world)

    def put(self, *items: Item) -> None:
        self.collections.published(self.world.apply([Upsert("test", item) for item in items]))

    def remove(self, item: Item) -> None:
        self.collections.published(self.world.apply([Delete("test", item_key(item))]))


def test_a_config_comes_out_as_it_went_in() -> None:
    served = Served()
    config = virtual_service("one")
    served.put(config)
    (resource,) = served.collections.resources(SERVICES).values()
    assert (resource.name, resource.created) == ("shop/one", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert decode_item(COLLECTIONS[SERVICES], resource, ORIGIN) == config
    assert served.collections.resources("networking.istio.io/v1alpha3/VirtualService") == {"shop/one": resource}


def test_versions_follow_from_content_in_any_process() -> None:
    one, other = Served(), Served()
    one.put(virtual_service("one", 2), virtual_service("two"))
    other.put(virtual_service("two"))
    other.put(virtual_service("one", 1))
    other.put(virtual_service("one", 2))
    assert one.collections.resources(SERVICES) == other.collections.resources(SERVICES)


def test_nothing_is_encoded_until_somebody_asks_and_then_all_there_is() -> None:
    served = Served()
    mesh = MeshConfigValue(decode_mesh({"trustDomain": "shop"}, origin=ORIGIN))
    served.put(mesh, *(virtual_service(f"vs-{number}") for number in range(100)))
    served.remove(virtual_service("vs-7"))
    assert served.collections.encoded == 0
    assert len(served.collections.resources(SERVICES)) == 99
    assert list(served.collections.resources(MESH_CONFIG.name)) == ["mesh"]
    assert served.collections.encoded == 100
    before = served.collections.revision(SERVICES)
    served.put(virtual_service("vs-7"), virtual_service("vs-8"))
    assert served.collections.changed_since(SERVICES, before) == ("shop/vs-7",)


def test_one_change_among_three_thousand_is_encoded_sent_and_judged_alone() -> None:
    served = Served()
    served.put(*(virtual_service(f"vs-{n}") for n in range(3000)))
    stream = CollectionStream(served.collections)
    stream.on_request(McpRequest(SERVICES, incremental=True))
    first = stream.next_response()
    assert first is not None
    stream.on_request(McpRequest(SERVICES, first.nonce, incremental=True))
    assert stream.next_response() is None
    before = served.collections.encoded
    served.put(virtual_service("vs-7", seconds=5))
    assert served.collections.encoded == before + 1
    response = stream.next_response()
    assert response is not None
    assert [resource.name for resource in response.resources] == ["shop/vs-7"]
    assert response.removed == ()


def test_what_is_removed_is_gone_from_both_names() -> None:
    served = Served()
    served.put(virtual_service("one"))
    assert list(served.collections.resources(SERVICES)) == ["shop/one"]
    served.remove(virtual_service("one"))
    assert dict(served.collections.resources(SERVICES)) == {}
    assert dict(served.collections.resources("networking.istio.io/v1alpha3/VirtualService")) == {}
    assert served.collections.changed_since(SERVICES, 1) == ("shop/one",)


@pytest.mark.parametrize("host", ["reviews.service.consul", "*.service.consul"])
def test_a_registry_service_is_a_synthetic_entry_that_another_plane_can_read(host: str) -> None:
    served = Served()
    service = Service(host, "shop", (Port(80, "http", Protocol.HTTP),), ("10.1.0.1",), registry="Consul")
    good = Endpoint(
        "10.0.0.1",
        8080,
        "http",
        labels={"version": "v1"},
        locality=Locality("r", "z"),
        weight=3,
        service_account="spiffe://cluster.local/ns/shop/sa/reviews",
        tls_mode="istio",
    )
    second = attrs.evolve(good, port=8081)
    ill = attrs.evolve(good, address="10.0.0.2", health=Health.UNHEALTHY)
    served.put(service, Endpoints(service.key, (good, second, ill)))
    (resource,) = served.collections.resources(SYNTHETIC_ENTRIES.name).values()
    read = decode_item(SYNTHETIC_ENTRIES, resource, ORIGIN)
    other = World()
    other.apply([Upsert("mcp", read)])
    (found,) = other.services_named.peek(host)
    assert (found.ports, found.addresses) == (service.ports, service.addresses)
    endpoints = other.endpoints.peek(found.key)
    assert [(e.address, e.port, e.weight, e.service_account, e.tls_mode) for e in endpoints] == [
        ("10.0.0.1", 8080, 3, good.service_account, "istio"),
        ("10.0.0.1", 8081, 3, good.service_account, "istio"),
    ]
    assert endpoints[0].labels["version"] == "v1"


def test_a_service_whose_host_can_not_be_declared_is_not_served() -> None:
    served = Served()
    served.put(Service("odd_name.service.consul", "shop", (Port(80, "http", Protocol.HTTP),)))
    assert dict(served.collections.resources(SYNTHETIC_ENTRIES.name)) == {}


def test_mesh_config_comes_out_as_it_went_in_with_what_is_switched_off() -> None:
    served = Served()
    mesh = decode_mesh({"enableTracing": False, "trustDomain": "x.test", "enableAutoMtls": False}, origin=ORIGIN)
    served.put(MeshConfigValue(mesh))
    (resource,) = served.collections.resources(MESH_CONFIG.name).values()
    read = decode_item(MESH_CONFIG, resource, ORIGIN)
    assert isinstance(read, MeshConfigValue)
    assert isinstance(read.config, MeshConfig)
    assert read.config == mesh


def test_requests_and_responses_survive_their_encoding() -> None:
    served = Served()
    served.put(virtual_service("one"))
    dialect = SourceDialect(SinkNode("me", {"a": "b"}))
    request = McpRequest(SERVICES, "7", {"shop/one": "v"}, incremental=True)
    assert decode_request(dialect.request(request)) == (request, SinkNode("me", {"a": "b"}))
    resources = tuple(served.collections.resources(SERVICES).values())
    response = McpResponse(SERVICES, resources, ("shop/two",), "1", "2", incremental=True)
    assert dialect.response(encode_response(response)) == response


def test_any_version_of_a_message_is_that_message() -> None:
    name = "istio.networking.v1alpha3.Gateway"
    assert is_same_message(name, "type.googleapis.com/istio.networking.v1beta1.Gateway")
    assert not is_same_message(name, "type.googleapis.com/istio.networking.v1alpha3.Sidecar")
    assert not is_same_message(name, "")


def test_an_object_that_cannot_be_encoded_costs_itself_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_at_two(spec: object) -> bytes:
        if "two" in str(spec):
            raise KeyError("two")
        return encode(spec)

    served = Served()
    served.put(virtual_service("one"))
    assert set(served.collections.resources(SERVICES)) == {"shop/one"}
    with monkeypatch.context() as broken:
        broken.setattr(served_collections, "encode", fail_at_two)
        served.put(virtual_service("two"), virtual_service("three"))
    assert set(served.collections.resources(SERVICES)) == {"shop/one", "shop/three"}
    ((_, failure),) = served.world.failed.standing()
    assert (failure.kind, failure.name, failure.error) == ("collection", "VirtualService/shop/two", "KeyError: 'two'")
    served.put(virtual_service("two", seconds=2))
    assert set(served.collections.resources(SERVICES)) == {"shop/one", "shop/two", "shop/three"}
    assert list(served.world.failed.standing()) == []
