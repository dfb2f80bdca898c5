"""Listeners and their filter chains."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)

from mesh_pilot.envoy.refusals.extensions import (
    HTTP_CONNECTION_MANAGER,
    TERMINAL,
    downstream_socket,
    extension_type,
    filter_chain,
    is_ip,
    repeated_upgrades,
)
from mesh_pilot.envoy.refusals.filters import log_options
from mesh_pilot.envoy.refusals.pairs import Rule, excludes

MAX_PIPE = 107
"""Bytes in the path of a Unix socket: Linux has room for so many and a NUL."""

_ANY_TIME = range(2**31)
OPTIONS_OF_BOUND_SOCKETS: Mapping[tuple[int, int], range] = {
    (1, 7): range(1, 2**31),  # SO_SNDBUF
    (1, 8): range(1, 2**31),  # SO_RCVBUF
    (1, 9): range(2),  # SO_KEEPALIVE
    (6, 1): range(2),  # TCP_NODELAY
    (6, 4): range(1, 2**15),  # TCP_KEEPIDLE
    (6, 5): range(1, 2**15),  # TCP_KEEPINTVL
    (6, 6): range(1, 2**7),  # TCP_KEEPCNT
    (6, 9): _ANY_TIME,  # TCP_DEFER_ACCEPT
    (6, 18): _ANY_TIME,  # TCP_USER_TIMEOUT
    (6, 23): _ANY_TIME,  # TCP_FASTOPEN
}
"""Level and name of the options that Linux takes from everybody on a socket that is bound, with their values."""

MAX_COMBINATIONS = 10_000
"""Combinations of conditions up to which a chain is compared with others by each of them."""


def binds_port(listener: Any) -> bool:
    """True if a listener has its own port."""
    wishes = [holder.bind_to_port for holder in (listener, listener.deprecated_v1) if holder.HasField("bind_to_port")]
    return all(wish.value for wish in wishes)


def _listener(listener: Any) -> Iterator[str]:
    # An API listener binds no port: nothing that follows is about it. Chains may overlap where a matcher chooses by
    # name.
    if listener.HasField("api_listener"):
        yield from excludes("internal_listener", "api_listener")(listener)
        return
    if listener.transparent.value and not binds_port(listener):
        yield "transparent: needs bind_to_port; Envoy would crash"
    yield from _listener_address(listener)
    yield from _socket_options("socket_options", listener.socket_options)
    for index, additional in enumerate(listener.additional_addresses):
        field = f"additional_addresses[{index}].socket_options.socket_options"
        yield from _socket_options(field, additional.socket_options.socket_options)
    if listener.HasField("fcds_config") and not listener.HasField("filter_chain_matcher"):
        yield "fcds_config: needs a filter_chain_matcher"
    has_chains = bool(listener.filter_chains) or listener.HasField("default_filter_chain")
    if listener.address.socket_address.protocol == listener.address.socket_address.UDP:
        if listener.filter_chains and not listener.udp_listener_config.HasField("quic_options"):
            yield "filter_chains: a UDP listener has none"
    elif not has_chains:
        yield "filter_chains: there is none"
    if listener.HasField("filter_chain_matcher"):
        names = {chain.name for chain in listener.filter_chains}
        if "" in names or len(names) < len(listener.filter_chains):
            yield "filter_chains: each needs its own name, as filter_chain_matcher chooses by it"
    else:
        yield from _overlaps(listener.filter_chains)


def _socket_options(field: str, options: Iterable[Any]) -> Iterator[str]:
    """Options that the system may refuse when it is too late for Envoy to go on without the listener."""
    for index, option in enumerate(options):
        if option.state == option.STATE_PREBIND:
            continue
        values = OPTIONS_OF_BOUND_SOCKETS.get((option.level, option.name), range(0))
        if not option.HasField("int_value") or option.int_value not in values:
            yield f"{field}[{index}].state: leave it out; Envoy would crash if the system refused the option there"


def _listener_address(listener: Any) -> Iterator[str]:
    if listener.HasField("internal_listener"):
        if listener.HasField("address"):
            yield "address: an internal listener has none"
        return
    if not listener.HasField("address"):
        yield "address: is missing"
        return
    yield from bound_address("address", listener.address)
    for index, additional in enumerate(listener.additional_addresses):
        field = f"additional_addresses[{index}].address"
        if additional.HasField("address"):
            yield from bound_address(field, additional.address)
            if _is_datagram(additional.address) != _is_datagram(listener.address):
                yield f"{field}: a listener's addresses are all TCP, or all UDP"
        else:
            yield f"{field}: is missing"


def _is_datagram(address: Any) -> bool:
    host = address.socket_address
    return bool(host.protocol == host.UDP)


def bound_address(field: str, address: Any) -> Iterator[str]:
    """Reasons why a listener cannot have an address."""
    match address.WhichOneof("address"):
        case "socket_address":
            host = address.socket_address
            if not host.resolver_name and not is_ip(host.address):
                yield f"{field}.socket_address.address: {host.address[:100]!r} is not an IP address"
            if not host.resolver_name and host.named_port:
                yield f"{field}.socket_address.named_port: has to be a number, port_value"
        case "pipe":
            if len(address.pipe.path.encode()) > MAX_PIPE:
                yield f"{field}.pipe.path: has more than {MAX_PIPE} bytes"
        case "envoy_internal_address":
            yield f"{field}.envoy_internal_address: is for clusters; a listener is made internal by internal_listener"


# -- which chain a connection is for


def _overlaps(chains: Iterable[Any]) -> Iterator[str]:
    seen: dict[object, int] = {}
    for index, chain in enumerate(chains):
        other: int | None = None
        for condition in _conditions(chain.filter_chain_match):
            other = seen.get(condition) if other is None else other
            seen[condition] = index
        if other is not None:
            yield f"filter_chains[{index}].filter_chain_match: filter_chains[{other}] is for the same connections"


def _conditions(match: Any) -> Iterator[object]:
    """Each combination of the conditions of a chain; no two chains of a listener may have one in common."""
    lists: tuple[list[object], ...] = (
        [str(_network(r)) for r in match.prefix_ranges],
        [name.lower() for name in match.server_names],
        list(match.application_protocols),
        [str(_network(r)) for r in match.direct_source_prefix_ranges],
        [str(_network(r)) for r in match.source_prefix_ranges],
        list(match.source_ports),
    )
    single = (match.destination_port.value, match.transport_protocol, match.source_type)
    if prod(len(values) or 1 for values in lists) > MAX_COMBINATIONS:
        yield (single, *(tuple(values) for values in lists))
    else:
        yield from ((single, *values) for values in product(*(values or [None] for values in lists)))


def _network(cidr: Any) -> object:
    """An address range in one form for all its addresses; the value itself if it is not a range."""
    try:
        address = ipaddress.ip_address(cidr.address_prefix)
    except ValueError:
        return cidr.address_prefix
    bits = min(cidr.prefix_len.value, address.max_prefixlen)
    return ipaddress.ip_network((address, bits), strict=False)


def _chain_match(match: Any) -> Iterator[str]:
    if match.address_suffix or match.HasField("suffix_len"):
        yield "address_suffix: Envoy does not support this field"
    for index, name in enumerate(match.server_names):
        if "*" in name.removeprefix("*."):
            yield f"server_names[{index}]: {name[:100]!r} has a wildcard that is not its first label"


# -- what a chain does


def _chain(chain: Any) -> Iterator[str]:
    yield from filter_chain("filters", chain.filters)
    if not extension_type(chain.transport_socket).endswith(".QuicDownstreamTransport"):
        for index, filter_ in enumerate(chain.filters):
            if extension_type(filter_) == HTTP_CONNECTION_MANAGER and _speaks_http3(filter_):
                yield f"filters[{index}].typed_config.codec_type: HTTP3 needs a QUIC transport socket"
    yield from downstream_socket(chain)


def _speaks_http3(filter_: Any) -> bool:
    manager = HttpConnectionManager()
    return bool(filter_.typed_config.Unpack(manager)) and manager.codec_type == HttpConnectionManager.HTTP3


def _manager(manager: Any) -> Iterator[str]:
    filters = manager.http_filters
    yield from filter_chain("http_filters", filters)
    if filters and filters[-1].disabled and extension_type(filters[-1]) in TERMINAL:
        yield f"http_filters: the last, {filters[-1].name}, can't be disabled"
    yield from log_options(manager, "flush_access_log_on_new_request")
    yield from excludes("strip_any_host_port", "strip_matching_host_port")(manager)
    yield from repeated_upgrades(manager)
    if manager.original_ip_detection_extensions:
        for name in ("use_remote_address", "xff_num_trusted_hops"):
            given = getattr(manager, name)
            if given if isinstance(given, int) else given.value:
                yield f"original_ip_detection_extensions: does not go with {name}"


def _server_context(context: Any) -> Iterator[str]:
    given = (field.name for field, _ in context.common_tls_context.ListFields())
    if not any(name.startswith(("tls_certificate", "custom_")) for name in given):
        yield "common_tls_context: a server needs a certificate"


RULES: Mapping[str, Rule] = {
    "envoy.config.listener.v3.Listener": _listener,
    "envoy.config.listener.v3.FilterChain": _chain,
    "envoy.config.listener.v3.FilterChainMatch": _chain_match,
    HTTP_CONNECTION_MANAGER: _manager,
    "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext": _server_context,
}
