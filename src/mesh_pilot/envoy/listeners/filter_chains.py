"""Filter chains as values: the match of each and its encoded filters; and listeners assembled from them.

A chain is encoded where it is made, and its bytes are copied into the listener: if one of hundreds of chains changes,
one is encoded again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import attrs
from envoy.config.core.v3 import address_pb2, base_pb2
from envoy.config.listener.v3.listener_components_pb2 import Filter, FilterChain, FilterChainMatch
from envoy.config.listener.v3.listener_pb2 import Listener

from mesh_pilot.base.protowire import field
from mesh_pilot.envoy.core.protobuf import address, duration, encode, uint32
from mesh_pilot.envoy.filters.jwt_authn import REQUEST_AUTHENTICATION
from mesh_pilot.envoy.filters.rbac.policies import AUTHORIZATION_POLICY
from mesh_pilot.envoy.filters.tcp import tcp_proxy
from mesh_pilot.envoy.telemetry.access_logs import AccessLogs, listener_access_logs
from mesh_pilot.envoy.tls.common import MESH_ALPN
from mesh_pilot.mesh.legacy.ports import legacy_keys
from mesh_pilot.mesh.listeners.conflicts import Conflict
from mesh_pilot.mesh.names.resources import BLACK_HOLE
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.policies.extensions import extensions_for
from mesh_pilot.mesh.proxy.proxy_config import listener_buffer
from mesh_pilot.mesh.routing.l4 import to_cluster
from mesh_pilot.mesh.selection.workloads import selected
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.net import plain_address
from mesh_pilot.model.resource import LISTENER, Resource, make_resource
from mesh_pilot.world.view import View

RAW_BUFFER = "raw_buffer"
TLS_TRANSPORT = "tls"
"""Transport protocols, as the TLS inspector detects them."""

PLAINTEXT_HTTP = ("http/1.1", "h2c")
"""Application protocols that the HTTP inspector detects in plaintext; HTTP/1.0 is left to TCP, as in Istio."""
MESH_HTTP_ALPN = ("istio-http/1.0", "istio-http/1.1", "istio-h2")
"""ALPN by which a client's proxy declares HTTP inside mesh mTLS."""
MESH_TCP_ALPN = (MESH_ALPN,)
"""ALPN of mesh mTLS with any protocol inside."""
MESH_ALPNS = MESH_TCP_ALPN + MESH_HTTP_ALPN

ANY_HOST = "*"

HANDSHAKE_TIMEOUT = timedelta(seconds=15)
"""A client that begins TLS and falls silent does not hold a connection for longer."""

ODD_WILDCARD = "Envoy matches wildcards of whole leading labels of a server name only"


@attrs.frozen(cache_hash=True)
class ChainMatch:
    """The connections that a chain accepts: empty criteria match all, and of each list one element must match."""

    server_names: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    """Destination addresses."""
    source_cidrs: tuple[str, ...] = ()
    port: int = 0
    protocols: tuple[str, ...] = ()
    """ALPN of TLS, or what the HTTP inspector detected."""
    transport: str = ""

    @property
    def is_any(self) -> bool:
        """True if it matches every connection."""
        return self == MATCH_ALL


MATCH_ALL = ChainMatch()


@attrs.frozen(cache_hash=True)
class EncodedChain:
    """A filter chain: its match, and its filters encoded."""

    match: ChainMatch
    body: bytes = attrs.field(repr=False)
    """The encoded ``FilterChain`` without its match."""
    host: str = ""
    """The service that it belongs to, named in conflicts."""
    configs: tuple[ConfigKey, ...] = ()


def filter_chain(
    match: ChainMatch,
    filters: Iterable[Filter],
    *,
    name: str = "",
    transport_socket: base_pb2.TransportSocket | None = None,
    handshake: timedelta | None = HANDSHAKE_TIMEOUT,
    host: str = "",
    configs: tuple[ConfigKey, ...] = (),
) -> EncodedChain:
    """A chain of network filters. ``handshake``: the time that a client has for TLS; None: any."""
    message = FilterChain(name=name, filters=filters, transport_socket=transport_socket)
    if handshake is not None:
        message.transport_socket_connect_timeout.CopyFrom(duration(handshake))
    return EncodedChain(match, encode(message), host, configs)


