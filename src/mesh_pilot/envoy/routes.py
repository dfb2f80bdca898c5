"""Outbound route tables of sidecars, by the name under which listeners ask for them.

``8080`` is the table for all HTTP services on a port, ``host:8080`` the one for a service whose protocol is detected,
``http_proxy`` that of the explicit HTTP proxy, and a Unix socket's address that of a Sidecar's egress listener there.

Order and precedence are Pilot's: VirtualServices by precedence, then services that none is for; of virtual hosts
with the same name the first stays; a domain belongs to the first that claims it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from mesh_pilot.envoy.chains import UNIX_PREFIX
from mesh_pilot.envoy.egress import (
    Egress,
    egress_listeners,
    egress_services,
    egress_virtual_services,
)
from mesh_pilot.envoy.policy import rule_ref
from mesh_pilot.envoy.route.build import service_routes, virtual_service_routes
from mesh_pilot.envoy.route.catch_all import catch_all
from mesh_pilot.envoy.route.domains import Claims, host_port, service_addresses, service_names
from mesh_pilot.envoy.route.rules import sources
from mesh_pilot.envoy.route.select import client_of, has_routes
from mesh_pilot.envoy.route.split import split_table
from mesh_pilot.envoy.route.table import PlannedHost, RoutesCall, route_table
from mesh_pilot.envoy.scope import Scope
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Port, Protocol, Service
from mesh_pilot.world import View
from mesh_pilot.world.names import MESH_GATEWAY, host_covers
from mesh_pilot.world.view import VirtualServiceHead

HTTP_PROXY = "http_proxy"
HTTP_PORT = 80
"""The port of hosts that say none: only here do VirtualServices for hosts with no service count."""


@attrs.frozen(cache_hash=True)
class Table:
    """What a table's name says."""

    port: int = 0
    """0: all ports (HTTP proxies, Unix sockets)."""
    sniffed: str = ""
    """``host:port`` of the one service that it is for."""
    bind: str = ""


def route_configuration(view: View, scope: Scope, name: str) -> Resource | None:
    """The route table of this name for a scope; None for names that no table of a sidecar can have."""
    table = parse_table(name)
    if table is None:
        return None
    if scope.split and not table.sniffed:
        return view.get(split_table, name)
    hosts = view.get(planned_hosts, scope, table)
    last = () if table.sniffed else (view.get(catch_all, scope.sidecar),)
    return route_table(view, name, hosts, last)


def planned_hosts(view: View, scope: Scope, table: Table) -> tuple[PlannedHost, ...]:
    """The virtual hosts of a table by name, without the one for everything else.

    A table may be asked for while its listener goes away: it is empty then.
    """
    egress = _egress_for(view.get(egress_listeners, scope), table)
    if egress is None:
        return ()
    # An explicit HTTP proxy is asked for every port.
    port = 0 if egress.protocol is Protocol.HTTP_PROXY else table.port
    hosts = view.get(_hosts_on, scope, egress, port)
    return _only(hosts, table.sniffed) if table.sniffed else hosts


def parse_table(name: str) -> Table | None:
    """What a table's name says; None if it is not one of a sidecar's."""
    if name == HTTP_PROXY:
        return Table()
    if name.startswith(UNIX_PREFIX):
        return Table(bind=name)
    host, colon, number = name.rpartition(":")
    if not number.isdecimal() or int(number) == 0 or (colon and not host):
        return None
    return Table(int(number), name if colon else "")


def _egress_for(listeners: Iterable[Egress], table: Table) -> Egress | None:
    """The listener that a table belongs to: the one on its port, else the first that catches all."""
    for egress in listeners:
        if not egress.port and not egress.bind.startswith(UNIX_PREFIX):
            return egress
        if table.port and egress.port == table.port:
            return egress
        if table.bind and egress.bind == table.bind:
            return egress
    return None


