"""Which outbound listeners a sidecar has, and which services share them.

Several services may want one listener. The first decides what it is; each later one joins it, leaves it as it is, or
is left out with a conflict. Listeners do not depend on each other. Those at services' own addresses are therefore
planned shard by shard. Common listeners (on the wildcard address, or of a Sidecar's egress listener with a port) are
planned together, from the candidates of each shard that can make a difference: of HTTP services only the first. Later
egress listeners may not add to the listeners of earlier ones.

Why a merger that meets candidates in order, and not a rule for sets of them: which service comes first decides what a
listener is, as in Pilot, and most conflicts are told to the later one. A merge that is updated would have to undo what
a service that goes had decided; a merge of one listener from its candidates is cheap, and shards see to it that only
those listeners are merged again whose candidates changed.

Rules: Istio's Sidecar reference; Pilot's rules for services that share a port.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.mesh.listeners.candidates import ListenerCandidate, Order, TcpMember, has_port, listener_candidates
from mesh_pilot.mesh.listeners.conflicts import Conflict, ConflictKind
from mesh_pilot.mesh.names.resources import bound_listener_name, listener_name
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.joins import shard_groups, values_by_shard
from mesh_pilot.mesh.reach.overlap_index import overlap_index
from mesh_pilot.mesh.reach.sidecar_scope import egress_listeners, scope_shard_bits, scope_shards
from mesh_pilot.mesh.settings.mesh_defaults import READINESS_AND_METRICS, capture_ports
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.shards import CROSS_SHARD, subshards
from mesh_pilot.world.view import View

SERVER_FIRST = frozenset((Protocol.MYSQL, Protocol.MONGO))
"""Protocols in which the server may send first: an HTTP inspector on their port would wait forever."""

NO_NAMES: frozenset[str] = frozenset()


@attrs.frozen(cache_hash=True)
class OutboundListener:
    """One outbound listener: its address, and the services on it."""

    bind: str
    port: int
    """0 for a Unix socket."""
    bind_to_port: bool = False
    """True if the application connects to it; False if connections are captured, and come through virtualOutbound."""
    http: Protocol | None = None
    """The protocol of the first HTTP service on it; None: no HTTP."""
    route_name: str = ""
    """The name of its route table."""
    sniffed: bool = False
    """True if an inspector detects HTTP, and all other traffic is TCP."""
    tcp: tuple[TcpMember, ...] = ()
    """In order of precedence."""

    beside_captured: bool = False
    """True if it binds its port where other listeners of the sidecar get captured connections, and do not bind."""
    also: tuple[str, ...] = ()
    """Further addresses that it listens at."""

    @property
    def name(self) -> str:
        """Envoy 1.40 crashes if a listener stops to bind its port, so one that binds has its own name."""
        return (
            bound_listener_name(self.bind, self.port) if self.beside_captured else listener_name(self.bind, self.port)
        )


@attrs.frozen
class OutboundListeners:
    """Outbound listeners, and the services that they have no room for."""

    listeners: Mapping[str, OutboundListener]
    """Listeners by address and port, as ``listener_name`` joins them."""
    conflicts: tuple[tuple[Order, Conflict], ...] = ()
    """With the order of the candidate that lost."""

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.listeners)


@attrs.frozen(cache_hash=True)
class ListenerShard:
    """Some of the outbound listeners of a scope: those at own addresses of services in a shard, or those in common."""

    scope: OutboundScope
    shard: int
    """``CROSS_SHARD``: the listeners in common."""
    contested: frozenset[str] = NO_NAMES
    """Names of listeners at own addresses that services of several shards want: they belong to ``CROSS_SHARD``."""


@derived
def outbound_listeners(view: View, scope: OutboundScope) -> OutboundListeners:
    """The outbound listeners of a scope, without virtualOutbound. Conflicts are in order."""
    found = [shard_listeners(view, shard) for shard in listener_shards(view, scope)]
    listeners = {name: listener for part in found for name, listener in part.listeners.items()}
    return OutboundListeners(
        listeners, tuple(sorted((c for part in found for c in part.conflicts), key=lambda c: c[0]))
    )


@derived
def listener_shards(view: View, scope: OutboundScope) -> tuple[ListenerShard, ...]:
    """The shards of a scope that have any outbound listeners."""
    found_in = values_by_shard(view, scope_shards(view, scope), _own_address_listeners, scope)
    own = {shard: found.names for shard, found in found_in.items()}
    if not any(own.values()):
        return (ListenerShard(scope, CROSS_SHARD),)
    overlaps = overlap_index(view, "listeners", scope)
    contested = overlaps.shared(own).union(name for name in _common_names(view, scope) if name in overlaps)
    found = (ListenerShard(scope, shard, names & contested) for shard, names in own.items() if names)
    return (ListenerShard(scope, CROSS_SHARD, contested), *found)


def shard_listeners(view: View, shard: ListenerShard) -> OutboundListeners:
    """The listeners of a shard."""
    if shard.shard == CROSS_SHARD:
        return _common_listeners(view, shard.scope, shard.contested)
    found = _own_address_listeners(view, shard.scope, shard.shard)
    if not shard.contested:
        return found
    listeners = {name: listener for name, listener in found.listeners.items() if name not in shard.contested}
    return OutboundListeners(listeners, tuple(c for c in found.conflicts if c[1].listener not in shard.contested))


@derived
def _own_address_listeners(view: View, scope: OutboundScope, shard: int) -> OutboundListeners:
    """The listeners at services' own addresses, of the services in a shard."""
    found: dict[str, list[ListenerCandidate]] = {}
    for candidate in listener_candidates(view, scope, shard):
        if candidate.is_own:
            found.setdefault(candidate.name, []).append(candidate)
    return _merged(_ListenerMerger(view, scope), found)


