"""Virtual hosts that a sidecar's route table could have, before domains that several of them want are given to one.

Precedence is Pilot's: VirtualServices in their order, then services that no VirtualService applies to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.mesh.clusters.destination_rules import destination_rule_ref
from mesh_pilot.mesh.names.hosts import host_port, in_brackets, service_names
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.ownership import for_host
from mesh_pilot.mesh.reach.sidecar_scope import (
    Egress,
    egress_services,
    egress_virtual_services,
    scope_shards,
    visible_aliases,
)
from mesh_pilot.mesh.routing.client import has_routes, route_client
from mesh_pilot.mesh.virtual_hosts.planned import (
    DomainTable,
    PlannedHost,
    RouteSource,
    ServiceRoutes,
    VirtualServiceRoutes,
    service_addresses,
    token_of,
)
from mesh_pilot.mesh.virtual_services.rules import sources
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.hosts import host_covers
from mesh_pilot.model.service import Port, Protocol, Service
from mesh_pilot.world import View
from mesh_pilot.world.indexes import VirtualServiceMeta
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.shards import WILDCARD_HOSTS, shard_of

HTTP_PORT = 80
"""The port implied by a host without one: only there do VirtualServices for hosts without a service apply."""


@attrs.frozen(cache_hash=True)
class SidecarTable:
    """A sidecar's route table: the egress listener whose services it routes to, and their port."""

    scope: OutboundScope
    egress: Egress
    port: int
    """0: all ports."""


@attrs.frozen
class HostCandidate:
    """A host on a port, the domains that it could have, and its routes."""

    host: str
    port: int
    all_ports: bool
    """True in a table for all ports: a request is for the port that it names after its host, else for port 80."""
    names: tuple[str, ...]
    short: tuple[str, ...]
    """The names that are short forms."""
    routes: RouteSource
    configs: tuple[ConfigKey, ...]
    is_service: bool
    head: VirtualServiceMeta | None
    """The VirtualService that the routes are of; None: none applies."""
    aliases: tuple[str, ...] = ()
    """The hosts of the aliases of its service."""

    @property
    def name(self) -> str:
        return host_port(self.host, self.port)

    @property
    def without_port(self) -> bool:
        """True if the host is also meant by requests that name no port."""
        return not self.all_ports or self.port == HTTP_PORT

    @property
    def reserved(self) -> tuple[str, ...]:
        """Names that no other service may have as a short form."""
        return (self.host, self.name) if self.is_service else ()

    def take_domains(self, domains: DomainTable) -> tuple[str, ...]:
        """Take those of the candidate's domains that are free."""
        port = self.port if self.all_ports else 0
        whole = (self.host, *self.aliases) if self.is_service else ()
        absolute = (*whole, *(f"*.{name}" for name in whole))
        return domains.take(self.names, self.short, port, without_port=self.without_port, absolute=absolute)

    def planned(self, domains: tuple[str, ...]) -> PlannedHost:
        return PlannedHost(self.name, domains, (self.routes,), configs=self.configs)

    def tokens(self) -> Iterator[str]:
        """The tokens of the domains: that of the name alone where the domain comes without port, too."""
        if not self.without_port:
            yield token_of(self.host)
        for name in self.names:
            domain = in_brackets(name) if self.without_port else host_port(name, self.port)
            token = token_of(domain)
            yield domain if token == domain else token


def host_candidates(
    view: View,
    table: SidecarTable,
    services: Iterable[Service],
    virtual_services: Iterable[VirtualServiceMeta],
    includes: Callable[[str], bool],
) -> list[HostCandidate]:
    """The candidates for some hosts of a table, in order of precedence.

    ``services`` and ``virtual_services`` are in that order, too. ``includes`` is true of the hosts that are asked for.
    """
    collector = _Collector(view, table, services, includes)
    for head in virtual_services:
        collector.add_virtual_service(head)
    collector.add_services()
    return _each_host_in_order(view, table.scope.namespace, collector.candidates)


