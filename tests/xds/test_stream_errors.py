"""Requests that end a stream, with the status and the words they end it with; and what a stream tells of itself."""

from __future__ import annotations

import attrs
import pytest

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT
from mesh_pilot.xds.ads.messages import Code, DeltaRequest, Node, Phase, SotwRequest, StreamError, Variant
from mesh_pilot.xds.ads.stream import Stream, Waiting
from tests.xds.driver import Delta, Sotw
from tests.xds.fake_world import NODE, FakeWorld


def refusal(stream: Stream, request: SotwRequest | DeltaRequest) -> str:
    """Why the stream ends with INVALID_ARGUMENT."""
    with pytest.raises(StreamError) as caught:
        stream.on_request(request)
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value.message


@pytest.fixture(params=[SotwRequest, DeltaRequest])
def request_type(request: pytest.FixtureRequest) -> type[SotwRequest | DeltaRequest]:
    kind: type[SotwRequest | DeltaRequest] = request.param
    return kind


@pytest.fixture
def stream(request_type: type[SotwRequest | DeltaRequest]) -> Stream:
    return Stream(FakeWorld(), Variant.SOTW if request_type is SotwRequest else Variant.DELTA)


def test_the_first_request_must_have_a_node(stream: Stream, request_type: type[SotwRequest]) -> None:
    assert "must have a node" in refusal(stream, request_type(CLUSTER))


@pytest.mark.parametrize("node_id", ["", "web", "sidecar~10.1.1.1~web.shop", "thing~10.1.1.1~web.shop~shop.local"])
def test_a_malformed_node_id_is_explained(stream: Stream, request_type: type[SotwRequest], node_id: str) -> None:
    assert "expected type~ip~name.namespace~dns-domain" in refusal(stream, request_type(CLUSTER, node=Node(node_id)))


def test_an_aggregated_stream_needs_a_type(stream: Stream, request_type: type[SotwRequest]) -> None:
    assert "must have a type URL" in refusal(stream, request_type(node=NODE))


def test_another_node_on_the_same_stream_is_refused(stream: Stream, request_type: type[SotwRequest]) -> None:
    stream.on_request(request_type(CLUSTER, node=NODE))
    other = attrs.evolve(NODE, id="sidecar~10.1.1.2~web-2.shop~shop.svc.cluster.local")
    assert "web-2.shop" in refusal(stream, request_type(CLUSTER, node=other))


def test_the_same_node_again_is_fine(stream: Stream, request_type: type[SotwRequest]) -> None:
    stream.on_request(request_type(CLUSTER, node=NODE))
    stream.on_request(request_type(ENDPOINT, node=NODE))
    stream.on_request(request_type(ENDPOINT, node=Node("")))


def test_a_stream_for_one_type_serves_no_other(request_type: type[SotwRequest]) -> None:
    variant = Variant.SOTW if request_type is SotwRequest else Variant.DELTA
    stream = Stream(FakeWorld(), variant, only=CLUSTER)
    stream.on_request(request_type("", node=NODE))
    stream.on_request(request_type(CLUSTER))
    assert f"serves {CLUSTER}, not {ENDPOINT}" in refusal(stream, request_type(ENDPOINT))


def test_the_proxy_is_who_its_node_says() -> None:
    client = Sotw(FakeWorld())
    assert client.stream.waiting_for() == Waiting(node=True)
    client.ask(CLUSTER)
    proxy = client.stream.proxy
    assert proxy is not None
    assert (proxy.name, proxy.namespace, proxy.version) == ("web-1.shop", "shop", "1.40.0")
    assert client.observer.proxies == [proxy]
    assert client.stream.waiting_for() == Waiting()


def test_a_proxy_that_is_not_admitted_gets_nothing() -> None:
    def admit(proxy: Proxy) -> Proxy:
        raise StreamError(Code.UNAUTHENTICATED, f"{proxy.name} shows no certificate")

    world = FakeWorld()
    stream = Stream(world, Variant.SOTW, admit=admit)
    with pytest.raises(StreamError, match="shows no certificate"):
        stream.on_request(SotwRequest(CLUSTER, node=NODE))
    assert world.open_resources == []


def test_admission_says_who_the_proxy_is() -> None:
    stream = Stream(FakeWorld(), Variant.SOTW, admit=lambda proxy: attrs.evolve(proxy, namespace="store"))
    stream.on_request(SotwRequest(CLUSTER, node=NODE))
    assert stream.proxy is not None
    assert stream.proxy.namespace == "store"


def test_the_stream_shows_its_state() -> None:
    world = FakeWorld()
    world.put(CLUSTER, "a")
    client = Delta(world)
    assert repr(client.stream) == "<Stream delta no proxy yet>"
    client.ask(CLUSTER)
    client.ask(ENDPOINT, "a")
    (clusters, _) = client.responses()
    shown = repr(client.stream)
    assert shown.startswith(f"<Stream delta {NODE.id} <CDS * un-ACKed {clusters.version[:8]}")
    assert "<EDS 1 names un-ACKed" in shown
    client.ack(clusters)
    first, second = client.stream.statistics()
    assert (first.type_url, first.phase.value, first.wildcard, first.resources) == (CLUSTER, "ACKed", True, 1)
    assert (first.nonce, first.acked_nonce, first.acked_version) == (clusters.nonce, clusters.nonce, clusters.version)
    assert (second.names, second.phase.value, second.acked_nonce) == (1, "un-ACKed", "")


@pytest.mark.parametrize("kind", [Sotw, Delta])
def test_a_client_that_comes_back_with_everything_counts_as_synced_although_nothing_is_sent(
    kind: type[Sotw] | type[Delta],
) -> None:
    world = FakeWorld()
    resource = world.put(CLUSTER, "a")
    before = kind(world)
    before.ask(CLUSTER)
    (response,) = before.settle()
    client = kind(world)
    if isinstance(client, Sotw):
        client.ask(CLUSTER, version=response.version)
    else:
        client.ask(CLUSTER, has={"a": resource.version})
    assert client.responses() == []
    (clusters,) = client.stream.statistics()
    assert clusters.phase is Phase.ACKED
    world.put(CLUSTER, "a", "new")
    assert client.next().resources
    (clusters,) = client.stream.statistics()
    assert clusters.phase is Phase.UNACKED


def test_a_client_that_is_sent_nothing_as_there_is_nothing_is_not_synced() -> None:
    client = Sotw(FakeWorld())
    client.ask(ENDPOINT, "a")
    assert client.responses() == []
    (endpoints,) = client.stream.statistics()
    assert endpoints.phase is Phase.IDLE


def test_a_closed_stream_is_woken_no_more() -> None:
    world = FakeWorld()
    client = Sotw(world)
    client.ask(CLUSTER)
    client.settle()
    world.put(CLUSTER, "a")
    assert client.wakes == 1
    client.stream.close()
    client.stream.close()
    world.put(CLUSTER, "b")
    assert client.wakes == 1
    assert world.open_resources == []
    assert client.responses() == []
