"""Answers while no control plane can be reached: requests in, what is to be looked up and sent out."""

from __future__ import annotations

from collections.abc import Iterable

from envoy.service.discovery.v3 import discovery_pb2
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.agent.relay.messages import KeptResource, XdsProtocol, empty_body, read_request, read_response
from mesh_pilot.agent.relay.offline import Lookup, OfflineStream
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, ROUTE, VIRTUAL_HOST

KEPT = {
    (CLUSTER, "a"): "1", (CLUSTER, "b"): "2",
    (ENDPOINT, "a"): "3", (ENDPOINT, "b"): "4",
    (VIRTUAL_HOST, "80/reviews"): "5",
}  # fmt: skip


def find(wanted: Lookup) -> list[KeptResource]:
    return [
        KeptResource(name, version, empty_body(wanted.type_url, name))
        for (type_url, name), version in KEPT.items()
        if type_url == wanted.type_url and (wanted.names is None or name in wanted.names)
    ]


class Client:
    """An Envoy as a test drives it."""

    def __init__(self, protocol: XdsProtocol) -> None:
        self.protocol = protocol
        self.stream = OfflineStream(protocol)
        self.nonces: dict[str, str] = {}

    def send(
        self, message: discovery_pb2.DiscoveryRequest | discovery_pb2.DeltaDiscoveryRequest
    ) -> dict[str, str] | None:
        """The names and versions (in State of the World that of the response) answered; None for no answer."""
        wanted = self.stream.ask(read_request(message.SerializeToString(), self.protocol))
        if wanted is None:
            return None
        data = self.stream.answer(wanted, "digest", find(wanted))
        if data is None:
            return None
        kind = (
            discovery_pb2.DiscoveryResponse
            if self.protocol is XdsProtocol.SOTW
            else discovery_pb2.DeltaDiscoveryResponse
        )
        response = kind.FromString(data)
        assert response.type_url == message.type_url
        self.nonces[response.type_url] = response.nonce
        read = read_response(data, self.protocol)
        found = {each.name: each.version or read.version for each in read.answers}
        return found | dict.fromkeys(read.removed, "removed")

    def sotw(self, type_url: str, *names: str, version: str = "", nonce: str | None = None) -> dict[str, str] | None:
        answered = self.nonces.get(type_url, "") if nonce is None else nonce
        return self.send(
            discovery_pb2.DiscoveryRequest(
                type_url=type_url, resource_names=names, version_info=version, response_nonce=answered
            )
        )

    def delta(
        self, type_url: str, *names: str, leave: Iterable[str] = (), held: dict[str, str] | None = None, nonce: str = ""
    ) -> dict[str, str] | None:
        return self.send(
            discovery_pb2.DeltaDiscoveryRequest(
                type_url=type_url,
                resource_names_subscribe=names,
                resource_names_unsubscribe=list(leave),
                initial_resource_versions=held,
                response_nonce=nonce,
            )
        )


def test_sotw_an_envoy_that_starts_gets_all_that_it_asks_for_once() -> None:
    client = Client(XdsProtocol.SOTW)
    assert client.sotw(CLUSTER) == {"a": "digest", "b": "digest"}
    assert client.sotw(CLUSTER, version="digest") is None  # its ACK
    assert client.sotw(ENDPOINT, "a") == {"a": "digest"}
    assert client.sotw(ENDPOINT, "a", version="digest") is None
    assert client.sotw(ENDPOINT, "a", "b", version="digest") == {"b": "digest"}


def test_sotw_an_envoy_that_comes_back_keeps_what_it_has_and_gets_what_it_asks_for_by_name() -> None:
    client = Client(XdsProtocol.SOTW)
    assert client.sotw(CLUSTER, version="other") is None
    assert client.sotw(ENDPOINT, "a", "warming", version="other") == {"a": "digest"}


def test_sotw_an_envoy_that_starts_does_not_wait_for_what_the_disk_lacks() -> None:
    client = Client(XdsProtocol.SOTW)
    assert client.sotw(ENDPOINT, "a", "lost") == {"a": "", "lost": ""}
    assert client.sotw(ROUTE, "lost") == {"lost": ""}


def test_sotw_a_request_that_answers_no_response_of_ours_is_passed_over() -> None:
    client = Client(XdsProtocol.SOTW)
    assert client.sotw(ENDPOINT, "a") is not None
    assert client.sotw(ENDPOINT, "a", "b", nonce="of-the-plane") is None


def test_delta_an_envoy_that_starts_gets_all_that_it_asks_for_with_the_versions_of_the_control_plane() -> None:
    client = Client(XdsProtocol.DELTA)
    assert client.delta(CLUSTER) == {"a": "1", "b": "2"}
    assert client.delta(CLUSTER, nonce="offline-1") is None
    assert client.delta(ENDPOINT, "a", "b", "lost") == {"a": "3", "b": "4", "lost": "removed"}
    assert client.delta(ENDPOINT, leave=["a"]) is None
    assert client.delta(ENDPOINT, "a") == {"a": "3"}


def test_delta_an_envoy_that_comes_back_gets_what_it_lacks_only() -> None:
    client = Client(XdsProtocol.DELTA)
    assert client.delta(CLUSTER, "*", held={"a": "1", "b": "newer"}) is None
    # it may wait for the endpoints of a cluster that was replaced: those that it has are sent again
    assert client.delta(ENDPOINT, "a", "b", "warming", held={"a": "3", "b": "newer"}) == {"a": "3"}
    assert client.delta(ENDPOINT, "b") is None


def test_delta_what_is_asked_for_on_demand_is_answered_at_once() -> None:
    client = Client(XdsProtocol.DELTA)
    assert client.delta(CLUSTER, "*", held={"a": "1"}) is None
    assert client.delta(CLUSTER, "b", "c") == {"b": "2", "c": "removed"}
    assert client.delta(VIRTUAL_HOST, "80/reviews", "80/none", held={"80/x": "1"}) == {
        "80/reviews": "5",
        "80/none": "removed",
    }


@given(
    st.sampled_from(XdsProtocol),
    st.lists(
        st.tuples(
            st.sampled_from((CLUSTER, ENDPOINT, ROUTE)),
            st.frozensets(st.sampled_from("abcd")),
            st.booleans(),
        ),
        max_size=20,
    ),
)
def test_an_envoy_never_loses_what_it_has_and_is_never_told_twice(
    protocol: XdsProtocol, requests: list[tuple[str, frozenset[str], bool]]
) -> None:
    """Whatever it asks for: what it had when it came is neither taken away nor replaced by another version."""
    client = Client(protocol)
    held: dict[str, dict[str, str]] = {}
    for type_url, asked, has_some in requests:
        is_first = type_url not in held
        mine = held.setdefault(type_url, dict.fromkeys(asked, "mine") if has_some and asked else {})
        before = dict(mine)
        if protocol is XdsProtocol.SOTW:
            answer = client.sotw(type_url, *sorted(asked), version="mine" if mine else "")
            full = type_url == CLUSTER and not asked
            assert not (answer is not None and before and full), "a full state for one that has some"
        else:
            answer = client.delta(type_url, *sorted(asked), held=mine if is_first else None)
            for name, version in (answer or {}).items():
                assert name not in before or before[name] != "mine" or version == "mine"
        mine.update({name: version for name, version in (answer or {}).items() if version != "removed"})