def _each_host_in_order(view: View, namespace: str, candidates: list[HostCandidate]) -> list[HostCandidate]:
    """Candidates in which those for one host have changed places, so that the first counts: by owner if they are of
    VirtualServices. Of services, those that are written in other case are behind: they are other services, for which
    Envoy has the same domain."""
    of_heads: dict[str, list[int]] = {}
    of_services: dict[str, list[int]] = {}
    for number, candidate in enumerate(candidates):
        (of_services if candidate.head is None else of_heads).setdefault(candidate.name.lower(), []).append(number)
    found = candidates.copy()
    for numbers in of_heads.values():
        if len(numbers) > 1:
            heads = [candidate.head for number in numbers if (candidate := candidates[number]).head is not None]
            order = for_host(view, MESH_GATEWAY, namespace, candidates[numbers[0]].host, heads)
            for number, place in zip(numbers, order, strict=True):
                found[number] = candidates[numbers[place]]
    for name, numbers in of_services.items():
        if len(numbers) > 1:
            ordered = sorted((candidates[number].name != name, number) for number in numbers)
            for number, (_, other) in zip(numbers, ordered, strict=True):
                found[number] = candidates[other]
    return found


def services_on(view: View, table: SidecarTable, shard: int) -> tuple[Service, ...]:
    """The services of a shard that have the table's port, whatever its protocol."""
    return _services_by_port(view, table.scope, table.egress, shard).get(table.port, ())


def service_on(view: View, table: SidecarTable, host: str) -> Service | None:
    """The service with this host and the table's port."""
    services = services_on(view, table, table_shard_of(view, table, host))
    return next((service for service in services if service.host == host), None)


def table_shard_of(view: View, table: SidecarTable, host: str) -> int:
    return shard_of(host, scope_shards(view, table.scope).start.bit_length() - 1)


@derived
def port_is_used(view: View, scope: OutboundScope, egress: Egress, port: int) -> bool:
    """True if a table for this port can have virtual hosts. Clients can make up any number: most have none."""
    return port == HTTP_PORT or port in _used_ports(view, scope, egress)


@derived
def _used_ports(view: View, scope: OutboundScope, egress: Egress) -> frozenset[int]:
    found = (_ports_in(view, scope, egress, shard) for shard in scope_shards(view, scope))
    return frozenset().union(*found)


@derived
def _ports_in(view: View, scope: OutboundScope, egress: Egress, shard: int) -> frozenset[int]:
    return frozenset(_services_by_port(view, scope, egress, shard))


@derived
def _services_by_port(
    view: View, scope: OutboundScope, egress: Egress, shard: int
) -> Mapping[int, tuple[Service, ...]]:
    found: dict[int, list[Service]] = {}
    for service in egress_services(view, scope, egress, shard):
        numbers = (0, *dict.fromkeys(p.number for p in service.ports)) if not service.alias_of else ()
        for number in numbers:
            found.setdefault(number, []).append(service)
    return {number: tuple(services) for number, services in found.items()}


def _http_ports(service: Service, table: SidecarTable) -> Iterator[Port]:
    """The ports of a service that the table routes for: HTTP, and those whose protocol is detected."""
    return (
        p for p in service.ports if (p.protocol.is_http or p.protocol is Protocol.AUTO) and table.port in (0, p.number)
    )


@derived
def _http_port_numbers(view: View, table: SidecarTable, host: str) -> frozenset[int]:
    """The HTTP ports of a host's service; empty without one."""
    service = service_on(view, table, host)
    return frozenset(p.number for p in _http_ports(service, table)) if service is not None else frozenset()


@derived
def _wildcard_ports(view: View, table: SidecarTable) -> Mapping[str, frozenset[int]]:
    """The wildcard hosts of VirtualServices that cover any service of the table, with the HTTP ports of those."""
    found: dict[str, frozenset[int]] = {}
    for shard in scope_shards(view, table.scope):
        for pattern, numbers in _wildcard_ports_in(view, table, shard).items():
            found[pattern] = found.get(pattern, frozenset()) | numbers
    return found


