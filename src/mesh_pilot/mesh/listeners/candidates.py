"""Candidates for outbound listeners: the ports of the services behind a sidecar's egress listeners.

HTTP services of a port want the wildcard listener, whose route table tells them apart by Host header. TCP services want
a listener at each of their addresses, or the wildcard listener if they have none. A Sidecar's egress listener with a
port has only that port. Of VirtualServices only the hosts are read, so that edits of routes change no candidate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.mesh.names.hosts import names_of
from mesh_pilot.mesh.names.resources import listener_name
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.ownership import for_host
from mesh_pilot.mesh.reach.sidecar_scope import (
    Egress,
    all_egress_virtual_services,
    egress_listeners,
    egress_services,
    egress_virtual_services,
    precedence,
    visible_aliases,
)
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.hosts import host_matches
from mesh_pilot.model.net import UNIX_PREFIX, is_ip
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.service import UNSPECIFIED, Port, Protocol, Resolution, Service, ServiceKey
from mesh_pilot.world.indexes import VirtualServiceMeta
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.view import View

Order = tuple[int, tuple[bool, datetime, str, str], int]
"""The order of candidates: index of the egress listener, precedence of the service, index among its candidates."""


@attrs.frozen(cache_hash=True)
class TcpMember:
    """A TCP service on a listener."""

    service: ServiceKey
    port: int
    """The listener's port, which routes match."""
    cluster_port: int
    """The service port that connections go to."""
    protocol: Protocol
    cidr: str = ""
    """The service's addresses, if other services share the listener."""
    by_name: bool = False
    """True if TLS server names tell it apart, because it has no address that only it has."""
    virtual_services: tuple[ConfigKey, ...] = ()
    """VirtualServices that may have tls or tcp routes for it, in order of precedence."""
    aliases: tuple[str, ...] = ()
    """The names of its aliases, where TLS server names may tell it apart."""


@attrs.frozen
class ListenerCandidate:
    """A service port that wants to be on a listener."""

    order: Order
    bind: str
    port: int
    """0 for a Unix socket."""
    host: str
    protocol: Protocol
    bind_to_port: bool
    is_own: bool
    """True if the listener is at an address of the service: few other services want that listener."""
    member: TcpMember | None = None
    """None: HTTP."""
    also: tuple[str, ...] = ()
    """Further addresses to bind."""

    @property
    def name(self) -> str:
        return listener_name(self.bind, self.port)

    @property
    def egress(self) -> int:
        """The index of its egress listener."""
        return self.order[0]


def has_port(egress: Egress) -> bool:
    """True if an egress listener declares a port (or socket); otherwise it has the ports of its services."""
    return bool(egress.port) or egress.bind.startswith(UNIX_PREFIX)


def listener_candidates(view: View, scope: OutboundScope, shard: int) -> Iterator[ListenerCandidate]:
    """The candidates of the services in a shard of a scope, in order."""
    for index, egress in enumerate(egress_listeners(view, scope)):
        yield from _EgressCandidates(view, scope, egress, index, shard).candidates()


