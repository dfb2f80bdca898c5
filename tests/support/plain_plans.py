"""An oracle for sharded planning: the listeners and virtual hosts of sidecars, planned in one pass over all services.

Slow and simple on purpose: one list of services by precedence, one of VirtualServices, and a walk through both. It
repeats the rules of precedence and of listener conflicts deliberately, and imports helpers of the code that it checks.
It therefore shows that shards change no result, and not that the rules are right: the goldens of istiod and the tests
of single rules show that. A changed rule has to be changed here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from mesh_pilot.mesh.clusters.destination_rules import destination_rule_ref
from mesh_pilot.mesh.listeners.candidates import TcpMember, _endpoint_addresses, _VirtualServicesByHost
from mesh_pilot.mesh.listeners.conflicts import Conflict, ConflictKind
from mesh_pilot.mesh.listeners.outbound import SERVER_FIRST, OutboundListener
from mesh_pilot.mesh.names.hosts import host_port, service_names
from mesh_pilot.mesh.names.resources import listener_name
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.sidecar_scope import (
    Egress,
    _add,
    _imported,
    _imports_any,
    _in_order,
    destinations,
    egress_listeners,
    only_ports,
)
from mesh_pilot.mesh.routing.client import has_routes, route_client
from mesh_pilot.mesh.virtual_hosts.host_candidates import HTTP_PORT
from mesh_pilot.mesh.virtual_hosts.planned import (
    DomainTable,
    PlannedHost,
    RouteSource,
    ServiceRoutes,
    VirtualServiceRoutes,
    service_addresses,
)
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import TableName, egress_for
from mesh_pilot.mesh.virtual_services.rules import sources
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.hosts import host_covers
from mesh_pilot.model.net import UNIX_PREFIX, is_ip
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.service import UNSPECIFIED, Port, Protocol, Resolution, Service
from mesh_pilot.world.indexes import VirtualServiceMeta
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.shards import all_shards
from mesh_pilot.world.view import View


def visible_services(view: View, namespace: str) -> tuple[Service, ...]:
    """Every service that may be seen from a namespace; what is exported to it alone comes first, then by age."""
    return _exported(view, namespace) + _exported(view, "*")


def _exported(view: View, to: str) -> tuple[Service, ...]:
    found = (s for shard in all_shards(view.shard_bits()) for s in view.services_exported_to(to, shard))
    return tuple(sorted(found, key=lambda service: service.order))


def egress_services(view: View, scope: OutboundScope, egress: Egress) -> tuple[Service, ...]:
    """The services behind one egress listener: one a host, in order; trimmed to the listener's port if it has one."""
    services = visible_services(view, scope.namespace)
    found = [s for s in (_imported(s, egress) if egress.index >= 0 else s for s in services) if s is not None]
    chosen: dict[str, str] = {}
    for service in found:
        if service.host not in chosen or service.namespace == scope.namespace:
            chosen[service.host] = service.namespace
    return tuple(s for s in found if chosen[s.host] == s.namespace)


def egress_virtual_services(view: View, scope: OutboundScope, egress: Egress) -> tuple[VirtualServiceMeta, ...]:
    """The VirtualServices for sidecars behind one egress listener, in order of precedence."""
    heads = _in_order(view.virtual_services(MESH_GATEWAY), scope.namespace)
    if egress.index < 0:
        return tuple(h for h in heads if h.hosts)
    return tuple(h for h in heads if _imports_any(egress, h))


def scope_services(view: View, scope: OutboundScope) -> tuple[Service, ...]:
    """Every service that a scope needs a cluster for: those of its listeners, and with a Sidecar also the
    destinations of the VirtualServices it imports."""
    listeners = egress_listeners(view, scope)
    if len(listeners) == 1 and listeners[0].index < 0:
        return egress_services(view, scope, listeners[0])
    found: dict[str, Service] = {}
    for egress in listeners:
        for service in egress_services(view, scope, egress):
            _add(found, service)
        for head in egress_virtual_services(view, scope, egress):
            for host, ports in destinations(view, head.key):
                named = view.services_named(host)
                if not named:
                    continue
                own = next((s for s in named if s.namespace == scope.namespace), None)
                seen = [s for s in named if s in visible_services(view, scope.namespace)]
                other = own or min(seen or named, key=lambda s: s.namespace)
                trimmed = only_ports(other, ports)
                if trimmed is not None:
                    _add(found, trimmed)
    return tuple(found.values())


