"""Which virtual hosts a sidecar's route table has, worked out in shares: by bucket of their hosts.

Virtual hosts depend on each other in one thing only: a domain may stand in a table once. Most hosts want domains that
no other host wants. So each bucket is planned by itself, with all that its hosts want; then the domains that two hosts
want are looked for, and what they are about is taken out and planned together, by precedence. What comes or goes
costs its own bucket, and a look at the sets of domains of the others.

Order and precedence are Pilot's: VirtualServices by precedence, then services that none is for; of virtual hosts
with the same name the first stays; a domain belongs to the first that claims it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set

import attrs

from mesh_pilot.envoy.routes.build import virtual_service_routes
from mesh_pilot.envoy.routes.virtual_host import PlannedHost, RouteSource, ServiceRoutes
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import destination_rule_ref
from mesh_pilot.mesh.domains import Claims, host_port, in_brackets, service_addresses, service_names
from mesh_pilot.mesh.overlap_index import overlap_index
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.sidecar_scope import (
    Egress,
    egress_services,
    egress_virtual_services,
    in_precedence,
    precedence,
    scope_buckets,
)
from mesh_pilot.mesh.virtual_services.client import has_routes, route_client
from mesh_pilot.mesh.virtual_services.rules import sources
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import Port, Protocol, Service
from mesh_pilot.world import View
from mesh_pilot.world.buckets import bucket_of, place_of
from mesh_pilot.world.configs import WILD
from mesh_pilot.world.names import MESH_GATEWAY, host_covers
from mesh_pilot.world.view import VirtualServiceHead

HTTP_PORT = 80
"""The port of hosts that say none: only here do VirtualServices for hosts with no service count."""

CONTESTED = 0
"""Stands for a bucket: hosts that want a domain that another wants."""

NOBODY: frozenset[str] = frozenset()


@attrs.frozen(cache_hash=True)
class Source:
    """What a table is made from."""

    scope: OutboundScope
    egress: Egress
    port: int
    """0: all ports."""


@attrs.frozen(cache_hash=True)
class TableShard:
    """Some of the virtual hosts of a table: those of a bucket, or those that are disputed."""

    source: Source
    bucket: int
    disputed: frozenset[str] = NOBODY
    """Hosts of the bucket that are left out; of the share ``CONTESTED`` all it has."""


@derived
def shares(view: View, source: Source) -> tuple[TableShard, ...]:
    """The shares of a table, in order."""
    disputed = _disputed_hosts(view, source)
    every = scope_buckets(view, source.scope)
    if not disputed:
        return tuple(TableShard(source, bucket) for bucket in every)
    bits = every.start.bit_length() - 1
    left_out: dict[int, set[str]] = {}
    for host in disputed:
        left_out.setdefault(bucket_of(host, bits), set()).add(host)
    settled = (TableShard(source, bucket, frozenset(left_out.get(bucket, ()))) for bucket in every)
    return (*settled, TableShard(source, CONTESTED, disputed))


def share_hosts(view: View, share: TableShard) -> tuple[PlannedHost, ...]:
    """The virtual hosts of a share, in the order of hosts."""
    if share.bucket == CONTESTED:
        return _settled_together(view, share.source, share.disputed)
    hosts = _group(view, share.source, share.bucket).hosts
    return tuple(h for h in hosts if _host_of(h) not in share.disputed) if share.disputed else hosts


def sniffed_hosts(view: View, source: Source, host: str, domain: str) -> tuple[PlannedHost, ...]:
    """The virtual host of one service, by its domain, for whatever host a request names; all where none has it.

    None where there is no such service: then there is no listener for it either, and anybody can make up its name.
    """
    if _service_on(view, source, host) is None:
        return ()
    found: PlannedHost | None = None
    group = _group(view, source, _bucket_in(view, source, host))
    # The name of a service is nobody's short form: only an address, a wildcard or other letters can be another's too.
    if _is_plain(host) and host.lower() not in group.disputed:
        found = _with_domain((h for h in group.hosts if _host_of(h) == host), domain)
    if found is None:
        every = [planned for share in shares(view, source) for planned in share_hosts(view, share)]
        found = _with_domain(every, domain)
        if found is None:
            return tuple(every)
    return (attrs.evolve(found, domains=("*",)),)


def _with_domain(hosts: Iterable[PlannedHost], domain: str) -> PlannedHost | None:
    return next((host for host in hosts if domain in host.domains), None)


def _is_plain(host: str) -> bool:
    return not host.startswith("*") and ":" not in host and not host.rpartition(".")[2].isdecimal()


def _bucket_in(view: View, source: Source, host: str) -> int:
    return bucket_of(host, scope_buckets(view, source.scope).start.bit_length() - 1)


@attrs.frozen
class _Group:
    """The virtual hosts of a bucket as if there were no other hosts."""

    hosts: tuple[PlannedHost, ...]
    wanted: frozenset[str]
    """What no other host may want, in lower case."""
    disputed: frozenset[str]
    """What two hosts of the bucket want."""


@derived
def _group(view: View, source: Source, bucket: int) -> _Group:
    services = _services_on(view, source, bucket)
    bits = bucket.bit_length() - 1
    planner = _Planner(view, source, services, lambda host: bucket_of(host, bits) == bucket)
    for head in egress_virtual_services(view, source.scope, source.egress, bucket):
        planner.add_virtual_service(head)
    planner.add_services()
    planned: dict[str, tuple[int, PlannedHost]] = {}
    owners: dict[str, str] = {}
    disputed: set[str] = set()
    for want in planner.wants():
        if want.name in planned:
            continue
        planned[want.name] = (place_of(want.host), want.planned(want.claimed(Claims(want.known))))
        for token in want.tokens():
            if owners.setdefault(token, want.host) != want.host:
                disputed.add(token)
    hosts = tuple(host for _, host in sorted(planned.values(), key=_place_and_name))
    return _Group(hosts, frozenset(owners), frozenset(disputed))


def _place_and_name(item: tuple[int, PlannedHost]) -> tuple[int, str]:
    return item[0], item[1].name


@derived
def _disputed_hosts(view: View, source: Source) -> frozenset[str]:
    """The hosts that want anything that another host wants."""
    groups = {bucket: _group(view, source, bucket) for bucket in scope_buckets(view, source.scope)}
    ledger = overlap_index(view, "hosts", source)
    disputed = ledger.shared({bucket: group.wanted for bucket, group in groups.items()})
    disputed = disputed.union(*[group.disputed for group in groups.values() if group.disputed])
    if not disputed:
        return NOBODY
    return frozenset(
        host
        for group in groups.values()
        if not group.wanted.isdisjoint(disputed)
        for planned in group.hosts
        if (host := _host_of(planned)).lower() in disputed or any(d.lower() in disputed for d in planned.domains)
    )


@derived
def _settled_together(view: View, source: Source, hosts: frozenset[str]) -> tuple[PlannedHost, ...]:
    """The virtual hosts of some hosts that share domains with no others: whoever comes first has a domain."""
    found = (_service_on(view, source, host) for host in hosts)
    services = sorted((s for s in found if s is not None), key=lambda service: precedence(view, service))
    planner = _Planner(view, source, services, hosts.__contains__)
    scope, egress = source.scope, source.egress
    every = (egress_virtual_services(view, scope, egress, b) for b in {_bucket_in(view, source, h) for h in hosts})
    for head in in_precedence((head for heads in every for head in heads), scope.namespace):
        planner.add_virtual_service(head)
    planner.add_services()
    wants = list(planner.wants())
    claims = Claims({name for want in wants for name in want.known})
    planned: dict[str, tuple[int, PlannedHost]] = {}
    for want in wants:
        if want.name not in planned and (domains := want.claimed(claims)):
            planned[want.name] = (place_of(want.host), want.planned(domains))
    return tuple(host for _, host in sorted(planned.values(), key=_place_and_name))


def _services_on(view: View, source: Source, bucket: int) -> tuple[Service, ...]:
    """The services of a bucket with a port of the table's, whatever it speaks."""
    return _services_by_port(view, source.scope, source.egress, bucket).get(source.port, ())