def bound_listener(
    name: str, hosts: Sequence[str], port: int, direction: base_pb2.TrafficDirection, *, udp: bool = False
) -> Listener:
    """The header of a listener with a socket at each of its addresses. Each worker accepts one connection at a time,
    so that a burst of them is spread over all workers."""
    header = Listener(name=name, address=address(hosts[0], port), traffic_direction=direction)
    for further in hosts[1:]:
        header.additional_addresses.add().address.CopyFrom(address(further, port))
    if udp:
        for each in (header.address, *(further.address for further in header.additional_addresses)):
            each.socket_address.protocol = address_pb2.SocketAddress.UDP
        header.udp_listener_config.SetInParent()
        return header
    header.max_connections_to_accept_per_socket_event.CopyFrom(uint32(1))
    return header


def black_hole_chain(view: View, listener: str, port: int) -> EncodedChain:
    """The chain for connections to a capturing listener's own port: they fail, for they would come back to it."""
    return filter_chain(
        ChainMatch(port=port),
        [tcp_proxy(view, None, to_cluster(BLACK_HOLE))],
        name=f"{listener}-blackhole",
        handshake=None,
    )


def sni_match(server_names: Iterable[str], cidrs: Iterable[str], source_cidrs: Iterable[str] = ()) -> ChainMatch:
    """A match by server name and addresses; ``*`` and subnets of all addresses are omitted.

    Names and subnets that are the same to Envoy are made equal.
    """
    names = tuple(dict.fromkeys(name.lower() for name in server_names))
    return ChainMatch(
        server_names=() if ANY_HOST in names else names,
        cidrs=tuple(sorted({plain_address(c) for c in cidrs if not _is_everywhere(c)})),
        source_cidrs=tuple(sorted({plain_address(c) for c in source_cidrs if not _is_everywhere(c)})),
    )


def merge_chains(
    listener: str, chains: Iterable[EncodedChain]
) -> tuple[tuple[EncodedChain, ...], tuple[Conflict, ...]]:
    """The chains of one listener without overlaps: of two that match the same connections, the earlier one has them.

    Envoy rejects a listener in which two chains have the same match. So a later chain is narrowed to the matches that
    are left, or dropped; either is a conflict. So is a server name that Envoy can't match, such as ``*-a.test``.
    """
    chains = tuple(chains)
    odd = [chain for chain in chains if any(map(_is_odd_wildcard, chain.match.server_names))]
    # The usual case costs nothing: one chain overlaps with none.
    if len(chains) == 1 and not odd:
        return chains, ()
    taken: dict[ChainMatch, EncodedChain] = {}
    merged: list[EncodedChain] = []
    conflicts = [Conflict(listener, "", chain.host, ODD_WILDCARD) for chain in odd]
    for candidate in (chain for chain in chains if chain not in odd):
        free = [m for m in _single_matches(candidate.match) if m not in taken]
        lost = [m for m in _single_matches(candidate.match) if m in taken]
        if not lost:
            merged.append(candidate)
        else:
            merged += (attrs.evolve(candidate, match=m) for m in free)
            other = taken[lost[0]]
            if other.host != candidate.host and other.body != candidate.body:
                conflicts.append(Conflict(listener, other.host, candidate.host, _reason(lost[0])))
        taken.update((m, candidate) for m in free)
    return tuple(merged), tuple(conflicts)


