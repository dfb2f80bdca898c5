"""Encoded responses are what protobuf makes of the same messages, and shared."""

from __future__ import annotations

import pytest
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse, DiscoveryResponse
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, RESOURCE_TYPES, Resource, make_resource
from mesh_pilot.xds.ads.encode import Encoder
from mesh_pilot.xds.ads.messages import Response, Variant
from tests.xds.driver import Delta, Sotw
from tests.xds.fake_world import FakeWorld

resources = st.builds(
    make_resource,
    st.text(max_size=300),
    st.sampled_from(tuple(RESOURCE_TYPES)),
    st.one_of(st.binary(max_size=20), st.integers(100, 20_000).map(bytes)),
)


def responses(variant: Variant) -> st.SearchStrategy[Response]:
    text = st.text(max_size=200)
    removed = st.lists(text, max_size=3).map(tuple) if variant is Variant.DELTA else st.just(())
    found = st.lists(resources, max_size=5).map(tuple)
    return st.builds(Response, st.just(variant), st.sampled_from(tuple(RESOURCE_TYPES)), text, text, found, removed)


@given(response=responses(Variant.SOTW), identifier=st.text(min_size=1, max_size=200))
def test_a_discovery_response_is_what_protobuf_makes_of_it(response: Response, identifier: str) -> None:
    message = DiscoveryResponse(version_info=response.version, type_url=response.type_url, nonce=response.nonce)
    message.control_plane.identifier = identifier
    for resource in response.resources:
        message.resources.add(type_url=resource.type_url, value=resource.body)
    assert Encoder(identifier).encode(response) == message.SerializeToString(deterministic=True)


@given(response=responses(Variant.DELTA), identifier=st.text(min_size=1, max_size=200))
def test_a_delta_discovery_response_is_what_protobuf_makes_of_it(response: Response, identifier: str) -> None:
    message = DeltaDiscoveryResponse(
        system_version_info=response.version, type_url=response.type_url, nonce=response.nonce
    )
    message.control_plane.identifier = identifier
    message.removed_resources.extend(response.removed)
    for resource in response.resources:
        each = message.resources.add(name=resource.name, version=resource.version)
        each.resource.type_url = resource.type_url
        each.resource.value = resource.body
    assert Encoder(identifier).encode(response) == message.SerializeToString(deterministic=True)


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_two_hundred_streams_in_the_same_state_are_sent_the_same_bytes_object(make: type[Sotw | Delta]) -> None:
    world = FakeWorld()
    for number in range(50):
        world.put(CLUSTER, f"cluster-{number}", "x" * 1000)
        world.put(ENDPOINT, f"cluster-{number}", "x" * 1000)
    names = [f"cluster-{number}" for number in range(50)]
    encoder = Encoder("test")
    clients = [make(world) for _ in range(200)]
    for client in clients:
        client.ask(CLUSTER)
        client.ask(ENDPOINT, *names)
    first = [[encoder.encode(response) for response in client.settle()] for client in clients]
    world.put(CLUSTER, "cluster-7", "changed")
    second = [[encoder.encode(response) for response in client.settle()] for client in clients]
    for sent in (first, second):
        assert {len(of_one) for of_one in sent} == {2}
        assert len({id(each) for of_one in sent for each in of_one}) == 2
    assert (encoder.statistics().encoded, encoder.statistics().shared) == (4, 796)


def test_what_is_kept_is_bounded() -> None:
    encoder = Encoder("test", max_cached_bytes=5000)
    sent = [Response(Variant.SOTW, CLUSTER, str(n), str(n), (Resource("a", CLUSTER, bytes(2000)),)) for n in range(10)]
    encoded = [encoder.encode(response) for response in sent]
    assert encoder.statistics().cached_bytes <= 5000
    assert encoder.encode(sent[-1]) is encoded[-1]
    assert encoder.encode(sent[0]) == encoded[0]
    assert encoder.encode(sent[0]) is not encoded[0]


def test_a_response_larger_than_what_is_kept_is_still_sent() -> None:
    encoder = Encoder("test", max_cached_bytes=10)
    response = Response(Variant.SOTW, CLUSTER, "1", "1", (Resource("a", CLUSTER, bytes(2000)),))
    assert encoder.encode(response) is encoder.encode(response)