@derived
def port_is_used(view: View, scope: OutboundScope, egress: Egress, port: int) -> bool:
    """Whether a table for a port can have virtual hosts: most numbers that a client can make up have none."""
    return port == HTTP_PORT or port in _used_ports(view, scope, egress)


@derived
def _used_ports(view: View, scope: OutboundScope, egress: Egress) -> frozenset[int]:
    found = (_ports_in(view, scope, egress, bucket) for bucket in scope_buckets(view, scope))
    return frozenset().union(*found)


@derived
def _ports_in(view: View, scope: OutboundScope, egress: Egress, bucket: int) -> frozenset[int]:
    return frozenset(_services_by_port(view, scope, egress, bucket))


def _service_on(view: View, source: Source, host: str) -> Service | None:
    services = _services_on(view, source, _bucket_in(view, source, host))
    return next((service for service in services if service.host == host), None)


@derived
def _services_by_port(
    view: View, scope: OutboundScope, egress: Egress, bucket: int
) -> Mapping[int, tuple[Service, ...]]:
    found: dict[int, list[Service]] = {}
    for service in egress_services(view, scope, egress, bucket):
        for number in (0, *dict.fromkeys(p.number for p in service.ports)):
            found.setdefault(number, []).append(service)
    return {number: tuple(services) for number, services in found.items()}