@derived
def _wildcard_ports_in(view: View, table: SidecarTable, shard: int) -> Mapping[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    services = services_on(view, table, shard)
    for head in egress_virtual_services(view, table.scope, table.egress, WILDCARD_HOSTS):
        for pattern in (host for host in head.hosts if host.startswith("*") and host not in found):
            covered = [s for s in services if host_covers(pattern, s.host)]
            if covered:
                found[pattern] = frozenset(p.number for s in covered for p in _http_ports(s, table))
    return found


class _Collector:
    """Collects candidates in order of precedence."""

    def __init__(
        self, view: View, table: SidecarTable, services: Iterable[Service], includes: Callable[[str], bool]
    ) -> None:
        self.candidates: list[HostCandidate] = []
        self._view = view
        self._table = table
        self._services = {service.host: service for service in services}
        self._includes = includes
        self._routed: set[str] = set()
        """Hosts of services that a VirtualService applies to."""

    def add_virtual_service(self, head: VirtualServiceMeta) -> None:
        hosts, services = self._split(head.hosts)
        if head.is_route:
            services = [service for service in services if head.concerns(service, self._table.scope.namespace)]
            if not services:
                return
        by_port: dict[int, list[Service]] = {}
        for service in services:
            for port in _http_ports(service, self._table):
                by_port.setdefault(port.number, []).append(service)
        numbers: Set[int] = by_port.keys()
        if hosts:
            # A host without a service is on each port on which the VirtualService applies to a service, or on 80.
            numbers = numbers | self._ports_elsewhere(head.hosts)
            if not numbers and self._table.port == HTTP_PORT:
                numbers = {HTTP_PORT}
        if not numbers:
            return
        view, scope = self._view, self._table.scope
        client = route_client(view, scope, MESH_GATEWAY, head.key)
        for number in sorted(numbers):
            if has_routes(view, head.key, client, number):
                routes = VirtualServiceRoutes(head.key, client, number)
                configs = sources(view, head.key)
                for host in hosts:
                    self._add(host, number, (host,), (), routes, configs, is_service=False, head=head)
                for service in by_port.get(number, ()):
                    self._add_service(service, number, routes, configs, head)
                    self._routed.add(service.host)

    def add_services(self) -> None:
        """Add the services that no VirtualService applies to."""
        scope = self._table.scope
        for service in self._services.values():
            if service.host in self._routed:
                continue
            rule = destination_rule_ref(self._view, scope.namespace, scope.labels, service.key)
            configs = (*service.configs, *rule)
            for port in _http_ports(service, self._table):
                self._add_service(service, port.number, ServiceRoutes(service.host, port.number, rule), configs)

    def _add_service(
        self,
        service: Service,
        port: int,
        routes: RouteSource,
        configs: tuple[ConfigKey, ...],
        head: VirtualServiceMeta | None = None,
    ) -> None:
        scope = self._table.scope
        aliases = visible_aliases(self._view, scope.namespace, self._table.egress, service)
        names, short = service_names(service, scope.dns_domain, aliases)
        names += service_addresses(service, scope)
        self._add(service.host, port, names, short, routes, configs, aliases, is_service=True, head=head)

    def _add(
        self,
        host: str,
        port: int,
        names: tuple[str, ...],
        short: tuple[str, ...],
        routes: RouteSource,
        configs: tuple[ConfigKey, ...],
        aliases: tuple[str, ...] = (),
        *,
        is_service: bool,
        head: VirtualServiceMeta | None,
    ) -> None:
        all_ports = not self._table.port
        self.candidates.append(
            HostCandidate(host, port, all_ports, names, short, routes, configs, is_service, head, aliases)
        )

    def _ports_elsewhere(self, hosts: Iterable[str]) -> Set[int]:
        """The ports on which a VirtualService applies to services other than those asked for."""
        found: set[int] = set()
        for host in hosts:
            if host.startswith("*"):
                found |= _wildcard_ports(self._view, self._table).get(host, frozenset())
            elif host not in self._services and not self._includes(host):
                found |= _http_port_numbers(self._view, self._table, host)
        return found

    def _split(self, hosts: Iterable[str]) -> tuple[list[str], list[Service]]:
        """The hosts of a VirtualService: those without a service, and the services of the others."""
        unknown: list[str] = []
        found: list[Service] = []
        for host in sorted(hosts, key=lambda h: h.startswith("*")):
            if host.startswith("*"):
                found += (s for s in self._services.values() if host_covers(host, s.host))
                if self._includes(host) and host not in _wildcard_ports(self._view, self._table):
                    unknown.append(host)
            elif host in self._services:
                found.append(self._services[host])
            elif self._includes(host):
                unknown.append(host)
        return unknown, found
