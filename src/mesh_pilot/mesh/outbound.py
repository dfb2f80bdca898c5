"""Which outbound listeners a sidecar has, and what meets on each, worked out in shares.

Whoever comes first to a listener decides what it is; what follows joins it, leaves it as it is, or gets no place. So
listeners do not depend on each other, and those at services' own addresses are planned by bucket of the services.
Those that many share (on the wildcard address, or of a Sidecar's egress listener) are planned together, from what of
each bucket makes a difference: of HTTP services only the first. An egress listener further up that has a listener
keeps those below from it. Rules: Istio's Sidecar reference; Pilot's rules for what shares a port.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from mesh_pilot.incremental import derived
from mesh_pilot.mesh.conflicts import Conflict, ConflictKind
from mesh_pilot.mesh.listener_candidates import ListenerCandidate, Order, TcpMember, has_port, listener_candidates
from mesh_pilot.mesh.names import listener_name
from mesh_pilot.mesh.overlap_index import overlap_index
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.sidecar_scope import egress_listeners, scope_buckets
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

SERVER_FIRST = frozenset((Protocol.MYSQL, Protocol.MONGO))
"""Protocols in which the server may speak first: an HTTP inspector on their port would wait for ever."""

SHARED = 0
"""Stands for a bucket: listeners on which services of several buckets meet."""

NOTHING: frozenset[str] = frozenset()


@attrs.frozen(cache_hash=True)
class OutboundListener:
    """One outbound listener: where it is, and what is on it."""

    bind: str
    port: int
    """0 for a Unix socket."""
    bind_to_port: bool = False
    """The application connects to it; else connections are captured and come by way of virtualOutbound."""
    http: Protocol | None = None
    """The protocol of the first HTTP service on it; None: no HTTP."""
    route_name: str = ""
    """Name of its route table."""
    sniffed: bool = False
    """HTTP is only what an inspector finds to be HTTP; the rest goes where TCP goes."""
    tcp: tuple[TcpMember, ...] = ()
    """In order of precedence."""

    @property
    def name(self) -> str:
        return listener_name(self.bind, self.port)


@attrs.frozen
class OutboundListeners:
    listeners: Mapping[str, OutboundListener]
    """By name."""
    conflicts: tuple[tuple[Order, Conflict], ...] = ()
    """With the place of what was refused."""

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.listeners)


@attrs.frozen(cache_hash=True)
class ListenerShard:
    """Some of the outbound listeners of a scope: those of a bucket, or those that are shared."""

    scope: OutboundScope
    bucket: int
    disputed: frozenset[str] = NOTHING
    """Names of listeners at own addresses on which services of several buckets meet: they are among the shared."""


@derived
def outbound_listeners(view: View, scope: OutboundScope) -> OutboundListeners:
    """The outbound listeners of a scope; virtualOutbound is not among them. Conflicts are in order."""
    plans = [share_plan(view, share) for share in listener_shards(view, scope)]
    listeners = {name: listener for plan in plans for name, listener in plan.listeners.items()}
    return OutboundListeners(
        listeners, tuple(sorted((c for plan in plans for c in plan.conflicts), key=lambda c: c[0]))
    )


@derived
def listener_shards(view: View, scope: OutboundScope) -> tuple[ListenerShard, ...]:
    """The shares of the outbound listeners of a scope that have any."""
    own = {bucket: _own(view, scope, bucket).names for bucket in scope_buckets(view, scope)}
    if not any(own.values()):
        return (ListenerShard(scope, SHARED),)
    ledger = overlap_index(view, "listeners", scope)
    disputed = ledger.shared(own).union(name for name in _shared_names(view, scope) if name in ledger)
    found = (ListenerShard(scope, bucket, names & disputed) for bucket, names in own.items() if names)
    return (ListenerShard(scope, SHARED, disputed), *found)


def share_plan(view: View, share: ListenerShard) -> OutboundListeners:
    """The listeners of a share."""
    if share.bucket == SHARED:
        return _shared(view, share.scope, share.disputed)
    plan = _own(view, share.scope, share.bucket)
    if not share.disputed:
        return plan
    listeners = {name: listener for name, listener in plan.listeners.items() if name not in share.disputed}
    return OutboundListeners(listeners, tuple(c for c in plan.conflicts if c[1].listener not in share.disputed))


@derived
def _own(view: View, scope: OutboundScope, bucket: int) -> OutboundListeners:
    """The listeners at own addresses of the services in a bucket."""
    found: dict[str, list[ListenerCandidate]] = {}
    for spot in listener_candidates(view, scope, bucket):
        if spot.is_own:
            found.setdefault(spot.name, []).append(spot)
    return _settled(_ListenerMerger(view, scope), found)


@derived
def _wanted(view: View, scope: OutboundScope, bucket: int) -> Mapping[str, tuple[ListenerCandidate, ...]]:
    """What the services in a bucket want of shared listeners: of HTTP services on each only the first."""
    found: dict[str, list[ListenerCandidate]] = {}
    with_http: set[str] = set()
    for spot in listener_candidates(view, scope, bucket):
        if spot.is_own:
            continue
        name = spot.name
        if spot.member is None:
            if name in with_http:
                continue
            with_http.add(name)
        found.setdefault(name, []).append(spot)
    return {name: tuple(wanted) for name, wanted in found.items()}


@derived
def _shared_names(view: View, scope: OutboundScope) -> frozenset[str]:
    return frozenset().union(*(_wanted(view, scope, bucket) for bucket in scope_buckets(view, scope)))


@derived
def _shared(view: View, scope: OutboundScope, disputed: frozenset[str]) -> OutboundListeners:
    """The listeners on which services of several buckets meet."""
    every = scope_buckets(view, scope)
    found: dict[str, list[ListenerCandidate]] = {}
    for bucket in every:
        for name, wanted in _wanted(view, scope, bucket).items():
            found.setdefault(name, []).extend(wanted)
        if disputed and not disputed.isdisjoint(_own(view, scope, bucket).names):
            for spot in listener_candidates(view, scope, bucket):
                if spot.is_own and spot.name in disputed:
                    found.setdefault(spot.name, []).append(spot)
    settler = _ListenerMerger(view, scope)
    plan = _settled(settler, found)
    if not settler.refused_http:
        return plan
    # All HTTP services on these listeners are refused, and each is to be told of.
    again = {name: [s for s in found[name] if s.member is not None] for name in settler.refused_http}
    for bucket in every:
        for spot in listener_candidates(view, scope, bucket):
            if spot.member is None and spot.name in again:
                again[spot.name].append(spot)
    return _settled(_ListenerMerger(view, scope), {**found, **again})


def _settled(settler: _ListenerMerger, wanted: Mapping[str, list[ListenerCandidate]]) -> OutboundListeners:
    listeners = {}
    for name, found in wanted.items():
        listener = settler.settle(sorted(found, key=lambda spot: spot.order))
        if listener is not None:
            listeners[name] = listener
    return OutboundListeners(listeners, tuple(sorted(settler.conflicts, key=lambda conflict: conflict[0])))


@attrs.define
class _Held:
    """A listener as it grows."""

    bind: str
    port: int
    bind_to_port: bool
    first: str
    """Host of the first service on it."""
    opened: int
    """The place of the egress listener of that."""
    http: Protocol | None = None
    route_name: str = ""
    sniffed: bool = False
    tcp: list[TcpMember] = attrs.Factory(list)

    def listener(self) -> OutboundListener:
        """The listener as it is now. TLS services that would be told apart by nothing are so by server name."""
        tls = {m.service.host for m in self.tcp if m.protocol.is_tls}
        tcp = (
            (attrs.evolve(m, by_name=True) if m.protocol.is_tls else m for m in self.tcp) if len(tls) > 1 else self.tcp
        )
        return OutboundListener(
            self.bind, self.port, self.bind_to_port, self.http, self.route_name, self.sniffed, tuple(tcp)
        )


class _ListenerMerger:
    """Decides who gets a place on a listener, one listener after the other."""

    def __init__(self, view: View, scope: OutboundScope) -> None:
        egress = enumerate(egress_listeners(view, scope))
        self._catch_all = [at for at, listener in egress if not has_port(listener)]
        self._wildcard = scope.wildcard
        self.conflicts: list[tuple[Order, Conflict]] = []
        self.refused_http: set[str] = set()
        """Names of listeners on which HTTP got no place beside a protocol in which the server speaks first."""

    def settle(self, wanted: Iterable[ListenerCandidate]) -> OutboundListener | None:
        """The listener for these, which want the same one, in order; None where none of them gets it."""
        held: _Held | None = None
        for spot in wanted:
            held = self._with_http(held, spot) if spot.member is None else self._with_tcp(held, spot, spot.member)
        return held.listener() if held is not None else None

    def _is_locked(self, held: _Held, spot: ListenerCandidate) -> bool:
        """Whether a listener is of an egress listener further up, and closed to those below."""
        return any(held.opened < at <= spot.egress for at in self._catch_all)

    def _with_http(self, held: _Held | None, spot: ListenerCandidate) -> _Held:
        sniffed = spot.bind == self._wildcard and spot.protocol is not Protocol.HTTP_PROXY
        if held is None:
            held = _opened(spot)
        elif held.http is not None or self._is_locked(held, spot):
            return held
        elif self._server_first(held, spot):
            self.refused_http.add(spot.name)
            return held
        else:
            sniffed = True
        held.http, held.sniffed = spot.protocol, sniffed
        held.route_name = str(spot.port) if spot.port else spot.bind
        return held

    def _with_tcp(self, held: _Held | None, spot: ListenerCandidate, member: TcpMember) -> _Held | None:
        if held is not None and (self._is_locked(held, spot) or self._stays_out(held, spot)):
            return held
        if not member.cluster_port:
            reason = "a Unix socket has no port by which to choose one of the service's"
            self.conflicts.append((spot.order, Conflict(spot.name, "", spot.host, reason)))
            return held
        held = held or _opened(spot)
        held.tcp.append(member)
        auto = spot.protocol is Protocol.AUTO
        if auto and held.http is None:
            held.http = Protocol.AUTO
            own_address = spot.bind != self._wildcard
            held.route_name = f"{spot.host}:{spot.port}" if own_address else str(spot.port)
        held.sniffed = held.http is not None
        return held

    def _stays_out(self, held: _Held, spot: ListenerCandidate) -> bool:
        """Whether a TCP service gets no place on a listener that is there already."""
        if spot.protocol is not Protocol.AUTO or held.http is None or not held.sniffed:
            return self._server_first(held, spot)
        if not held.tcp:
            self._refuse(held, spot, "connections that are not HTTP pass through, because HTTP came first")
        return True

    def _server_first(self, held: _Held, spot: ListenerCandidate) -> bool:
        """Whether two can't share a listener, because an inspector would keep one waiting for its server to speak."""
        if spot.protocol in SERVER_FIRST:
            clash = held.http is not None
        else:
            sniffs = spot.protocol.is_http or spot.protocol is Protocol.AUTO
            clash = sniffs and any(m.protocol in SERVER_FIRST for m in held.tcp)
        if clash:
            self._refuse(held, spot, "a protocol in which the server speaks first can't share a port with HTTP")
        return clash

    def _refuse(self, held: _Held, spot: ListenerCandidate, reason: str) -> None:
        kind = ConflictKind.TCP_OVER_TCP
        if spot.protocol.is_http:
            kind = ConflictKind.HTTP_OVER_TCP
        elif held.http is not None and not held.tcp:
            kind = ConflictKind.TCP_OVER_HTTP
        self.conflicts.append((spot.order, Conflict(spot.name, held.first, spot.host, reason, kind)))


def _opened(spot: ListenerCandidate) -> _Held:
    return _Held(spot.bind, spot.port, spot.bind_to_port, spot.host, spot.egress)
