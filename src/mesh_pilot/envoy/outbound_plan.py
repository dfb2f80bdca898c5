"""Which outbound listeners a sidecar has, and what meets on each.

HTTP services of a port share one wildcard listener and are told apart by their host header; TCP services have a
listener at each of their addresses, or share the wildcard one where they have none. A Sidecar's egress listener with
a port has that port alone, and what follows it does not add to it. Only heads are read: services' ports and
addresses, VirtualServices' hosts. Rules: Istio's Sidecar reference; Pilot's rules for what shares a port.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import attrs

from mesh_pilot.envoy.chains import UNIX_PREFIX, Conflict, ConflictKind, listener_name
from mesh_pilot.envoy.egress import Egress, egress_listeners, egress_services, egress_virtual_services
from mesh_pilot.envoy.scope import Scope
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.service import UNSPECIFIED, Protocol, Resolution, Service, ServiceKey
from mesh_pilot.world.names import host_matches
from mesh_pilot.world.view import View, VirtualServiceHead

SERVER_FIRST = frozenset((Protocol.MYSQL, Protocol.MONGO))
"""Protocols in which the server may speak first: an HTTP inspector on their port would wait for ever."""


@attrs.frozen(cache_hash=True)
class TcpMember:
    """A TCP service on a listener."""

    service: ServiceKey
    port: int
    """The listener's port, by which routes match."""
    cluster_port: int
    """The service's port that connections go to."""
    protocol: Protocol
    cidr: str = ""
    """The addresses that mean this service, where the listener has others too."""
    by_name: bool = False
    """Told apart by TLS server name, because it has no address of its own."""
    virtual_services: tuple[ConfigKey, ...] = ()
    """Those that may have tls or tcp routes for it, in order of precedence."""


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
class OutboundPlan:
    listeners: tuple[OutboundListener, ...]
    conflicts: tuple[Conflict, ...]


def outbound_plan(view: View, scope: Scope) -> OutboundPlan:
    """The outbound listeners of a scope, in the order in which they came up; virtualOutbound is not among them."""
    planner = _Planner(view, scope)
    for egress in view.get(egress_listeners, scope):
        planner.add(egress)
    return OutboundPlan(tuple(h.listener() for h in planner.held.values()), tuple(planner.conflicts))


@attrs.define
class _Held:
    """A listener as it grows."""

    bind: str
    port: int
    bind_to_port: bool
    locked: bool = False
    """From an egress listener further up: closed to those below."""
    http: Protocol | None = None
    route_name: str = ""
    sniffed: bool = False
    first: str = ""
    """Host of the first service on it."""
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