def _hosts_on(view: View, scope: Scope, egress: Egress, port: int) -> tuple[PlannedHost, ...]:
    """The virtual hosts for services on a port (0: on all ports), by name."""
    services = view.get(_services_on, scope, egress, port)
    planner = _Planner(view, scope, services, port)
    for head in view.get(egress_virtual_services, scope, egress):
        planner.add_virtual_service(head)
    planner.add_services()
    return planner.result()


def _services_on(view: View, scope: Scope, egress: Egress, port: int) -> tuple[Service, ...]:
    """The services with a port of this number, whatever it speaks; 0: all services."""
    return view.get(_services_by_port, scope, egress).get(port, ())


def _services_by_port(view: View, scope: Scope, egress: Egress) -> Mapping[int, tuple[Service, ...]]:
    found: dict[int, list[Service]] = {}
    for service in view.get(egress_services, scope, egress):
        for number in (0, *dict.fromkeys(p.number for p in service.ports)):
            found.setdefault(number, []).append(service)
    return {number: tuple(services) for number, services in found.items()}


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
    """Hosts of a VirtualService that are no service's."""
    services: tuple[Service, ...]
    routes: RoutesCall
    configs: tuple[ConfigKey, ...]


class _Planner:
    """Gathers who routes what, in order of precedence, then gives out names and domains."""

    def __init__(self, view: View, scope: Scope, services: Iterable[Service], port: int) -> None:
        self._view = view
        self._scope = scope
        self._port = port
        self._services = {service.host: service for service in services}
        self._routed: set[str] = set()
        """Hosts of services that a VirtualService is for."""
        self._drafts: list[_Draft] = []

    def add_virtual_service(self, head: VirtualServiceHead) -> None:
        hosts, services = self._parted(head.hosts)
        by_port: dict[int, list[Service]] = {}
        for service in services:
            for port in self._ports(service):
                by_port.setdefault(port.number, []).append(service)
        if not by_port and self._port == HTTP_PORT:
            by_port[HTTP_PORT] = []
        if not by_port:
            return
        client = client_of(self._view, self._scope, MESH_GATEWAY, head.key, infer_ports=not self._port)
        for number, served in sorted(by_port.items()):
            if self._view.get(has_routes, head.key, client, number):
                routes = (virtual_service_routes, (head.key, client, number))
                configs = self._view.get(sources, head.key)
                self._drafts.append(_Draft(number, tuple(hosts), tuple(served), routes, configs))
                self._routed.update(service.host for service in served)

    def add_services(self) -> None:
        """Those that no VirtualService is for."""
        scope = self._scope
        for service in self._services.values():
            if service.host in self._routed:
                continue
            rule = self._view.get(rule_ref, scope.namespace, scope.labels, service.key)
            configs = (service.config, *rule) if service.config is not None else rule
            for port in self._ports(service):
                routes = (service_routes, (service.host, port.number, rule))
                self._drafts.append(_Draft(port.number, (), (service,), routes, configs))

    def result(self) -> tuple[PlannedHost, ...]:
        services = [(s, d.port) for d in self._drafts for s in d.services]
        known = {name for s, port in services for name in (s.host, host_port(s.host, port))}
        claims = Claims(known)
        planned: dict[str, PlannedHost] = {}
        for draft in self._drafts:
            for name, domains in self._claimed(draft, claims, planned):
                planned[name] = PlannedHost(name, domains, (draft.routes,), configs=draft.configs)
        return tuple(host for _, host in sorted(planned.items()))

    def _claimed(
        self, draft: _Draft, claims: Claims, planned: Mapping[str, PlannedHost]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Name and domains of each host of a draft that still gets any."""
        # Where a table is for all ports, hosts without one are on the port that they imply.
        bare = bool(self._port) or draft.port == HTTP_PORT
        for host in draft.hosts:
            name = host_port(host, draft.port)
            if name not in planned and (domains := claims.take((host,), (), draft.port, bare=bare)):
                yield name, domains
        for service in draft.services:
            name = host_port(service.host, draft.port)
            if name in planned:
                continue
            names, short = service_names(service, self._scope.dns_domain)
            names += service_addresses(service, self._scope)
            if domains := claims.take(names, short, draft.port, bare=bare):
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