def planned_hosts(view: View, scope: OutboundScope, table: TableName) -> tuple[PlannedHost, ...]:
    """The virtual hosts of a table by name, without the one for everything else."""
    egress = egress_for(egress_listeners(view, scope), table)
    if egress is None:
        return ()
    port = 0 if egress.protocol is Protocol.HTTP_PROXY else table.port
    if table.sniffed:
        host = table.sniffed.rpartition(":")[0]
        if not any(s.host == host and (not port or s.port(port)) for s in egress_services(view, scope, egress)):
            return ()  # no listener has such a table
    hosts = _hosts_on(view, scope, egress, port)
    return _only(hosts, table.sniffed.rpartition(":")[0]) if table.sniffed else hosts


def _hosts_on(view: View, scope: OutboundScope, egress: Egress, port: int) -> tuple[PlannedHost, ...]:
    """The virtual hosts for services on a port (0: on all ports), by name."""
    services = [s for s in egress_services(view, scope, egress) if not port or s.port(port)]
    planner = _HostPlanner(view, scope, services, port)
    for head in egress_virtual_services(view, scope, egress):
        planner.add_virtual_service(head)
    planner.add_services()
    return planner.result()


def _is_http(port: Port) -> bool:
    return port.protocol.is_http or port.protocol is Protocol.AUTO


def _only(hosts: Iterable[PlannedHost], domain: str) -> tuple[PlannedHost, ...]:
    """The host with this domain, for whatever host a request names; all where none has it."""
    hosts = tuple(hosts)
    found = next((h for h in hosts if domain in h.domains), None)
    return (attrs.evolve(found, domains=("*",)),) if found is not None else hosts


@attrs.frozen
class _Draft:
    """Routes on a port, and the hosts they are for."""

    port: int
    hosts: tuple[str, ...]
    """Hosts of a VirtualService that are not service's."""
    services: tuple[Service, ...]
    routes: RouteSource
    configs: tuple[ConfigKey, ...]
    head: VirtualServiceMeta | None = None
    """The VirtualService that the routes are of: then there is one host or service."""

    @property
    def host(self) -> str:
        return self.services[0].host if self.services else self.hosts[0]


