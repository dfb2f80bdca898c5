"""What a client may ask for, and how fast: refused with a reason that names the flag, or made to wait."""

from __future__ import annotations

import attrs
import pytest
import trio
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DiscoveryRequest
from google.protobuf.message import DecodeError
from structlog.testing import capture_logs
from trio.testing import MockClock

from mesh_pilot.model.bounds import BoundError, Bounds, check_labels
from mesh_pilot.model.proxy import parse_proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.xds.ads.decode import Decoder
from mesh_pilot.xds.ads.limits import PeerScopes, host_of
from mesh_pilot.xds.ads.messages import Code, DeltaRequest, SotwRequest, Variant
from mesh_pilot.xds.ads.session import stream_error
from mesh_pilot.xds.ads.stream import Stream
from tests.xds.fake_world import NODE, FakeWorld
from tests.xds.test_xds_session import OPTIONS, connected

FEW = Bounds(max_names=3, max_name_length=10, max_node_bytes=2000, max_node_values=20, max_request_bytes=100_000)


def encoded(message: DiscoveryRequest | DeltaDiscoveryRequest) -> bytes:
    data: bytes = message.SerializeToString()
    return data


# -- requests


def test_a_request_that_is_too_large_is_refused() -> None:
    data = encoded(DiscoveryRequest(resource_names=["x" * 60_000] * 2))
    with pytest.raises(BoundError, match=r"bytes in a request: 120,008, .* 100,000 \(--max-request-bytes\)"):
        Decoder(FEW).sotw(data)
    with pytest.raises(BoundError, match=r"--max-request-bytes"):
        Decoder(FEW).delta(data)


@pytest.mark.parametrize("kind", [DiscoveryRequest, DeltaDiscoveryRequest])
def test_a_node_that_is_too_large_is_refused(kind: type) -> None:
    message = kind(type_url=CLUSTER)
    message.node.metadata["x"] = "x" * 3000
    with pytest.raises(BoundError, match=r"--max-node-bytes"):
        Decoder(FEW).decode(encoded(message), Variant.SOTW if kind is DiscoveryRequest else Variant.DELTA)


@pytest.mark.parametrize("kind", [DiscoveryRequest, DeltaDiscoveryRequest])
def test_a_node_in_many_pieces_is_refused_by_their_sum(kind: type) -> None:
    piece = kind()
    piece.node.metadata["x"] = "x" * 500
    data = encoded(piece) * 6 + encoded(kind(type_url=CLUSTER))
    with pytest.raises(BoundError, match=r"--max-node-bytes"):
        Decoder(FEW).decode(data, Variant.SOTW if kind is DiscoveryRequest else Variant.DELTA)


@pytest.mark.parametrize("shape", ["list", "struct"])
def test_a_node_with_too_many_values_is_refused(shape: str) -> None:
    message = DiscoveryRequest(type_url=CLUSTER)
    message.node.metadata["x"] = [1] * 21 if shape == "list" else {str(n): 1 for n in range(21)}
    with pytest.raises(BoundError, match=r"values in the node's metadata: more than the limit of 20 \(--max-node-val"):
        Decoder(FEW).sotw(encoded(message))
    message.node.metadata["x"] = [1] * 10
    assert Decoder(FEW).sotw(encoded(message)).node is not None


def test_names_are_counted_before_they_are_decoded() -> None:
    sotw = encoded(DiscoveryRequest(resource_names=["name"] * 500, type_url=ENDPOINT))
    with pytest.raises(BoundError, match=r"--max-names"):
        Decoder(FEW).sotw(sotw)
    for field in ("resource_names_subscribe", "resource_names_unsubscribe"):
        delta = encoded(DeltaDiscoveryRequest(type_url=ENDPOINT, **{field: ["name"] * 500}))
        with pytest.raises(BoundError, match=r"--max-names"):
            Decoder(FEW).delta(delta)
    versions = {f"name-{number}": "1" for number in range(500)}
    with pytest.raises(BoundError, match=r"--max-names"):
        Decoder(FEW).delta(encoded(DeltaDiscoveryRequest(initial_resource_versions=versions)))


