"""Filter chains, chosen as Envoy does (API reference: ``FilterChainMatch``): criterion by criterion, no way back.

At each criterion the most specific value that the connection has decides, and the chains with another value are out,
even if no chain is left at a later criterion.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.explain.inspection.why.matchers import Message

TLS, PLAINTEXT = "tls", "raw_buffer"


@attrs.frozen
class ChainConnection:
    """The properties of a connection by which a filter chain is chosen."""

    address: str = ""
    """The destination's, after redirection; empty: not known."""
    port: int = 0
    server_name: str = ""
    """As the TLS inspector found it."""
    transport: str = PLAINTEXT
    protocols: tuple[str, ...] = ()
    """ALPN, or the HTTP version that the HTTP inspector found, the preferred first."""
    source: str = ""


@attrs.frozen
class ChosenChain:
    """The chain that takes a connection."""

    index: int
    """Among ``filter_chains``; -1: ``default_filter_chain``."""
    chain: Message
    reasons: tuple[str, ...]
    """The criteria that decided, in words."""
    sources_matter: bool = False
    """True if another chain takes connections of other sources, and the source is not known."""


_Candidates = list[tuple[int, Message]]
_Values = Callable[[Message], Sequence[Any]]


def find_chain(listener: Message, connection: ChainConnection) -> ChosenChain | None:
    """The filter chain of a listener for a connection; None: Envoy closes it."""
    chains: _Candidates = list(enumerate(listener.get("filter_chains", ())))
    reasons: list[str] = []
    for name, values, wanted in _criteria(connection):
        chains, reason = _narrowed(chains, values, wanted)
        if not chains:
            break
        if reason:
            reasons.append(f"{name} {reason}")
    if chains:
        before = len(chains)
        chains = _by_source(chains, connection, reasons)
        if chains:
            index, chain = chains[0]
            return ChosenChain(index, chain, tuple(reasons), before > 1 and not connection.source)
    if "default_filter_chain" in listener:
        return ChosenChain(-1, listener["default_filter_chain"], ("no other chain takes the connection",))
    return None


def _criteria(connection: ChainConnection) -> Iterator[tuple[str, _Values, Sequence[tuple[Any, str]]]]:
    """(name, the values of a chain, the connection's possible values from the most specific, with words for them)."""
    yield (
        "destination port",
        lambda match: (int(match["destination_port"]),) if "destination_port" in match else (),
        [(connection.port, f"is {connection.port}")],
    )
    yield "destination address", lambda match: match.get("prefix_ranges", ()), _Ranges(connection.address)
    yield (
        "server name",
        lambda match: [str(name).lower() for name in match.get("server_names", ())],
        [*_names(connection.server_name.lower())],
    )
    yield (
        "transport",
        lambda match: (match["transport_protocol"],) if match.get("transport_protocol") else (),
        [(connection.transport, "is TLS" if connection.transport == TLS else "is plaintext")],
    )
    yield (
        "protocol",
        lambda match: match.get("application_protocols", ()),
        [(protocol, f"is {protocol}") for protocol in connection.protocols],
    )


class _Ranges(list[tuple[Any, str]]):
    """Stands for the longest range around an address."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address


def _narrowed(chains: _Candidates, values: _Values, wanted: Sequence[tuple[Any, str]]) -> tuple[_Candidates, str]:
    """The chains left after a criterion, and the value that decided; empty where no chain names any."""
    if isinstance(wanted, _Ranges):
        return _around(chains, wanted.address, "prefix_ranges")
    named = [(index, chain, values(chain.get("filter_chain_match", {}))) for index, chain in chains]
    for value, words in wanted:
        found = [(index, chain) for index, chain, its in named if value in its]
        if found:
            return found, words
    return [(index, chain) for index, chain, its in named if not its], ""


def _names(server_name: str) -> Iterator[tuple[str, str]]:
    """The names that a chain for a server name may have: itself, then ``*.`` with each of its ends."""
    if server_name:
        yield server_name, f"is {server_name}"
        rest = server_name
        while "." in rest[1:]:
            rest = rest[rest.index(".", 1) :]
            if len(rest) > 1:
                yield f"*{rest}", f"is beneath *{rest}"


def _around(chains: _Candidates, address: str, field: str) -> tuple[_Candidates, str]:
    """The chains with the longest range around an address; those without ranges are for every address."""
    best: list[tuple[int, Message]] = []
    longest, words = -1, ""
    ip = ipaddress.ip_address(address) if address else None
    for index, chain in chains:
        ranges = chain.get("filter_chain_match", {}).get(field, ())
        lengths = [length for length in (_covers(given, ip) for given in ranges) if length is not None]
        length = max(lengths, default=-1) if ranges else 0
        if length > longest:
            best, longest, words = [(index, chain)], length, f"is in {_shown(ranges, length)}" if length > 0 else ""
        elif length == longest and length >= 0:
            best.append((index, chain))
    return best, words


def _covers(given: Mapping[str, Any], ip: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> int | None:
    """The length of a CidrRange around an address; None if it is outside. No address is in ranges of length 0 only."""
    length = int(given.get("prefix_len", 0))
    if ip is None:
        return 0 if length == 0 else None
    network = ipaddress.ip_network((str(given.get("address_prefix", "")), length), strict=False)
    return length if ip in network else None


def _shown(ranges: Sequence[Mapping[str, Any]], length: int) -> str:
    found = next(r for r in ranges if int(r.get("prefix_len", 0)) == length)
    return f"{found['address_prefix']}/{length}"


def _by_source(chains: _Candidates, connection: ChainConnection, reasons: list[str]) -> _Candidates:
    """The chains left after the criteria on the source."""
    chains, reason = _around(chains, connection.source, "direct_source_prefix_ranges")
    if reason:
        reasons.append(f"directly connected source {reason}")
    typed = [(index, chain, chain.get("filter_chain_match", {}).get("source_type", "ANY")) for index, chain in chains]
    own = [(index, chain) for index, chain, kind in typed if kind == "SAME_IP_OR_LOOPBACK"]
    external = [(index, chain) for index, chain, kind in typed if kind == "EXTERNAL"]
    local = _is_local(connection)
    if local and own:
        chains = own
    elif not local and external:
        chains = external
    else:
        chains = [(index, chain) for index, chain, kind in typed if kind == "ANY"]
    chains, reason = _around(chains, connection.source, "source_prefix_ranges")
    if reason:
        reasons.append(f"source {reason}")
    # The port of a source is any: only chains for every port count.
    return [(i, c) for i, c in chains if not c.get("filter_chain_match", {}).get("source_ports")] or chains


def _is_local(connection: ChainConnection) -> bool:
    if not connection.source:
        return False
    # Of 127.0.0.0/8 Envoy takes only this one as the loopback address.
    return connection.source == connection.address or connection.source in ("127.0.0.1", "::1")