def _ports(service: Service, source: Source) -> Iterator[Port]:
    """The ports of a service that a table is for: HTTP, and what may turn out to be."""
    return (
        p for p in service.ports if (p.protocol.is_http or p.protocol is Protocol.AUTO) and source.port in (0, p.number)
    )


@derived
def _numbers_of(view: View, source: Source, host: str) -> frozenset[int]:
    """The numbers of those ports of the service of a host; none where it has none, or there is no service."""
    service = _service_on(view, source, host)
    return frozenset(p.number for p in _ports(service, source)) if service is not None else frozenset()


@derived
def _covered(view: View, source: Source) -> Mapping[str, frozenset[int]]:
    """The wildcards of VirtualServices that cover any service on the table's port, with the numbers of their ports."""
    found: dict[str, frozenset[int]] = {}
    for bucket in scope_buckets(view, source.scope):
        for pattern, numbers in _covered_in(view, source, bucket).items():
            found[pattern] = found.get(pattern, frozenset()) | numbers
    return found


@derived
def _covered_in(view: View, source: Source, bucket: int) -> Mapping[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    services = _services_on(view, source, bucket)
    for head in egress_virtual_services(view, source.scope, source.egress, WILD):
        for pattern in (host for host in head.hosts if host.startswith("*") and host not in found):
            covered = [s for s in services if host_covers(pattern, s.host)]
            if covered:
                found[pattern] = frozenset(p.number for s in covered for p in _ports(s, source))
    return found


def _host_of(planned: PlannedHost) -> str:
    return planned.name.rpartition(":")[0].removeprefix("[").removesuffix("]")


@attrs.frozen
class _Want:
    """A host on a port, the domains it would like to have, and its routes."""

    host: str
    port: int
    bare: bool
    """Whether it is meant where a request names no port."""
    names: tuple[str, ...]
    short: tuple[str, ...]
    """Those of the names that are short forms."""
    routes: RouteSource
    configs: tuple[ConfigKey, ...]
    is_service: bool

    @property
    def name(self) -> str:
        return host_port(self.host, self.port)

    @property
    def known(self) -> tuple[str, ...]:
        """What is nobody else's short form."""
        return (self.host, self.name) if self.is_service else ()

    def claimed(self, claims: Claims) -> tuple[str, ...]:
        return claims.take(self.names, self.short, self.port, bare=self.bare)

    def planned(self, domains: tuple[str, ...]) -> PlannedHost:
        return PlannedHost(self.name, domains, (self.routes,), configs=self.configs)

    def tokens(self) -> Iterator[str]:
        """What stands for the domains that it wants: where they are with and without port, those without."""
        if not self.bare:
            yield self.host.lower()
        for name in self.names:
            domain = in_brackets(name) if self.bare else host_port(name, self.port)
            lower = domain.lower()
            yield domain if lower == domain else lower


@attrs.frozen
class _Draft:
    """Routes on a port, and the hosts they are for."""

    port: int
    hosts: tuple[str, ...]
    """Hosts of a VirtualService that are no service's."""
    services: tuple[Service, ...]
    routes: RouteSource
    configs: tuple[ConfigKey, ...]


class _Planner:
    """Gathers who routes what for some hosts of a table, in order of precedence."""

    def __init__(self, view: View, source: Source, services: Iterable[Service], is_mine: Callable[[str], bool]) -> None:
        """``services`` in order. ``is_mine`` tells of other hosts whether they are among those that this is about."""
        self._view = view
        self._source = source
        self._services = {service.host: service for service in services}
        self._is_mine = is_mine
        self._routed: set[str] = set()
        """Hosts of services that a VirtualService is for."""
        self._drafts: list[_Draft] = []

    def add_virtual_service(self, head: VirtualServiceHead) -> None:
        hosts, services = self._parted(head.hosts)
        by_port: dict[int, list[Service]] = {}
        for service in services:
            for port in _ports(service, self._source):
                by_port.setdefault(port.number, []).append(service)
        numbers: Set[int] = by_port.keys()
        if hosts:
            numbers = numbers | self._numbers_elsewhere(head.hosts)
            if not numbers and self._source.port == HTTP_PORT:
                numbers = {HTTP_PORT}
        if not numbers:
            return
        view, scope = self._view, self._source.scope
        client = route_client(view, scope, MESH_GATEWAY, head.key, infer_ports=not self._source.port)
        for number in sorted(numbers):
            if has_routes(view, head.key, client, number):
                served = by_port.get(number, [])
                routes = virtual_service_routes.query(head.key, client, number)
                configs = sources(view, head.key)
                self._drafts.append(_Draft(number, tuple(hosts), tuple(served), routes, configs))
                self._routed.update(service.host for service in served)

    def add_services(self) -> None:
        """Those that no VirtualService is for."""
        scope = self._source.scope
        for service in self._services.values():
            if service.host in self._routed:
                continue
            rule = destination_rule_ref(self._view, scope.namespace, scope.labels, service.key)
            configs = (service.config, *rule) if service.config is not None else rule
            for port in _ports(service, self._source):
                routes = ServiceRoutes(service.host, port.number, rule)
                self._drafts.append(_Draft(port.number, (), (service,), routes, configs))

    def wants(self) -> Iterator[_Want]:
        scope = self._source.scope
        for draft in self._drafts:
            # Where a table is for all ports, hosts without one are on the port that they imply.
            bare = bool(self._source.port) or draft.port == HTTP_PORT
            for host in draft.hosts:
                yield _Want(host, draft.port, bare, (host,), (), draft.routes, draft.configs, is_service=False)
            for service in draft.services:
                names, short = service_names(service, scope.dns_domain)
                names += service_addresses(service, scope)
                yield _Want(service.host, draft.port, bare, names, short, draft.routes, draft.configs, is_service=True)

    def _numbers_elsewhere(self, hosts: Iterable[str]) -> Set[int]:
        """On which ports a VirtualService is for any service, of those that this is not about."""
        found: set[int] = set()
        for host in hosts:
            if host.startswith("*"):
                found |= _covered(self._view, self._source).get(host, frozenset())
            elif host not in self._services and not self._is_mine(host):
                found |= _numbers_of(self._view, self._source, host)
        return found

    def _parted(self, hosts: Iterable[str]) -> tuple[list[str], list[Service]]:
        """The hosts of a VirtualService: those of no service, and the services of the others."""
        unknown: list[str] = []
        found: list[Service] = []
        for host in sorted(hosts, key=lambda h: h.startswith("*")):
            if host.startswith("*"):
                found += (s for s in self._services.values() if host_covers(host, s.host))
                if self._is_mine(host) and host not in _covered(self._view, self._source):
                    unknown.append(host)
            elif host in self._services:
                found.append(self._services[host])
            elif self._is_mine(host):
                unknown.append(host)
        return unknown, found
