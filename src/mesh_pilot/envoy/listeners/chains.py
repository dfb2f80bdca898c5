"""Filter chains as values: which connections each takes and what it does with them; and listeners put together
from them.

A chain is encoded where it is made and spliced where it is used, so that a listener with hundreds of chains costs
one when one changes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence

import attrs
from envoy.config.core.v3 import address_pb2, base_pb2
from envoy.config.listener.v3.listener_components_pb2 import Filter, FilterChain, FilterChainMatch
from envoy.config.listener.v3.listener_pb2 import Listener

from mesh_pilot.envoy.core.protobuf import encode, uint32
from mesh_pilot.envoy.telemetry.access_logs import AccessLogs
from mesh_pilot.mesh.conflicts import Conflict
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import LISTENER, Resource, make_resource
from mesh_pilot.protowire import field

RAW = "raw_buffer"
TLS = "tls"

PLAIN_HTTP = ("http/1.1", "h2c")
"""What the HTTP inspector finds on a plaintext connection; HTTP/1.0 is left to TCP, as Istio does."""
MESH_HTTP = ("istio-http/1.0", "istio-http/1.1", "istio-h2")
"""ALPN by which a client's proxy says that inside of mesh mTLS is HTTP."""
MESH_BYTES = ("istio",)
"""ALPN of mesh mTLS with anything inside."""
MESH = MESH_BYTES + MESH_HTTP

ANY_HOST = "*"


@attrs.frozen(cache_hash=True)
class Match:
    """Which connections a chain takes; what is empty is not looked at, and of each list one must fit."""

    server_names: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    """Destination addresses."""
    source_cidrs: tuple[str, ...] = ()
    port: int = 0
    protocols: tuple[str, ...] = ()
    """ALPN of TLS, or what an inspector found."""
    transport: str = ""

    @property
    def is_any(self) -> bool:
        """Whether it takes every connection."""
        return self == ANY


ANY = Match()


@attrs.frozen(cache_hash=True)
class Chain:
    """A filter chain."""

    match: Match
    body: bytes = attrs.field(repr=False)
    """The encoded ``FilterChain`` without its match."""
    host: str = ""
    """The service that it is for, to name it in a conflict."""
    configs: tuple[ConfigKey, ...] = ()


def chain(
    match: Match,
    filters: Iterable[Filter],
    *,
    name: str = "",
    transport_socket: base_pb2.TransportSocket | None = None,
    host: str = "",
    configs: tuple[ConfigKey, ...] = (),
) -> Chain:
    """A chain of network filters."""
    message = FilterChain(name=name, filters=filters, transport_socket=transport_socket)
    return Chain(match, encode(message), host, configs)


def sni_match(server_names: Iterable[str], cidrs: Iterable[str], source_cidrs: Iterable[str] = ()) -> Match:
    """A match by server name and addresses, where ``*`` and whole-world subnets say nothing."""
    names = tuple(dict.fromkeys(server_names))
    return Match(
        server_names=() if ANY_HOST in names else names,
        cidrs=tuple(sorted({c for c in cidrs if not _is_everywhere(c)})),
        source_cidrs=tuple(sorted({c for c in source_cidrs if not _is_everywhere(c)})),
    )


def merge(listener: str, chains: Iterable[Chain]) -> tuple[tuple[Chain, ...], tuple[Conflict, ...]]:
    """The chains that one listener can have: what an earlier one takes, a later one does not get.

    Envoy refuses a listener in which two chains match the same; so a later chain is narrowed to what is left, or
    dropped. Either is a conflict.
    """
    chains = tuple(chains)
    if len(chains) == 1:
        return chains, ()
    taken: dict[Match, Chain] = {}
    kept: list[Chain] = []
    conflicts: list[Conflict] = []
    for candidate in chains:
        free = [m for m in _single_matches(candidate.match) if m not in taken]
        lost = [m for m in _single_matches(candidate.match) if m in taken]
        if not lost:
            kept.append(candidate)
        else:
            kept += (attrs.evolve(candidate, match=m) for m in free)
            other = taken[lost[0]]
            if other.host != candidate.host and other.body != candidate.body:
                conflicts.append(Conflict(listener, other.host, candidate.host, _reason(lost[0])))
        taken.update((m, candidate) for m in free)
    return tuple(kept), tuple(conflicts)


def assemble(
    header: Listener,
    chains: Sequence[Chain],
    *,
    default: Chain | None = None,
    logs: AccessLogs = (),
    buffer: int = 0,
    configs: tuple[ConfigKey, ...] = (),
) -> Resource:
    """A listener from its fixed part and its chains; ``buffer`` is how many bytes a connection may hold (0: as Envoy
    has it), ``configs`` what it is made from besides those of its chains."""
    if buffer:
        header.per_connection_buffer_limit_bytes.CopyFrom(uint32(buffer))
    body = [encode(header)]
    body += (field(Listener.FILTER_CHAINS_FIELD_NUMBER, _encoded(c)) for c in chains)
    if default is not None:
        body.append(field(Listener.DEFAULT_FILTER_CHAIN_FIELD_NUMBER, default.body))
    body += (field(Listener.ACCESS_LOG_FIELD_NUMBER, log) for log in logs)
    every = (*chains, default) if default else chains
    sources = dict.fromkeys((*(key for c in every for key in c.configs), *configs))
    return make_resource(header.name, LISTENER, b"".join(body), tuple(sources))


def balance_exactly(header: Listener) -> None:
    """Have Envoy spread connections evenly over its worker threads, at the price of a lock: for few, long ones."""
    header.connection_balance_config.exact_balance.SetInParent()


def _encoded(item: Chain) -> bytes:
    if item.match.is_any:
        return item.body
    return field(FilterChain.FILTER_CHAIN_MATCH_FIELD_NUMBER, encode(_message(item.match))) + item.body


def _message(match: Match) -> FilterChainMatch:
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


def _is_everywhere(cidr: str) -> bool:
    """Every address, or an unspecified one, which Istio takes for "no address"."""
    return not cidr or ipaddress.ip_network(cidr, strict=False).network_address.is_unspecified


def _single_matches(match: Match) -> Iterator[Match]:
    """The matches of one name, address and protocol each that a match is made of."""
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


def _reason(match: Match) -> str:
    said = [
        *(f"server name {n}" for n in match.server_names),
        *(f"destination {c}" for c in match.cidrs),
        *(f"source {c}" for c in match.source_cidrs),
    ]
    return f"both claim {' and '.join(said) or 'every connection'}"
