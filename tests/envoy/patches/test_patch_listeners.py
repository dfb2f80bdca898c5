"""Patches to listeners and filter chains."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import DownstreamTlsContext

from mesh_pilot.model.resource import LISTENER
from tests.support.patching import EDGE, OTHER, Shop, envoy_filter, names, patch

EXTRA = """
name: extra
address: {socket_address: {address: 127.0.0.1, port_value: 18888}}
filter_chains:
- filters:
  - name: envoy.filters.network.echo
    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}
"""
CHAIN = """
name: more
filter_chain_match: {destination_port: 7777}
filters:
- name: envoy.filters.network.echo
  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}
"""
TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
BUFFER = {"per_connection_buffer_limit_bytes": 4096}


def buffered(shop: Shop) -> list[str]:
    """The listeners that the patch was merged into."""
    listeners = (shop.listener(name) for name in shop.names(LISTENER))
    return [listener.name for listener in listeners if listener.per_connection_buffer_limit_bytes.value == 4096]


@pytest.mark.parametrize(
    ("context", "found"),
    [
        ("ANY", ["0.0.0.0_80", "10.9.1.1_9000", "virtualOutbound", "virtualInbound"]),
        ("SIDECAR_OUTBOUND", ["0.0.0.0_80", "10.9.1.1_9000", "virtualOutbound"]),
        ("SIDECAR_INBOUND", ["virtualInbound"]),
        ("GATEWAY", []),
    ],
)
def test_a_context_picks_the_listeners_of_a_sidecar(context: str, found: list[str]) -> None:
    assert buffered(Shop(envoy_filter(patch("LISTENER", "MERGE", BUFFER, context=context)))) == found


@pytest.mark.parametrize(("context", "found"), [("GATEWAY", 2), ("ANY", 2), ("SIDECAR_OUTBOUND", 0)])
def test_a_context_picks_the_listeners_of_a_router(context: str, found: int) -> None:
    shop = Shop(envoy_filter(patch("LISTENER", "MERGE", BUFFER, context=context), namespace="istio-system"), proxy=EDGE)
    assert len(buffered(shop)) == found


@pytest.mark.parametrize(
    ("match", "found"),
    [
        ({"name": "10.9.1.1_9000"}, ["10.9.1.1_9000"]),
        ({"portNumber": 80}, ["0.0.0.0_80"]),
        ({"portNumber": 15006}, ["virtualInbound"]),
        ({"name": "virtualInbound", "portNumber": 8080}, []),
        ({"name": "0.0.0.0_80", "portNumber": 80}, ["0.0.0.0_80"]),
    ],
)
def test_a_listener_is_matched_by_name_and_port(match: dict[str, Any], found: list[str]) -> None:
    assert buffered(Shop(envoy_filter(patch("LISTENER", "MERGE", BUFFER, listener=match)))) == found


def test_a_listener_can_be_removed_and_another_added() -> None:
    shop = Shop(
        envoy_filter(
            patch("LISTENER", "REMOVE", listener={"portNumber": 9000}),
            patch("LISTENER", "ADD", EXTRA, context="SIDECAR_OUTBOUND"),
        )
    )
    assert shop.names(LISTENER) == ["0.0.0.0_80", "virtualOutbound", "extra", "virtualInbound"]
    assert shop.listener("extra").address.socket_address.port_value == 18888
    added = shop.resource(LISTENER, "extra")
    assert added is not None
    assert [str(c) for c in added.configs] == ["EnvoyFilter/shop/f"]


def test_what_is_added_for_every_context_is_there_once() -> None:
    shop = Shop(envoy_filter(patch("LISTENER", "ADD", EXTRA)))
    assert shop.names(LISTENER).count("extra") == 1
    assert shop.problems == ()


def test_a_name_that_is_taken_can_not_be_added() -> None:
    shop = Shop(
        envoy_filter(patch("LISTENER", "ADD", EXTRA)),
        envoy_filter(patch("LISTENER", "ADD", EXTRA), name="g"),
        envoy_filter(patch("LISTENER", "ADD", EXTRA.replace("name: extra", "name: virtualOutbound", 1)), name="h"),
    )
    assert shop.problem_texts() == [
        "listener extra: there is a listener of this name already: ADD can't put another next to it",
        "listener virtualOutbound: there is a listener of this name already: ADD can't put another next to it",
    ]
    assert [p.config.name for p in shop.problems] == ["g", "h"]


def test_no_name_is_there_for_outbound_and_for_inbound_traffic() -> None:
    inbound = patch("LISTENER", "ADD", EXTRA, context="SIDECAR_INBOUND")
    instead = EXTRA.replace("name: extra", "name: virtualInbound", 1).replace("18888", "18889")
    shop = Shop(
        envoy_filter(patch("LISTENER", "ADD", EXTRA)),
        envoy_filter(inbound, name="g"),
        envoy_filter(patch("LISTENER", "ADD", instead), name="h"),
    )
    assert sorted(shop.names(LISTENER)) == ["0.0.0.0_80", "10.9.1.1_9000", "extra", "virtualInbound", "virtualOutbound"]
    assert shop.listener("virtualInbound").address.socket_address.port_value == 18889
    assert [(p.config.name, p.reason) for p in shop.problems] == [
        ("h", "the listener of this name that the proxy has for inbound traffic gives way to this one"),
        ("g", "there is a listener of this name already: ADD can't put another next to it"),
    ]


def test_a_listener_can_not_be_renamed() -> None:
    shop = Shop(envoy_filter(patch("LISTENER", "MERGE", {"name": "x", **BUFFER}, listener={"portNumber": 80})))
    assert shop.names(LISTENER)[0] == "0.0.0.0_80"
    assert buffered(shop) == []
    assert "can't be renamed to x" in shop.problem_texts()[0]


def test_an_address_is_for_one_listener_that_the_match_names() -> None:
    address = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 10}}}
    everywhere = Shop(envoy_filter(patch("LISTENER", "MERGE", address)))
    assert "several listeners" in everywhere.problem_texts()[0]
    one = Shop(envoy_filter(patch("LISTENER", "MERGE", address, listener={"name": "0.0.0.0_80"})))
    assert one.problem_texts() == []
    assert one.listener("0.0.0.0_80").address.socket_address.port_value == 10


def chains_with_timeout(match: dict[str, Any], **listener: Any) -> list[str]:
    value = {"transport_socket_connect_timeout": "3s"}
    change = patch("FILTER_CHAIN", "MERGE", value, listener={**listener, "filterChain": match})
    shop = Shop(envoy_filter(change))
    return [
        f"{chain.name} {chain.filter_chain_match.transport_protocol}".strip()
        for name in shop.names(LISTENER)
        for chain in shop.listener(name).filter_chains
        if chain.transport_socket_connect_timeout.seconds == 3
    ]


@pytest.mark.parametrize(
    ("match", "found"),
    [
        ({"name": "virtualOutbound-catchall-tcp"}, ["virtualOutbound-catchall-tcp"]),
        ({"destinationPort": 15006}, ["virtualInbound-blackhole"]),
        ({"destinationPort": 8080, "transportProtocol": "raw_buffer"}, ["0.0.0.0_8080 raw_buffer"]),
        ({"applicationProtocols": "http/1.1,h2c"}, ["raw_buffer", "virtualInbound-catchall-http raw_buffer"]),
        ({"applicationProtocols": "http/1.1,other"}, []),
        ({"sni": "a.example.com"}, []),
        ({"destinationPort": 8080, "transportSocket": "envoy.transport_sockets.tls"}, ["0.0.0.0_8080 tls"]),
        (
            {"destinationPort": 8080, "transportSocket": "envoy.transport_sockets.raw_buffer"},
            ["0.0.0.0_8080 raw_buffer"],
        ),
        ({"transportSocket": "envoy.transport_sockets.quic"}, []),
    ],
)
def test_a_filter_chain_is_matched_by_what_it_matches(match: dict[str, Any], found: list[str]) -> None:
    assert chains_with_timeout(match) == found


def test_a_port_number_is_that_of_the_chain_where_traffic_is_captured() -> None:
    assert set(chains_with_timeout({}, portNumber=9000, name="virtualInbound")) == {
        "0.0.0.0_9000 tls",
        "0.0.0.0_9000 raw_buffer",
    }
    assert chains_with_timeout({"destinationPort": 9000}, portNumber=15006) == []


def test_a_server_name_picks_the_chains_of_a_router() -> None:
    change = patch(
        "FILTER_CHAIN",
        "MERGE",
        {"transport_socket_connect_timeout": "3s"},
        listener={"filterChain": {"sni": "shop.example.com"}},
    )
    shop = Shop(envoy_filter(change, namespace="istio-system"), proxy=EDGE)
    assert shop.listener("0.0.0.0_443").filter_chains[0].transport_socket_connect_timeout.seconds == 3
    assert shop.listener("0.0.0.0_8081").filter_chains[0].transport_socket_connect_timeout.seconds == 15


def test_chains_can_be_removed_and_added() -> None:
    match = {"name": "virtualOutbound", "filterChain": {"name": "virtualOutbound-blackhole"}}
    shop = Shop(
        envoy_filter(
            patch("FILTER_CHAIN", "REMOVE", listener=match),
            patch("FILTER_CHAIN", "ADD", CHAIN, listener={"name": "virtualOutbound"}),
        )
    )
    assert names(shop.listener("virtualOutbound").filter_chains) == ["virtualOutbound-catchall-tcp", "more"]


def test_a_transport_socket_is_merged_inside_its_config() -> None:
    value = {
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": TLS, "common_tls_context": {"tls_params": {"cipher_suites": ["A"]}}},
        },
        "transport_socket_connect_timeout": "3s",
    }
    change = patch("FILTER_CHAIN", "MERGE", value, listener={"portNumber": 443})
    chain = Shop(envoy_filter(change, namespace="istio-system"), proxy=EDGE).listener("0.0.0.0_443").filter_chains[0]
    tls = DownstreamTlsContext.FromString(chain.transport_socket.typed_config.value)
    assert list(tls.common_tls_context.tls_params.cipher_suites)[-1] == "A"
    assert tls.common_tls_context.tls_certificate_sds_secret_configs
    assert chain.transport_socket_connect_timeout.seconds == 3


def test_a_transport_socket_of_another_type_takes_the_place_of_the_one_there_is() -> None:
    raw = {
        "name": "envoy.transport_sockets.raw_buffer",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"},
    }
    change = patch("FILTER_CHAIN", "MERGE", {"transport_socket": raw}, listener={"portNumber": 443})
    chain = Shop(envoy_filter(change, namespace="istio-system"), proxy=EDGE).listener("0.0.0.0_443").filter_chains[0]
    assert chain.transport_socket.name == "envoy.transport_sockets.raw_buffer"
    assert chain.transport_socket.typed_config.type_url.endswith("RawBuffer")


def test_other_proxies_have_the_very_resources_they_had() -> None:
    shop = Shop(envoy_filter(patch("LISTENER", "MERGE", BUFFER), workloadSelector={"labels": {"app": "api"}}))
    assert buffered(shop)
    other = shop.catalog.open(OTHER)
    their_listeners = other.set(LISTENER)
    assert their_listeners is not None
    plain = Shop(proxy=OTHER)
    assert {n: r.version for n, r in their_listeners.snapshot().entries.items()} == {
        n: plain.resource(LISTENER, n).version  # type: ignore[union-attr]
        for n in plain.names(LISTENER)
    }
    assert shop.catalog.diagnostics().patches() == {}


def test_a_listener_for_an_address_that_another_has_is_left_out() -> None:
    def listener(name: str, port: int, address: str = "0.0.0.0") -> dict[str, Any]:
        at = {"socket_address": {"address": address, "port_value": port}}
        value = {"name": name, "address": at, "filter_chains": [{}]}
        return patch("LISTENER", "ADD", value, context="SIDECAR_OUTBOUND")

    shop = Shop(envoy_filter(listener("a", 80), listener("b", 81), listener("c", 81), listener("d", 80, "10.9.9.9")))
    assert {"a", "b", "c", "d"} & set(shop.names(LISTENER)) == {"b", "d"}
    assert shop.problem_texts() == [
        "listener a: the listener 0.0.0.0_80 has the same address: Envoy would refuse another",
        "listener c: the listener b has the same address: Envoy would refuse another",
    ]


@pytest.mark.parametrize("value", [{"bind_to_port": True}, {"transparent": True}])
def test_a_patch_that_would_crash_an_envoy_is_left_out(value: dict[str, Any]) -> None:
    match = {"name": "0.0.0.0_80"}
    shop = Shop(envoy_filter(patch("LISTENER", "MERGE", value, context="SIDECAR_OUTBOUND", listener=match)))
    assert shop.listener("0.0.0.0_80") == Shop().listener("0.0.0.0_80")
    (text,) = shop.problem_texts()
    assert f"{next(iter(value))}" in text
    assert "crash" in text
