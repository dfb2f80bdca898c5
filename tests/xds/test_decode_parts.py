"""Large requests are decoded in parts, and come out as they do when they are decoded whole."""

from __future__ import annotations

import pytest
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.resource import CLUSTER, ENDPOINT
from mesh_pilot.xds.ads.decode import Decoder
from mesh_pilot.xds.ads.messages import DeltaRequest, Node, SotwRequest

NAMES = [f"outbound|80||service-{number}.shop.svc.cluster.local" for number in range(100)]

texts = st.sampled_from(["", "a", CLUSTER, f'"\x33{ENDPOINT}', "é" * 40]) | st.text(max_size=20)
names = st.lists(texts, max_size=4)


def sotw(**fields: object) -> discovery_pb2.DiscoveryRequest:
    return discovery_pb2.DiscoveryRequest(**fields)


def delta(**fields: object) -> discovery_pb2.DeltaDiscoveryRequest:
    return discovery_pb2.DeltaDiscoveryRequest(**fields)


@st.composite
def sotw_bytes(draw: st.DrawFn) -> bytes:
    """One message, or several one after the other, which is one too; perhaps cut short."""
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        message = sotw(
            version_info=draw(texts),
            resource_names=[*draw(names), *(NAMES if draw(st.booleans()) else [])],
            type_url=draw(texts),
            response_nonce=draw(texts),
        )
        if draw(st.booleans()):
            message.node.id = draw(texts)
        if draw(st.booleans()):
            message.error_detail.message = draw(texts)
        parts.append(message.SerializeToString())
    data = b"".join(parts)
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data


@st.composite
def delta_bytes(draw: st.DrawFn) -> bytes:
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        message = delta(
            resource_names_subscribe=[*draw(names), *(NAMES if draw(st.booleans()) else [])],
            type_url=draw(texts),
            initial_resource_versions=dict.fromkeys(draw(names), "1"),
            response_nonce=draw(texts),
        )
        if draw(st.booleans()):
            message.node.id = draw(texts)
        parts.append(message.SerializeToString())
    data = b"".join(parts)
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data


def plain_sotw(data: bytes) -> SotwRequest:
    m = discovery_pb2.DiscoveryRequest.FromString(data)
    error = (m.error_detail.message or "code 0, no reason given") if m.HasField("error_detail") else None
    node = Node(m.node.id) if m.HasField("node") else None
    return SotwRequest(m.type_url, tuple(m.resource_names), m.response_nonce, m.version_info, error, node)


def plain_delta(data: bytes) -> DeltaRequest:
    m = discovery_pb2.DeltaDiscoveryRequest.FromString(data)
    node = Node(m.node.id) if m.HasField("node") else None
    return DeltaRequest(
        m.type_url,
        tuple(m.resource_names_subscribe),
        (),
        dict(m.initial_resource_versions),
        m.response_nonce,
        None,
        node,
    )


@given(data=sotw_bytes())
def test_a_sotw_request_in_parts_is_the_whole(data: bytes) -> None:
    try:
        expected = plain_sotw(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            Decoder().sotw(data)
        return
    assert Decoder().sotw(data) == expected


@given(data=delta_bytes())
def test_a_delta_request_in_parts_is_the_whole(data: bytes) -> None:
    try:
        expected = plain_delta(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            Decoder().delta(data)
        return
    assert Decoder().delta(data) == expected


def test_acks_that_differ_in_version_and_nonce_only_are_decoded_once() -> None:
    def ack(number: int) -> bytes:
        found = sotw(version_info=f"v{number}", response_nonce=f"n{number}", type_url=ENDPOINT, resource_names=NAMES)
        return found.SerializeToString()

    decoder = Decoder()
    first = decoder.sotw(ack(1))
    assert all(decoder.sotw(ack(number)).names is first.names for number in range(2, 20))


def test_clients_that_come_back_with_the_same_versions_are_decoded_once() -> None:
    def first_request(number: int) -> bytes:
        message = delta(type_url=CLUSTER, initial_resource_versions=dict.fromkeys(NAMES, "0123456789abcdef"))
        rest = message.SerializeToString()
        return delta(node={"id": f"sidecar~10.0.0.{number}~web.shop~x"}).SerializeToString() + rest

    decoder = Decoder()
    one, other = (decoder.delta(first_request(number)) for number in (1, 2))
    assert one.initial_versions is other.initial_versions
    assert (one.node, other.node) == (Node("sidecar~10.0.0.1~web.shop~x"), Node("sidecar~10.0.0.2~web.shop~x"))


def test_equal_acks_are_decoded_once() -> None:
    sent = [sotw(type_url=CLUSTER, version_info="v", response_nonce="n").SerializeToString() for _ in range(2)]
    told = [delta(type_url=CLUSTER, response_nonce="n").SerializeToString() for _ in range(2)]
    decoder = Decoder()
    assert decoder.sotw(sent[0]) is decoder.sotw(sent[1])
    assert decoder.delta(told[0]) is decoder.delta(told[1])


def test_what_is_remembered_of_small_requests_is_limited() -> None:
    decoder = Decoder()
    for number in range(20_000):
        decoder.delta(delta(type_url=CLUSTER, response_nonce=f"n{number}").SerializeToString())
    assert len(decoder._small._results) < 10_000