def test_a_large_request_with_a_field_that_none_has_is_no_request() -> None:
    with pytest.raises(DecodeError):
        Decoder(FEW).sotw(b"\xf8\x01\x01" * 1000)


def test_metadata_that_is_nested_too_deeply_is_no_request() -> None:
    message = DiscoveryRequest(type_url=CLUSTER)
    value = message.node.metadata.fields["x"]
    for _ in range(60):
        value = value.struct_value.fields["x"]
    value.bool_value = True
    with pytest.raises(DecodeError):
        Decoder().sotw(encoded(message))


def test_a_bound_of_zero_is_none() -> None:
    none = Bounds(**dict.fromkeys(attrs.asdict(FEW), 0))
    message = DiscoveryRequest(resource_names=["x" * 2000] * 1000, type_url=ENDPOINT)
    message.node.metadata["x"] = [1] * 20_000
    assert len(Decoder(none).sotw(encoded(message)).names) == 1000


# -- subscriptions


def stream(world: FakeWorld, variant: Variant) -> Stream:
    return Stream(world, variant, bounds=FEW)


@pytest.mark.parametrize("variant", Variant)
def test_too_many_names_in_a_subscription_are_refused(variant: Variant) -> None:
    talk = stream(FakeWorld(), variant)
    if variant is Variant.SOTW:
        talk.on_request(SotwRequest(ENDPOINT, ("a", "b", "c"), node=NODE))
        again: SotwRequest | DeltaRequest = SotwRequest(ENDPOINT, ("a", "b", "c", "d"))
    else:
        talk.on_request(DeltaRequest(ENDPOINT, ("a", "b", "c"), node=NODE))
        again = DeltaRequest(ENDPOINT, ("d",))
    with pytest.raises(BoundError, match=r"names in the subscription to EDS: 4, more than the limit of 3 \(--max-name"):
        talk.on_request(again)


def test_names_that_are_exchanged_for_others_are_not_too_many() -> None:
    talk = stream(FakeWorld(), Variant.DELTA)
    talk.on_request(DeltaRequest(ENDPOINT, ("a", "b", "c"), node=NODE))
    talk.on_request(DeltaRequest(ENDPOINT, ("d",), ("a",)))


@pytest.mark.parametrize("variant", Variant)
def test_a_name_that_is_too_long_is_refused(variant: Variant) -> None:
    kind = SotwRequest if variant is Variant.SOTW else DeltaRequest
    with pytest.raises(BoundError, match=r"characters in a resource name: 11, more .*\(--max-name-length\)"):
        stream(FakeWorld(), variant).on_request(kind(ENDPOINT, ("x" * 11,), node=NODE))


def test_labels_are_bounded() -> None:
    bounds = Bounds(max_labels=2, max_name_length=5)
    check_labels(bounds, {"a": "b", "c": "d"})
    for labels in ({"a": "", "b": "", "c": ""}, {"a" * 6: ""}, {"a": "b" * 6}):
        with pytest.raises(BoundError):
            check_labels(bounds, labels)


def test_a_bound_ends_the_stream_with_its_reason() -> None:
    error = stream_error(BoundError("max_names", "names", 3, 4))
    assert (error.code, error.bound) == (Code.RESOURCE_EXHAUSTED, "max_names")
    assert error.message == "names: 4, more than the limit of 3 (--max-names)"


# -- scopes


