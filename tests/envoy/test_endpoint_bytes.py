"""Endpoints written as bytes are those that protobuf's classes give."""

from __future__ import annotations

import pytest
from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint, LocalityLbEndpoints
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.envoy.core.protobuf import UNLIMITED, address, encode, uint32
from mesh_pilot.envoy.endpoints.encode import SOCKET_MATCH, cluster_load_assignment, lb_endpoint, locality_lb_endpoints
from mesh_pilot.model.net import UNIX_PREFIX
from mesh_pilot.model.service import Endpoint, Health, Locality

HEALTH = {
    Health.HEALTHY: health_check_pb2.UNKNOWN,
    Health.UNHEALTHY: health_check_pb2.UNHEALTHY,
    Health.DRAINING: health_check_pb2.DRAINING,
}

texts = st.text(st.characters(codec="utf-8"), max_size=200)
addresses = st.ip_addresses().map(str) | texts.filter(bool) | texts.map("/{}".format)
further = st.lists(st.ip_addresses().map(str), max_size=2).map(tuple)
healths = st.sampled_from(list(HEALTH))
endpoints = st.builds(Endpoint, addresses, st.integers(0, 65535), st.just("http"), health=healths) | st.builds(
    Endpoint,
    st.ip_addresses().map(str),
    st.integers(0, 65535),
    st.just("http"),
    health=healths,
    additional_addresses=further,
)
weights = st.just(1) | st.integers(1, UNLIMITED)


@given(endpoints, weights, st.booleans())
def test_an_endpoint(endpoint: Endpoint, weight: int, mesh_tls: bool) -> None:
    plain = LbEndpoint(health_status=HEALTH[endpoint.health])
    where = address(f"{UNIX_PREFIX if endpoint.is_unix else ''}{endpoint.address}", endpoint.port)
    plain.endpoint.address.CopyFrom(where)
    for also in endpoint.additional_addresses:
        plain.endpoint.additional_addresses.add().address.CopyFrom(address(also, endpoint.port))
    if mesh_tls:
        plain.metadata.filter_metadata[SOCKET_MATCH].fields["tlsMode"].string_value = "istio"
    if weight != 1:
        plain.load_balancing_weight.value = weight
    assert lb_endpoint(endpoint, weight, mesh_tls) == encode(plain)


@given(st.builds(Locality, texts, texts, texts), st.lists(endpoints, max_size=3), weights, st.integers(0, 200))
def test_a_locality(locality: Locality, held: list[Endpoint], weight: int, priority: int) -> None:
    members = [lb_endpoint(endpoint, 1, False) for endpoint in held]
    plain = LocalityLbEndpoints(load_balancing_weight=uint32(weight), priority=priority)
    plain.lb_endpoints.extend(LbEndpoint.FromString(member) for member in members)
    plain.locality.SetInParent()
    plain.locality.region, plain.locality.zone, plain.locality.sub_zone = locality
    assert locality_lb_endpoints(locality, members, weight, priority) == encode(plain)


@given(texts.filter(bool), st.integers(0, 3))
def test_an_assignment(name: str, groups: int) -> None:
    group = locality_lb_endpoints(Locality("eu"), [], 7, 0)
    plain = ClusterLoadAssignment(cluster_name=name, endpoints=[LocalityLbEndpoints.FromString(group)] * groups)
    assert cluster_load_assignment(name, [group] * groups) == encode(plain)


def test_a_weight_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="between 0 and 4294967295"):
        lb_endpoint(Endpoint("10.1.1.1", 80, "http"), UNLIMITED + 1, False)