class _EgressCandidates:
    """The candidates of the services in a shard that are behind one egress listener."""

    def __init__(self, view: View, scope: OutboundScope, egress: Egress, index: int, shard: int) -> None:
        self._view = view
        self._scope = scope
        self._egress = egress
        self._index = index
        self._shard = shard
        self._routes: _VirtualServicesByHost | None = None
        self._bind_to_port = egress.capture_none or scope.interception is Interception.NONE
        self._unprivileged = scope.is_on("UNPRIVILEGED_POD")

    def candidates(self) -> Iterator[ListenerCandidate]:
        egress = self._egress
        if has_port(egress) and not self._may_bind(egress.port):
            return
        for service in egress_services(self._view, self._scope, egress, self._shard):
            if service.alias_of:
                continue
            order = precedence(self._view, service)
            for count, (address, port, protocol, bind) in enumerate(self._bindings(service)):
                candidate = self._candidate(service, address, port, protocol, bind, (self._index, order, count))
                if candidate is not None:
                    yield candidate

    def _bindings(self, service: Service) -> Iterator[tuple[str, int, Protocol, str]]:
        """Service address, port, protocol, and address to bind (empty: protocol and service address decide)."""
        egress = self._egress
        loopback = self._scope.loopback if self._bind_to_port else ""
        for address in self._scope.addresses(service) or self._scope.auto_addresses(service) or (UNSPECIFIED,):
            if has_port(egress):
                yield address, egress.port, egress.protocol, egress.bind or loopback
                continue
            for port in service.ports:
                if self._may_bind(port.number):
                    for bind in self._binds(service, address, port, egress.bind or loopback):
                        yield address, port.number, port.protocol, bind

    def _may_bind(self, port: int) -> bool:
        return not (self._bind_to_port and self._unprivileged and 0 < port < 1024)

    def _binds(self, service: Service, address: str, port: Port, bind: str) -> tuple[str, ...]:
        """The addresses to bind for a service port; an empty one follows from the protocol.

        A headless TCP service has a listener at each endpoint, because its clients connect to endpoints.
        """
        headless = address == UNSPECIFIED and service.resolution is Resolution.PASSTHROUGH
        if bind or not headless or port.protocol.is_http:
            return (bind,)
        addresses = _endpoint_addresses(self._view, service.key, port.name)
        if not addresses and not service.headless and not service.selector:
            return (bind,)
        return tuple(a for a in addresses if is_ip(a))

    def _candidate(
        self, service: Service, address: str, port: int, protocol: Protocol, bind: str, order: Order
    ) -> ListenerCandidate | None:
        wildcard = self._scope.wildcard
        if protocol.is_http:
            bind = bind or wildcard
            also = self._also_bound(bind)
            return ListenerCandidate(
                order, bind, port, service.host, protocol, self._bind_to_port, is_own=False, also=also
            )
        if protocol is not Protocol.AUTO and not protocol.is_tcp:
            return None
        cidr = ""
        if not bind:
            cidr = address if "/" in address else ""
            bind = wildcard if cidr or address == UNSPECIFIED else address
        is_own = bind not in (wildcard, self._scope.loopback, self._egress.bind)
        member = self._member(service, address, port, protocol, bind, cidr)
        also = self._also_bound(bind)
        return ListenerCandidate(order, bind, port, service.host, protocol, self._bind_to_port, is_own, member, also)

    def _also_bound(self, bind: str) -> tuple[str, ...]:
        return () if self._egress.bind else self._scope.also_bound(bind)

    def _member(self, service: Service, address: str, port: int, protocol: Protocol, bind: str, cidr: str) -> TcpMember:
        ports = service.ports
        shared = "/" in address or (address == UNSPECIFIED and bind == self._scope.wildcard)
        return TcpMember(
            service=service.key,
            port=port,
            cluster_port=ports[0].number if len(ports) == 1 else port,
            protocol=protocol,
            cidr=cidr,
            by_name=shared and protocol.is_tls,
            virtual_services=self._virtual_services(service),
            aliases=self._alias_names(service) if protocol.is_tls else (),
        )

    def _alias_names(self, service: Service) -> tuple[str, ...]:
        aliases = visible_aliases(self._view, self._scope.namespace, self._egress, service)
        return tuple(name for host in aliases for name in names_of(host, self._scope.dns_domain))

    def _virtual_services(self, service: Service) -> tuple[ConfigKey, ...]:
        key = (self._view, self._scope, self._egress)
        if service.host.startswith("*"):
            routes = _VirtualServicesByHost(self._view, all_egress_virtual_services(*key))
            return routes.for_service(service, self._scope.namespace)
        if self._routes is None:
            self._routes = _VirtualServicesByHost(self._view, egress_virtual_services(*key, self._shard))
        return self._routes.for_service(service, self._scope.namespace)


class _VirtualServicesByHost:
    """VirtualServices, found by the host of a service."""

    def __init__(self, view: View, metas: Iterable[VirtualServiceMeta]) -> None:
        self._view = view
        self._metas: dict[ConfigKey, VirtualServiceMeta] = {}
        self._order: dict[ConfigKey, int] = {}
        self._of_routes: dict[ConfigKey, VirtualServiceMeta] = {}
        self._exact: Mapping[str, list[ConfigKey]] = defaultdict(list)
        self._wildcards: list[tuple[str, ConfigKey]] = []
        for meta in metas:
            self._order[meta.key] = len(self._order)
            self._metas[meta.key] = meta
            if meta.is_route:
                self._of_routes[meta.key] = meta
            for host in meta.hosts:
                if host.startswith("*"):
                    self._wildcards.append((host, meta.key))
                else:
                    self._exact[host].append(meta.key)

    def for_service(self, service: Service, namespace: str) -> tuple[ConfigKey, ...]:
        """The VirtualServices for a service and clients of a namespace, in order."""
        found = set(self._matching(service.host))
        for key in found & self._of_routes.keys():
            if not self._of_routes[key].concerns(service, namespace):
                found.discard(key)
        keys = sorted(found, key=self._order.__getitem__)
        if len(keys) < 2:
            return tuple(keys)
        metas = [self._metas[key] for key in keys]
        return tuple(keys[n] for n in for_host(self._view, MESH_GATEWAY, namespace, service.host, metas))

    def _matching(self, host: str) -> Iterator[ConfigKey]:
        if host.startswith("*"):
            yield from (k for h, keys in self._exact.items() if host_matches(h, host) for k in keys)
        else:
            yield from self._exact.get(host, ())
        yield from (key for pattern, key in self._wildcards if host_matches(pattern, host))


@derived
def _endpoint_addresses(view: View, key: ServiceKey, port: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(a for e in view.endpoints(key) if e.service_port == port for a in e.addresses))