class _HostPlanner:
    """Gathers who routes what, in order of precedence, then gives out names and domains."""

    def __init__(self, view: View, scope: OutboundScope, services: Iterable[Service], port: int) -> None:
        self._view = view
        self._scope = scope
        self._port = port
        self._services = {service.host: service for service in services}
        self._routed: set[str] = set()
        """Hosts of services that a VirtualService is for."""
        self._drafts: list[_Draft] = []

    def add_virtual_service(self, head: VirtualServiceMeta) -> None:
        hosts, services = self._parted(head.hosts)
        by_port: dict[int, list[Service]] = {}
        for service in services:
            for port in self._ports(service):
                by_port.setdefault(port.number, []).append(service)
        if not by_port and self._port == HTTP_PORT:
            by_port[HTTP_PORT] = []
        if not by_port:
            return
        client = route_client(self._view, self._scope, MESH_GATEWAY, head.key)
        for number, served in sorted(by_port.items()):
            if has_routes(self._view, head.key, client, number):
                routes = VirtualServiceRoutes(head.key, client, number)
                configs = sources(self._view, head.key)
                self._drafts += (_Draft(number, (host,), (), routes, configs, head) for host in hosts)
                self._drafts += (_Draft(number, (), (service,), routes, configs, head) for service in served)
                self._routed.update(service.host for service in served)

    def add_services(self) -> None:
        """Those that no VirtualService is for."""
        scope = self._scope
        for service in self._services.values():
            if service.host in self._routed:
                continue
            rule = destination_rule_ref(self._view, scope.namespace, scope.labels, service.key)
            configs = (service.config, *rule) if service.config is not None else rule
            for port in self._ports(service):
                routes = ServiceRoutes(service.host, port.number, rule)
                self._drafts.append(_Draft(port.number, (), (service,), routes, configs))

    def result(self) -> tuple[PlannedHost, ...]:
        services = [(s, d.port) for d in self._drafts for s in d.services]
        known = {name for s, port in services for name in (s.host, host_port(s.host, port))}
        claims = DomainTable(known)
        planned: dict[str, PlannedHost] = {}
        self._most_precise_first()
        for draft in self._drafts:
            for name, domains in self._claimed(draft, claims, planned):
                planned[name] = PlannedHost(name, domains, (draft.routes,), configs=draft.configs)
        return tuple(host for _, host in sorted(planned.items()))

    def _most_precise_first(self) -> None:
        """Of VirtualServices for a host that of the clients' namespace alone, then the one that names it best."""

        def rank(draft: _Draft) -> tuple[bool, bool, int]:
            host = draft.host.lower()
            if draft.head is None:
                return (True, draft.host != host, 0)
            pattern = max((h for h in map(str.lower, draft.head.hosts) if h == host or host_covers(h, host)), key=len)
            is_own = draft.head.export_to == {self._scope.namespace} == {draft.head.key.namespace}
            return (not is_own, pattern != host, -len(pattern))

        by_host: dict[tuple[str, int, bool], list[int]] = {}
        for number, draft in enumerate(self._drafts):
            by_host.setdefault((draft.host.lower(), draft.port, draft.head is None), []).append(number)
        for numbers in by_host.values():
            ordered = sorted((self._drafts[number] for number in numbers), key=rank)
            for number, draft in zip(numbers, ordered, strict=True):
                self._drafts[number] = draft

    def _claimed(
        self, draft: _Draft, claims: DomainTable, planned: Mapping[str, PlannedHost]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Name and domains of each host of a draft that still gets any."""
        # Where a table is for all ports, hosts without one are on the port that they imply.
        bare = bool(self._port) or draft.port == HTTP_PORT
        for host in draft.hosts:
            name = host_port(host, draft.port)
            port = 0 if self._port else draft.port
            if name not in planned and (domains := claims.take((host,), (), port, without_port=bare)):
                yield name, domains
        for service in draft.services:
            name = host_port(service.host, draft.port)
            if name in planned:
                continue
            names, short = service_names(service, self._scope.dns_domain)
            names += service_addresses(service, self._scope)
            port = 0 if self._port else draft.port
            absolute = (service.host, f"*.{service.host}")
            if domains := claims.take(names, short, port, without_port=bare, absolute=absolute):
                yield name, domains

    def _ports(self, service: Service) -> Iterator[Port]:
        """The ports of a service that this table is for: HTTP, and what may turn out to be."""
        return (p for p in service.ports if _is_http(p) and self._port in (0, p.number))

    def _parted(self, hosts: Iterable[str]) -> tuple[list[str], list[Service]]:
        """The hosts of a VirtualService: those of no service, and the services of the others."""
        unknown: list[str] = []
        found: list[Service] = []
        for host in sorted(hosts, key=lambda h: h.startswith("*")):
            if host.startswith("*"):
                services = [s for s in self._services.values() if host_covers(host, s.host)]
            else:
                services = [self._services[host]] if host in self._services else []
            found += services
            if not services:
                unknown.append(host)
        return unknown, found


def outbound_plan(view: View, scope: OutboundScope) -> tuple[tuple[OutboundListener, ...], tuple[Conflict, ...]]:
    """The outbound listeners of a scope, in the order in which they came up; virtualOutbound is not among them."""
    planner = _ListenerPlanner(view, scope)
    for egress in egress_listeners(view, scope):
        planner.add(egress)
    return tuple(h.listener() for h in planner.held.values()), tuple(planner.conflicts)


@attrs.define
class _Held:
    """A listener as it grows."""

    bind: str
    port: int
    bind_to_port: bool
    own_address: bool
    first: str
    """Host of the first service on it."""
    hosts: set[str]
    """Hosts of all services that want it."""
    locked: bool = False
    """From an egress listener further up: closed to those below."""
    http: Protocol | None = None
    sniffed: bool = False
    tcp: list[TcpMember] = attrs.Factory(list)

    def listener(self) -> OutboundListener:
        """The listener as it is now. TLS services that would be told apart by nothing are so by server name."""
        hosts = {m.service.host for m in self.tcp}
        tcp = (
            (attrs.evolve(m, by_name=True) if m.protocol.is_tls else m for m in self.tcp)
            if len(hosts) > 1
            else self.tcp
        )
        table = str(self.port) if self.port else self.bind
        if self.http is Protocol.AUTO and self.own_address and len(self.hosts) == 1:
            table = f"{self.first}:{self.port}"
        table = table if self.http is not None else ""
        return OutboundListener(self.bind, self.port, self.bind_to_port, self.http, table, self.sniffed, tuple(tcp))


class _ListenerPlanner:
    """Puts services on listeners, one egress listener after the other."""

    def __init__(self, view: View, scope: OutboundScope) -> None:
        self.view = view
        self.scope = scope
        self.held: dict[str, _Held] = {}
        self.conflicts: list[Conflict] = []
        self.unprivileged = scope.is_on("UNPRIVILEGED_POD")

    def add(self, egress: Egress) -> None:
        view, scope = self.view, self.scope
        bind_to_port = egress.capture_none or scope.interception is Interception.NONE
        routes = _VirtualServicesByHost(view, egress_virtual_services(view, scope, egress))
        services = egress_services(view, scope, egress)
        with_port = bool(egress.port) or egress.bind.startswith(UNIX_PREFIX)
        if with_port:
            if not self._may_bind(bind_to_port, egress.port):
                return
            bind = egress.bind or (scope.loopback if bind_to_port else "")
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
        return self.scope.auto_addresses(service) or (UNSPECIFIED,)

    def _binds(self, service: Service, address: str, port: str, protocol: Protocol, bind: str) -> tuple[str, ...]:
        """Where the listeners of a service port are; empty text: as the protocol has it.

        A headless TCP service has one at each endpoint, because that is what its clients connect to.
        """
        if bind or address != UNSPECIFIED or service.resolution is not Resolution.PASSTHROUGH or protocol.is_http:
            return (bind,)
        addresses = _endpoint_addresses(self.view, service.key, port)
        if not addresses and not service.headless and not service.selector:
            return (bind,)
        return tuple(a for a in addresses if is_ip(a))

    def _place(self, spot: _Spot, routes: _VirtualServicesByHost) -> None:
        if spot.protocol.is_http:
            self._place_http(spot)
        elif spot.protocol is Protocol.AUTO or spot.protocol.is_tcp:
            self._place_tcp(spot, routes)

    def _place_http(self, spot: _Spot) -> None:
        bind = spot.bind or self.scope.wildcard
        held = self._held(spot, bind)
        sniffed = bind == self.scope.wildcard and spot.protocol is not Protocol.HTTP_PROXY
        if held is None:
            held = self._open(spot, bind)
        elif held.locked or held.http is not None or self._server_first(held, spot):
            return
        else:
            sniffed = True
        held.http, held.sniffed = spot.protocol, sniffed

    def _place_tcp(self, spot: _Spot, routes: _VirtualServicesByHost) -> None:
        bind, cidr = (spot.bind, "") if spot.bind else self._bind_of(spot.address)
        held = self._held(spot, bind)
        if held is not None and (held.locked or self._stays_out(held, spot)):
            return
        member = self._member(spot, bind, cidr, routes)
        if not member.cluster_port:
            reason = "a Unix socket has no port by which to choose one of the service's"
            self.conflicts.append(Conflict(listener_name(bind, spot.port), "", spot.service.host, reason))
            return
        held = held or self._open(spot, bind)
        held.tcp.append(member)
        if spot.protocol is Protocol.AUTO and held.http is None:
            held.http = Protocol.AUTO
        held.sniffed = held.http is not None

    def _stays_out(self, held: _Held, spot: _Spot) -> bool:
        """True if a TCP service gets no place on a listener that is there already."""
        if spot.protocol is not Protocol.AUTO or held.http is None or not held.sniffed:
            return self._server_first(held, spot)
        if not held.tcp:
            self._refuse(held, spot, "connections that are not HTTP pass through, because HTTP came first")
        elif held.tcp[0].service.host != spot.service.host:
            self._refuse(held, spot, "connections that are not HTTP go to the service that came first")
        return True

    def _member(self, spot: _Spot, bind: str, cidr: str, routes: _VirtualServicesByHost) -> TcpMember:
        ports = spot.service.ports
        shared = "/" in spot.address or (spot.address == UNSPECIFIED and bind == self.scope.wildcard)
        return TcpMember(
            service=spot.service.key,
            port=spot.port,
            cluster_port=ports[0].number if len(ports) == 1 else spot.port,
            protocol=spot.protocol,
            cidr=cidr,
            by_name=shared and spot.protocol.is_tls,
            virtual_services=routes.for_service(spot.service, self.scope.namespace),
        )

    def _bind_of(self, address: str) -> tuple[str, str]:
        """Where a TCP service with this address listens, and the addresses by which its chain is told apart."""
        if "/" in address:
            return self.scope.wildcard, address
        return (self.scope.wildcard if address == UNSPECIFIED else address), ""

    def _held(self, spot: _Spot, bind: str) -> _Held | None:
        """The listener that a service meets, which tells requests apart by host from its second service on."""
        held = self.held.get(listener_name(bind, spot.port))
        if held is not None:
            held.hosts.add(spot.service.host)
        return held

    def _open(self, spot: _Spot, bind: str) -> _Held:
        own = bind != self.scope.wildcard and bool(spot.port)
        held = _Held(bind, spot.port, spot.bind_to_port, own, spot.service.host, {spot.service.host})
        self.held[listener_name(bind, spot.port)] = held
        return held

    def _server_first(self, held: _Held, spot: _Spot) -> bool:
        """True if two can't share a listener, because an inspector would keep one waiting for its server to speak."""
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