def test_scopes_are_counted_for_each_address_while_streams_are_open() -> None:
    def proxy(namespace: str):  # type: ignore[no-untyped-def]
        return parse_proxy(f"sidecar~10.0.0.1~web.{namespace}~x", {})

    scopes = PeerScopes(lambda proxy: proxy.namespace, Bounds(max_scopes_per_peer=2))
    for number, namespace in enumerate(["a", "a", "b"]):
        scopes.enter(number, f"10.1.1.1:{number}", proxy(namespace))
    with pytest.raises(BoundError, match=r"10\.1\.1\.1: 3, more than the limit of 2 \(--max-scopes-per-peer\)"):
        scopes.enter(3, "10.1.1.1:4000", proxy("c"))
    scopes.enter(4, "10.1.1.2:4000", proxy("c"))
    scopes.leave(3)
    scopes.leave(0)
    with pytest.raises(BoundError):
        scopes.enter(5, "10.1.1.1:4000", proxy("c"))
    scopes.leave(1)
    scopes.enter(5, "10.1.1.1:4000", proxy("c"))
    for number in range(6):
        scopes.leave(number)
    assert repr(scopes) == "<PeerScopes 0 streams of 0 peers>"


@pytest.mark.parametrize(("address", "host"), [("10.0.0.1:80", "10.0.0.1"), ("[::1]:80", "[::1]"), ("unix", "unix")])
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host


# -- rates


def test_a_line_a_minute_for_each_subject_tells_how_many_were_suppressed() -> None:
    limiter = LogLimiter(seconds=60)
    assert limiter.admit("a", 0) == 0
    assert [limiter.admit("a", at) for at in range(1, 60)] == [None] * 59
    assert limiter.admit("b", 30) == 0
    assert limiter.admit("a", 60) == 59
    assert limiter.admit("a", 120) == 0
    assert limiter.suppressed == 59


def test_ever_new_subjects_do_not_fill_the_log() -> None:
    limiter = LogLimiter(rate=1, burst=10)
    assert sum(limiter.admit(number, 0) is not None for number in range(1000)) == 10
    assert limiter.suppressed == 990
    assert "990 suppressed" in repr(limiter)


def test_lines_that_are_alike_are_bounded_by_their_rate_alone_and_those_left_out_are_counted() -> None:
    limiter = LogLimiter(seconds=0, rate=1, burst=3)
    assert [limiter.admit("gone", 0) for _ in range(5)] == [0, 0, 0, None, None]
    assert limiter.admit("gone", 1) == 2


SLOW = attrs.evolve(OPTIONS, bounds=Bounds(stream_requests_per_second=10), request_burst=20)


async def test_a_client_that_is_too_fast_is_read_slower(autojump_clock: MockClock) -> None:
    async with connected(options=SLOW) as client:
        client.ask(CLUSTER)
        response = await client.receive_and_ack()
        for _ in range(60):
            client.ask(CLUSTER, response_nonce="wrong")
        began = trio.current_time()
        client.ask(ENDPOINT, "a", response_nonce="")
        assert (await client.receive()).type_url == ENDPOINT
        assert trio.current_time() - began == pytest.approx(4.2, abs=0.3)
        assert client.registry.statistics().delayed_requests == pytest.approx(42, abs=3)
        assert response.type_url == CLUSTER


async def test_answers_to_responses_never_wait(autojump_clock: MockClock) -> None:
    async with connected(options=SLOW) as client:
        client.ask(CLUSTER)
        began = trio.current_time()
        for number in range(100):
            await client.receive_and_ack()
            client.publish(CLUSTER, "a", str(number))
        assert trio.current_time() == began
        assert client.registry.statistics().delayed_requests == 0


async def test_a_client_that_refuses_for_ever_writes_a_line_a_minute(autojump_clock: MockClock) -> None:
    with capture_logs() as logs:
        async with connected() as client:
            client.ask(CLUSTER)
            began = trio.current_time()
            number = 0
            while trio.current_time() < began + 150:
                client.refuse(await client.receive())
                number += 1
                client.publish(CLUSTER, "a", str(number))
    lines = [line for line in logs if line["event"].startswith("NACK")]
    assert len(lines) == 3
    assert "suppressed" not in lines[0]
    assert sum(line.get("suppressed", 0) for line in lines[1:]) >= 10