def assemble(
    header: Listener,
    chains: Sequence[EncodedChain],
    *,
    default: EncodedChain | None = None,
    logs: AccessLogs = (),
    buffer: int = 0,
    configs: tuple[ConfigKey, ...] = (),
) -> Resource:
    """A listener from its header (all fields but these) and its chains.

    ``buffer``: bytes that a connection may buffer, 0 for Envoy's default. ``configs``: objects that it was made from,
    in addition to those of its chains.
    """
    if buffer:
        header.per_connection_buffer_limit_bytes.CopyFrom(uint32(buffer))
    body = [encode(header)]
    body += (field(Listener.FILTER_CHAINS_FIELD_NUMBER, _encoded(c)) for c in chains)
    if default is not None:
        body.append(field(Listener.DEFAULT_FILTER_CHAIN_FIELD_NUMBER, default.body))
    body += (field(Listener.ACCESS_LOG_FIELD_NUMBER, log) for log in logs)
    every = (*chains, default) if default else chains
    keys = dict.fromkeys((*(key for c in every for key in c.configs), *configs))
    return make_resource(header.name, LISTENER, b"".join(body), tuple(keys))


def context_listener(
    view: View,
    context: PolicyContext,
    header: Listener,
    chains: Sequence[EncodedChain],
    default: EncodedChain | None = None,
) -> Resource:
    """``assemble`` with the access logs, the buffer limit and the security policies of a context.

    A listener that connections are handed to has a default chain, so none is without a route.
    """
    return assemble(
        header,
        chains,
        default=default,
        logs=() if header.HasField("bind_to_port") else listener_access_logs(view, context),
        buffer=listener_buffer(view, context.settings),
        configs=_policy_keys(view, context),
    )


def _policy_keys(view: View, context: PolicyContext) -> tuple[ConfigKey, ...]:
    """The objects that add filters to the listeners of a context, to explain a NACK."""
    extensions = extensions_for(view, context.namespace, context.labels)
    if context.side is TrafficSide.OUTBOUND:
        return extensions
    kinds = (AUTHORIZATION_POLICY, REQUEST_AUTHENTICATION)
    found = (key for kind in kinds for key in selected(view, kind, context.namespace, context.labels))
    return (*found, *extensions, *legacy_keys(view, context.legacy, context.labels), *context.limits.policies)


def balance_exactly(header: Listener) -> None:
    """Balance connections exactly over Envoy's worker threads, at the price of a lock: for few, long ones."""
    header.connection_balance_config.exact_balance.SetInParent()


def _encoded(item: EncodedChain) -> bytes:
    if item.match.is_any:
        return item.body
    return field(FilterChain.FILTER_CHAIN_MATCH_FIELD_NUMBER, encode(_message(item.match))) + item.body


def _message(match: ChainMatch) -> FilterChainMatch:
    message = FilterChainMatch(
        server_names=match.server_names,
        prefix_ranges=map(_cidr, match.cidrs),
        source_prefix_ranges=map(_cidr, match.source_cidrs),
        application_protocols=match.protocols,
        transport_protocol=match.transport,
    )
    if match.port:
        message.destination_port.CopyFrom(uint32(match.port))
    return message


def _cidr(text: str) -> address_pb2.CidrRange:
    network = ipaddress.ip_network(text, strict=False)
    return address_pb2.CidrRange(address_prefix=str(network.network_address), prefix_len=uint32(network.prefixlen))


def _is_odd_wildcard(name: str) -> bool:
    return "*" in name.removeprefix("*.")


def _is_everywhere(cidr: str) -> bool:
    """True for a subnet of all addresses, and for an unspecified address: Istio takes it for "no address"."""
    return not cidr or ipaddress.ip_network(cidr, strict=False).network_address.is_unspecified


def _single_matches(match: ChainMatch) -> Iterator[ChainMatch]:
    """The combinations of one name, address and protocol each that a match consists of."""
    for name in match.server_names or ("",):
        for cidr in match.cidrs or ("",):
            for source in match.source_cidrs or ("",):
                for protocol in match.protocols or ("",):
                    yield attrs.evolve(
                        match,
                        server_names=(name,) if name else (),
                        cidrs=(cidr,) if cidr else (),
                        source_cidrs=(source,) if source else (),
                        protocols=(protocol,) if protocol else (),
                    )


def _reason(match: ChainMatch) -> str:
    criteria = [
        *(f"server name {n}" for n in match.server_names),
        *(f"destination {c}" for c in match.cidrs),
        *(f"source {c}" for c in match.source_cidrs),
    ]
    return f"both claim {' and '.join(criteria) or 'every connection'}"
