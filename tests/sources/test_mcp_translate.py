"""Events of changed collections, where they are not those of one resource that is one item."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from mesh_pilot.api.istio.networking import v1alpha3 as networking
from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.model.config import ConfigError, Problem
from mesh_pilot.model.events import Accepted, Delete, Endpoints, Event, Rejected, Upsert, item_key
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.sources.mcp.sink import AppliedResponse, RejectedResource
from mesh_pilot.sources.mcp.translate import DecodedItem, EventTranslator, decode_item
from mesh_pilot.xds.mcp.collections import COLLECTIONS, SYNTHETIC_ENTRIES
from mesh_pilot.xds.mcp.messages import McpRequest, McpResource

K8S_SERVICES, K8S_ENDPOINTS, PODS = (f"k8s/core/v1/{plural}" for plural in ("services", "endpoints", "pods"))
WEB = ServiceKey("web.shop.svc.cluster.local", "shop")
INVALID = (Problem("", "is invalid"),)

Body = core.ServiceSpec | core.Endpoints | core.Pod | networking.ServiceEntry


def translator() -> EventTranslator:
    found = EventTranslator("mcp", "galley", COLLECTIONS)
    found.published.announce()
    return found


def upsert(
    to: EventTranslator, collection: str, body: Body, labels: Mapping[str, str] = {}, *, recovered: bool = False
) -> list[Event]:
    resource = McpResource("shop/web", "", COLLECTIONS[collection].type_url, bytes(body), labels=labels)
    value = decode_item(COLLECTIONS[collection], resource, to.origin(collection, "shop/web"))
    return apply(to, collection, {"shop/web": value}, recovered=("shop/web",) if recovered else ())


def apply(
    to: EventTranslator,
    collection: str,
    upserted: Mapping[str, DecodedItem] = {},
    *,
    removed: tuple[tuple[str, DecodedItem], ...] = (),
    rejected: tuple[RejectedResource, ...] = (),
    recovered: tuple[str, ...] = (),
) -> list[Event]:
    return to.events(AppliedResponse(collection, McpRequest(collection), upserted, removed, rejected, recovered))


def test_events_have_the_version_of_the_response() -> None:
    to, name = translator(), SYNTHETIC_ENTRIES.name
    entry = networking.ServiceEntry(hosts=["web.test"], ports=[networking.ServicePort(number=80, name="http")])
    resource = McpResource("shop/web", "", SYNTHETIC_ENTRIES.type_url, bytes(entry))
    value = decode_item(SYNTHETIC_ENTRIES, resource, to.origin(name, "shop/web"))
    applied = AppliedResponse(name, McpRequest(name), {"shop/web": value})
    events = to.events(applied, "12")
    assert {event.cause for event in events if isinstance(event, Upsert)} == {"version 12"}


def service_spec() -> core.ServiceSpec:
    return core.ServiceSpec(cluster_ip="10.96.0.7", ports=[core.ServicePort(name="http", port=80)])


def endpoints_of_pod() -> core.Endpoints:
    target = core.ObjectReference(kind="Pod", namespace="shop", name="web")
    subset = core.EndpointSubset(
        addresses=[core.EndpointAddress(ip="10.1.0.1", target_ref=target)],
        ports=[core.EndpointPort(name="http", port=8080)],
    )
    return core.Endpoints(subsets=[subset])


def test_a_pod_is_an_event_of_the_endpoints_of_its_services_alone() -> None:
    to = translator()
    assert upsert(to, PODS, core.Pod()) == []
    assert len(upsert(to, K8S_SERVICES, service_spec())) == 2
    upsert(to, K8S_ENDPOINTS, endpoints_of_pod())
    (event,) = upsert(to, PODS, core.Pod(), {"version": "v2"})
    assert isinstance(event, Upsert) and isinstance(event.item, Endpoints)
    assert event.item.endpoints[0].labels == {"version": "v2"}
    assert upsert(to, PODS, core.Pod(), {"version": "v2"}) == []


def test_a_synthetic_service_entry_takes_the_place_of_the_service_until_it_is_removed() -> None:
    to = translator()
    upsert(to, K8S_SERVICES, service_spec())
    entry = networking.ServiceEntry(hosts=[WEB.host], ports=[networking.ServicePort(number=80, name="http")])
    events = upsert(to, SYNTHETIC_ENTRIES.name, entry)
    assert [event for event in events if isinstance(event, Delete)] == [
        Delete("mcp", ("endpoints", *WEB)),
        Delete("mcp", ("service", *WEB)),
    ]
    (upserted,) = (event.item for event in events if isinstance(event, Upsert))
    assert item_key(upserted) == ("config", "ServiceEntry", "shop", "web.synthetic")
    events = apply(to, SYNTHETIC_ENTRIES.name, removed=(("shop/web", upserted),))
    assert {item_key(event.item) for event in events if isinstance(event, Upsert)} == {
        ("service", *WEB),
        ("endpoints", *WEB),
    }
    assert Delete("mcp", item_key(upserted)) in events


@pytest.mark.parametrize("ends", ["removed", "valid again"])
def test_an_invalid_kubernetes_object_is_rejected_at_its_location_until_it_is_gone_or_valid(ends: str) -> None:
    to = translator()
    upsert(to, K8S_SERVICES, service_spec())
    rejected = RejectedResource(McpResource("shop/web"), "is invalid", INVALID)
    (event,) = apply(to, K8S_SERVICES, rejected=(rejected,))
    assert isinstance(event, Rejected)
    assert (event.key, event.origin.location) == (None, f"galley {K8S_SERVICES} shop/web")
    assert len(to.published) == 2, "the last valid version is kept"
    if ends == "removed":
        events = apply(to, K8S_SERVICES, recovered=("shop/web",))
    else:
        events = upsert(to, K8S_SERVICES, service_spec(), recovered=True)
    assert events == [Accepted("mcp", event.origin.location)]
    assert to.published.rejections() == ()


def test_a_service_without_a_namespace_is_invalid() -> None:
    resource = McpResource("web", "", COLLECTIONS[K8S_SERVICES].type_url, bytes(service_spec()))
    decode = partial(decode_item, COLLECTIONS[K8S_SERVICES], resource, translator().origin(K8S_SERVICES, "web"))
    with pytest.raises(ConfigError, match="'web' is not namespace/name"):
        decode()


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        (core.ServiceSpec(cluster_ip="10.0.0.300"), ['spec.clusterIP: "10.0.0.300" is not an IP address']),
        (core.ServiceSpec(cluster_ips=["::1", "a"]), ['spec.clusterIPs[1]: "a" is not an IP address']),
        (
            core.ServiceSpec(ports=[core.ServicePort(port=0), core.ServicePort(port=70000)]),
            [
                "spec.ports[0].port: 0 is not a port, allowed are 1 to 65535",
                "spec.ports[1].port: 70000 is not a port, allowed are 1 to 65535",
            ],
        ),
        (
            core.ServiceSpec(type="ExternalName", external_name="a b"),
            ['spec.externalName: "a b" is not a host name or an IP address'],
        ),
        (
            core.Endpoints(
                subsets=[
                    core.EndpointSubset(
                        addresses=[core.EndpointAddress(ip="10.0.0.1"), core.EndpointAddress(ip="fe80::1%eth0")],
                        not_ready_addresses=[core.EndpointAddress(ip="x")],
                        ports=[core.EndpointPort(port=70000)],
                    )
                ]
            ),
            [
                'subsets[0].addresses[1].ip: "fe80::1%eth0" is not an IP address',
                'subsets[0].notReadyAddresses[0].ip: "x" is not an IP address',
                "subsets[0].ports[0].port: 70000 is not a port, allowed are 1 to 65535",
            ],
        ),
    ],
)
def test_a_kubernetes_object_that_no_proxy_could_be_sent_is_refused_with_its_fields(
    body: core.ServiceSpec | core.Endpoints, problems: list[str]
) -> None:
    collection = K8S_SERVICES if isinstance(body, core.ServiceSpec) else K8S_ENDPOINTS
    resource = McpResource("shop/web", "", COLLECTIONS[collection].type_url, bytes(body))
    with pytest.raises(ConfigError) as refused:
        decode_item(COLLECTIONS[collection], resource, translator().origin(collection, "shop/web"))
    assert [str(problem) for problem in refused.value.problems] == problems


def test_a_kubernetes_service_whose_host_name_is_none_is_refused() -> None:
    resource = McpResource("shop/a_b", "", COLLECTIONS[K8S_SERVICES].type_url, bytes(service_spec()))
    with pytest.raises(ConfigError, match=r'metadata\.name: .* the part "a_b" is not a DNS label'):
        decode_item(COLLECTIONS[K8S_SERVICES], resource, translator().origin(K8S_SERVICES, "shop/a_b"))