@derived
def _common_candidates(view: View, scope: OutboundScope, shard: int) -> Mapping[str, tuple[ListenerCandidate, ...]]:
    """The candidates for common listeners, by listener: of HTTP services on each only the first. Those of a shard, or
    of a group of shards."""
    bits = scope_shard_bits(view, scope)
    if shard.bit_length() <= bits:
        parts = (_common_candidates(view, scope, part).values() for part in subshards(shard, bits))
        several = (candidate for part in parts for candidates in part for candidate in candidates)
        every: Iterable[ListenerCandidate] = sorted(several, key=lambda candidate: candidate.order)
    else:
        every = (candidate for candidate in listener_candidates(view, scope, shard) if not candidate.is_own)
    found: dict[str, list[ListenerCandidate]] = {}
    with_http: set[str] = set()
    for candidate in every:
        name = candidate.name
        if candidate.member is None:
            if name in with_http:
                continue
            with_http.add(name)
        found.setdefault(name, []).append(candidate)
    return {name: tuple(candidates) for name, candidates in found.items()}


@derived
def _common_names(view: View, scope: OutboundScope) -> frozenset[str]:
    groups = shard_groups(scope_shards(view, scope))
    return frozenset().union(*(_common_candidates(view, scope, group) for group in groups))


@derived
def _common_listeners(view: View, scope: OutboundScope, contested: frozenset[str]) -> OutboundListeners:
    """The listeners that services of several shards may share."""
    every = scope_shards(view, scope)
    found: dict[str, list[ListenerCandidate]] = {}
    for group in shard_groups(every):
        for name, candidates in _common_candidates(view, scope, group).items():
            found.setdefault(name, []).extend(candidates)
    # Listeners at own addresses are only here if another shard wants them, too.
    for shard in every if contested else ():
        if not contested.isdisjoint(_own_address_listeners(view, scope, shard).names):
            for candidate in listener_candidates(view, scope, shard):
                if candidate.is_own and candidate.name in contested:
                    found.setdefault(candidate.name, []).append(candidate)
    merger = _ListenerMerger(view, scope)
    merged = _merged(merger, found)
    if not merger.without_http:
        return merged
    # On these listeners all HTTP services are left out, and each needs a conflict: merge again, with all of them.
    again = {name: [c for c in found[name] if c.member is not None] for name in merger.without_http}
    for shard in every:
        for candidate in listener_candidates(view, scope, shard):
            if candidate.member is None and candidate.name in again:
                again[candidate.name].append(candidate)
    return _merged(_ListenerMerger(view, scope), {**found, **again})