class _Planner:
    """Puts services on listeners, one egress listener after the other."""

    def __init__(self, view: View, scope: Scope) -> None:
        self.view = view
        self.scope = scope
        self.held: dict[str, _Held] = {}
        self.conflicts: list[Conflict] = []
        self.unprivileged = scope.is_on("UNPRIVILEGED_POD")

    def add(self, egress: Egress) -> None:
        view, scope = self.view, self.scope
        bind_to_port = egress.capture_none or scope.interception is Interception.NONE
        routes = _RouteHeads(view.get(egress_virtual_services, scope, egress))
        services = view.get(egress_services, scope, egress)
        with_port = bool(egress.port) or egress.bind.startswith(UNIX_PREFIX)
        if with_port:
            if not self._may_bind(bind_to_port, egress.port):
                return
            bind = egress.bind or (scope.loopback if bind_to_port else scope.wildcard)
            for service in services:
                for address in self._addresses(service):
                    spot = _Spot(service, address, egress.port, egress.protocol, bind, bind_to_port)
                    self._place(spot, routes)
            return
        for held in self.held.values():
            held.locked = True
        bind = egress.bind or (scope.loopback if bind_to_port else "")
        for service in services:
            for address in self._addresses(service):
                for port in service.ports:
                    if not self._may_bind(bind_to_port, port.number):
                        continue
                    for spot_bind in self._binds(service, address, port.name, port.protocol, bind):
                        spot = _Spot(service, address, port.number, port.protocol, spot_bind, bind_to_port)
                        self._place(spot, routes)

    def _may_bind(self, bind_to_port: bool, port: int) -> bool:
        return not (bind_to_port and self.unprivileged and 0 < port < 1024)

    def _addresses(self, service: Service) -> tuple[str, ...]:
        """The addresses that clients know a service by; UNSPECIFIED for none."""
        if service.addresses:
            return service.addresses
        if service.auto_address and self.scope.auto_addresses:
            return (service.auto_address,)
        return (UNSPECIFIED,)

    def _binds(self, service: Service, address: str, port: str, protocol: Protocol, bind: str) -> tuple[str, ...]:
        """Where the listeners of a service port are; empty text: as the protocol has it.

        A headless TCP service has one at each endpoint, because that is what its clients connect to.
        """
        if bind or address != UNSPECIFIED or service.resolution is not Resolution.PASSTHROUGH or protocol.is_http:
            return (bind,)
        addresses = self.view.get(_endpoint_addresses, service.key, port)
        if not addresses and service.registry != "Kubernetes" and not service.selector:
            return (bind,)
        return tuple(a for a in addresses if _is_ip(a))

    def _place(self, spot: _Spot, routes: _RouteHeads) -> None:
        if spot.protocol.is_http:
            self._place_http(spot)
        elif spot.protocol is Protocol.AUTO or spot.protocol.is_tcp:
            self._place_tcp(spot, routes)

    def _place_http(self, spot: _Spot) -> None:
        bind = spot.bind or self.scope.wildcard
        held = self.held.get(listener_name(bind, spot.port))
        sniffed = bind == self.scope.wildcard and spot.protocol is not Protocol.HTTP_PROXY
        if held is None:
            held = self._open(spot, bind)
        elif held.locked or held.http is not None or self._server_first(held, spot):
            return
        else:
            sniffed = True
        held.http, held.sniffed = spot.protocol, sniffed
        held.route_name = str(spot.port) if spot.port else bind

    def _place_tcp(self, spot: _Spot, routes: _RouteHeads) -> None:
        bind, cidr = (spot.bind, "") if spot.bind else self._bind_of(spot.address)
        held = self.held.get(listener_name(bind, spot.port))
        if held is not None and (held.locked or self._stays_out(held, spot)):
            return
        member = self._member(spot, bind, cidr, routes)
        if not member.cluster_port:
            reason = "a Unix socket has no port by which to choose one of the service's"
            self.conflicts.append(Conflict(listener_name(bind, spot.port), "", spot.service.host, reason))
            return
        held = held or self._open(spot, bind)
        held.tcp.append(member)
        auto = spot.protocol is Protocol.AUTO
        if auto and held.http is None:
            held.http = Protocol.AUTO
            own_address = bind != self.scope.wildcard
            held.route_name = f"{spot.service.host}:{spot.port}" if own_address else str(spot.port)
        held.sniffed = held.http is not None

    def _stays_out(self, held: _Held, spot: _Spot) -> bool:
        """Whether a TCP service gets no place on a listener that is there already."""
        if spot.protocol is not Protocol.AUTO or held.http is None or not held.sniffed:
            return self._server_first(held, spot)
        if not held.tcp:
            self._refuse(held, spot, "connections that are not HTTP pass through, because HTTP came first")
        return True

    def _member(self, spot: _Spot, bind: str, cidr: str, routes: _RouteHeads) -> TcpMember:
        ports = spot.service.ports
        shared = "/" in spot.address or (spot.address == UNSPECIFIED and bind == self.scope.wildcard)
        return TcpMember(
            service=spot.service.key,
            port=spot.port,
            cluster_port=ports[0].number if len(ports) == 1 else spot.port,
            protocol=spot.protocol,
            cidr=cidr,
            by_name=shared and spot.protocol.is_tls,
            virtual_services=routes.for_host(spot.service.host),
        )

    def _bind_of(self, address: str) -> tuple[str, str]:
        """Where a TCP service with this address listens, and the addresses by which its chain is told apart."""
        if "/" in address:
            return self.scope.wildcard, address
        return (self.scope.wildcard if address == UNSPECIFIED else address), ""

    def _open(self, spot: _Spot, bind: str) -> _Held:
        held = _Held(bind, spot.port, spot.bind_to_port, first=spot.service.host)
        self.held[listener_name(bind, spot.port)] = held
        return held

    def _server_first(self, held: _Held, spot: _Spot) -> bool:
        """Whether two can't share a listener, because an inspector would keep one waiting for its server to speak."""
        if spot.protocol in SERVER_FIRST:
            clash = held.http is not None
        else:
            sniffs = spot.protocol.is_http or spot.protocol is Protocol.AUTO
            clash = sniffs and any(m.protocol in SERVER_FIRST for m in held.tcp)
        if clash:
            self._refuse(held, spot, "a protocol in which the server speaks first can't share a port with HTTP")
        return clash

    def _refuse(self, held: _Held, spot: _Spot, reason: str) -> None:
        kind = ConflictKind.TCP_OVER_TCP
        if spot.protocol.is_http:
            kind = ConflictKind.HTTP_OVER_TCP
        elif held.http is not None and not held.tcp:
            kind = ConflictKind.TCP_OVER_HTTP
        name = listener_name(held.bind, held.port)
        self.conflicts.append(Conflict(name, held.first, spot.service.host, reason, kind))


@attrs.frozen
class _Spot:
    """A service port that wants a place."""

    service: Service
    address: str
    port: int
    protocol: Protocol
    bind: str
    """Empty: as the protocol and the address have it."""
    bind_to_port: bool


class _RouteHeads:
    """VirtualServices by the services' hosts that they cover."""

    def __init__(self, heads: Iterable[VirtualServiceHead]) -> None:
        self._order: dict[ConfigKey, int] = {}
        self._exact: Mapping[str, list[ConfigKey]] = defaultdict(list)
        self._wildcards: list[tuple[str, ConfigKey]] = []
        for head in heads:
            self._order[head.key] = len(self._order)
            for host in head.hosts:
                if host.startswith("*"):
                    self._wildcards.append((host, head.key))
                else:
                    self._exact[host].append(head.key)

    def for_host(self, host: str) -> tuple[ConfigKey, ...]:
        return tuple(sorted(set(self._found(host)), key=self._order.__getitem__))

    def _found(self, host: str) -> Iterator[ConfigKey]:
        if host.startswith("*"):
            yield from (k for h, keys in self._exact.items() if host_matches(h, host) for k in keys)
        else:
            yield from self._exact.get(host, ())
        yield from (key for pattern, key in self._wildcards if host_matches(pattern, host))


def _endpoint_addresses(view: View, key: ServiceKey, port: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(e.address for e in view.endpoints(key) if e.service_port == port))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