def _merged(merger: _ListenerMerger, candidates: Mapping[str, list[ListenerCandidate]]) -> OutboundListeners:
    listeners = {}
    for name, found in candidates.items():
        listener = merger.merge(sorted(found, key=lambda candidate: candidate.order))
        if listener is None:
            continue
        # Envoy takes no address twice: where a Sidecar has a listener at it, that is the one.
        also = tuple(each for each in listener.also if listener_name(each, listener.port) not in candidates)
        listeners[name] = listener if also == listener.also else attrs.evolve(listener, also=also)
    return OutboundListeners(listeners, tuple(sorted(merger.conflicts, key=lambda conflict: conflict[0])))


@attrs.define
class _ListenerBuilder:
    """A listener while candidates are merged into it."""

    bind: str
    port: int
    bind_to_port: bool
    first: str
    """The host of the first service on it."""
    egress: int
    """The index of that service's egress listener."""
    is_wildcard: bool
    http: Protocol | None = None
    sniffed: bool = False
    tcp: list[TcpMember] = attrs.Factory(list)
    beside_captured: bool = False
    also: tuple[str, ...] = ()
    hosts: set[str] = attrs.Factory(set)
    """The hosts of all services whose connections it gets."""

    def listener(self) -> OutboundListener:
        """The listener with the services merged so far. TLS services that share it have chains by server name."""
        hosts = {m.service.host for m in self.tcp}
        tcp = (
            (attrs.evolve(m, by_name=True) if m.protocol.is_tls else m for m in self.tcp)
            if len(hosts) > 1
            else self.tcp
        )
        return OutboundListener(
            self.bind,
            self.port,
            self.bind_to_port,
            self.http,
            self._route_name() if self.http is not None else "",
            self.sniffed,
            tuple(tcp),
            self.beside_captured,
            self.also,
        )

    def _route_name(self) -> str:
        """The table of the port, which tells services apart by Host. A service of undeclared protocol that is alone at
        an address has a separate table, for any Host."""
        if self.http is Protocol.AUTO and len(self.hosts) == 1 and self.port and not self.is_wildcard:
            return f"{self.first}:{self.port}"
        return str(self.port) if self.port else self.bind


class _ListenerMerger:
    """Merges the candidates of listeners, one listener after the other."""

    def __init__(self, view: View, scope: OutboundScope) -> None:
        egress = enumerate(egress_listeners(view, scope))
        self._catch_all = [index for index, listener in egress if not has_port(listener)]
        self._wildcard = scope.wildcard
        self._captures = scope.interception is not Interception.NONE
        captured = dict.fromkeys(capture_ports(view) if self._captures else (), "for captured connections")
        own = {**dict.fromkeys(READINESS_AND_METRICS, "for readiness or metrics"), **captured}
        self._own = {listener_name(at, port): why for at in scope.wildcards for port, why in own.items()}
        """The addresses and ports at which the sidecar itself listens, and what for."""
        self.conflicts: list[tuple[Order, Conflict]] = []
        self.without_http: set[str] = set()
        """Names of listeners on which HTTP is left out because of a server-first protocol."""

    def merge(self, candidates: Iterable[ListenerCandidate]) -> OutboundListener | None:
        """The listener for candidates with the same name, in order; None if all of them are left out."""
        builder: _ListenerBuilder | None = None
        for candidate in candidates:
            if candidate.name in self._own:
                reason = f"the sidecar itself listens there, {self._own[candidate.name]}"
                self.conflicts.append((candidate.order, Conflict(candidate.name, "", candidate.host, reason)))
            elif candidate.member is None:
                builder = self._with_http(builder, candidate)
            else:
                builder = self._with_tcp(builder, candidate, candidate.member)
            if builder is not None:
                builder.hosts.add(candidate.host)
        if builder is None:
            return None
        builder.beside_captured = self._captures and builder.bind_to_port and builder.bind == self._wildcard
        return builder.listener()

    def _is_locked(self, builder: _ListenerBuilder, candidate: ListenerCandidate) -> bool:
        """True if the listener is of an earlier egress listener, and closed to the candidate's."""
        return any(builder.egress < index <= candidate.egress for index in self._catch_all)

    def _with_http(self, builder: _ListenerBuilder | None, candidate: ListenerCandidate) -> _ListenerBuilder:
        sniffed = candidate.bind == self._wildcard and candidate.protocol is not Protocol.HTTP_PROXY
        if builder is None:
            builder = self._builder_of(candidate)
        elif builder.http is not None or self._is_locked(builder, candidate):
            return builder
        elif self._is_server_first_conflict(builder, candidate):
            self.without_http.add(candidate.name)
            return builder
        else:
            sniffed = True
        builder.http, builder.sniffed = candidate.protocol, sniffed
        return builder

    def _with_tcp(
        self, builder: _ListenerBuilder | None, candidate: ListenerCandidate, member: TcpMember
    ) -> _ListenerBuilder | None:
        if builder is not None and (self._is_locked(builder, candidate) or self._is_left_out(builder, candidate)):
            return builder
        if not member.cluster_port:
            reason = "a Unix socket has no port by which to choose one of the service's"
            self.conflicts.append((candidate.order, Conflict(candidate.name, "", candidate.host, reason)))
            return builder
        builder = builder or self._builder_of(candidate)
        builder.tcp.append(member)
        if candidate.protocol is Protocol.AUTO and builder.http is None:
            builder.http = Protocol.AUTO
        builder.sniffed = builder.http is not None
        return builder

    def _is_left_out(self, builder: _ListenerBuilder, candidate: ListenerCandidate) -> bool:
        """True if a TCP service can't join a listener."""
        if candidate.protocol is not Protocol.AUTO or builder.http is None or not builder.sniffed:
            return self._is_server_first_conflict(builder, candidate)
        # Its protocol is detected, as the listener does anyway: only the TCP half can be in conflict.
        if not builder.tcp:
            self._add_conflict(
                builder, candidate, "connections that are not HTTP pass through, because HTTP came first"
            )
        elif builder.tcp[0].service.host != candidate.host:
            self._add_conflict(builder, candidate, "connections that are not HTTP go to the service that came first")
        return True

    def _is_server_first_conflict(self, builder: _ListenerBuilder, candidate: ListenerCandidate) -> bool:
        """True if an HTTP inspector on the listener would wait for a client while the server has to send first."""
        if candidate.protocol in SERVER_FIRST:
            conflict = builder.http is not None
        else:
            sniffs = candidate.protocol.is_http or candidate.protocol is Protocol.AUTO
            conflict = sniffs and any(m.protocol in SERVER_FIRST for m in builder.tcp)
        if conflict:
            self._add_conflict(
                builder, candidate, "a protocol in which the server speaks first can't share a port with HTTP"
            )
        return conflict

    def _add_conflict(self, builder: _ListenerBuilder, candidate: ListenerCandidate, reason: str) -> None:
        kind = ConflictKind.TCP_OVER_TCP
        if candidate.protocol.is_http:
            kind = ConflictKind.HTTP_OVER_TCP
        elif builder.http is not None and not builder.tcp:
            kind = ConflictKind.TCP_OVER_HTTP
        conflict = Conflict(candidate.name, builder.first, candidate.host, reason, kind)
        self.conflicts.append((candidate.order, conflict))

    def _builder_of(self, candidate: ListenerCandidate) -> _ListenerBuilder:
        return _ListenerBuilder(
            candidate.bind,
            candidate.port,
            candidate.bind_to_port,
            candidate.host,
            candidate.egress,
            is_wildcard=candidate.bind == self._wildcard,
            also=candidate.also,
        )
