"""Which virtual hosts a sidecar's route table has.

Virtual hosts depend on each other in one way only: a domain may occur once in a table. Most hosts want domains that no
other host wants. A table is therefore planned shard by shard, as if each shard were alone. Domains that hosts of
several shards want are contested: the hosts that want them leave their shards, and are planned together in order of
precedence. A change costs its own shard, and a comparison of the other shards' sets of domains.

Order and precedence are Pilot's: VirtualServices by precedence, then services that none applies to; of virtual hosts
with the same name the first stays; a domain belongs to the first that wants it.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.joins import values_by_shard
from mesh_pilot.mesh.reach.overlap_index import overlap_index
from mesh_pilot.mesh.reach.sidecar_scope import (
    Egress,
    egress_listeners,
    egress_virtual_services,
    in_precedence,
    precedence,
    scope_shards,
)
from mesh_pilot.mesh.virtual_hosts.host_candidates import (
    HostCandidate,
    SidecarTable,
    host_candidates,
    port_is_used,
    service_on,
    services_on,
    table_shard_of,
)
from mesh_pilot.mesh.virtual_hosts.planned import DomainTable, PlannedHost, is_address, token_of
from mesh_pilot.model.net import UNIX_PREFIX
from mesh_pilot.model.service import Protocol
from mesh_pilot.world import View
from mesh_pilot.world.shards import CROSS_SHARD, host_hash, shard_of

HTTP_PROXY = "http_proxy"

MAX_PORT = 65535

NO_HOSTS: frozenset[str] = frozenset()


@attrs.frozen(cache_hash=True)
class TableName:
    """A route table's name, parsed: ``8080``, ``host:8080`` (for one service whose protocol is detected),
    ``http_proxy``, or the address of a Unix socket."""

    port: int = 0
    """0: all ports (HTTP proxies, Unix sockets)."""
    sniffed: str = ""
    """``host:port`` of the one service that the table is for."""
    bind: str = ""


@attrs.frozen(cache_hash=True)
class TableShard:
    """Some of the virtual hosts of a table."""

    table: SidecarTable
    shard: int
    contested: frozenset[str] = NO_HOSTS
    """Hosts of the shard that are left out; in the shard ``CROSS_SHARD``, its hosts."""


def parse_table(name: str) -> TableName | None:
    """A sidecar's table name, parsed; None if no sidecar can have a table of this name."""
    if name == HTTP_PROXY:
        return TableName()
    if name.startswith(UNIX_PREFIX):
        return TableName(bind=name)
    host, colon, number = name.rpartition(":")
    # Ports have at most five digits. To read more of them as a number takes long.
    if not number.isdecimal() or len(number) > 5 or not 0 < int(number) <= MAX_PORT or (colon and not host):
        return None
    return TableName(int(number), name if colon else "")


@derived
def planned_hosts(view: View, scope: OutboundScope, name: TableName) -> tuple[PlannedHost, ...]:
    """The virtual hosts of a table, without the one for all other hosts."""
    if name.sniffed:
        table = _sidecar_table(view, scope, name)
        host = name.sniffed.rpartition(":")[0]
        return _sniffed_hosts(view, table, host) if table is not None else ()
    return tuple(host for shard in table_shards(view, scope, name) for host in shard_hosts(view, shard))


def table_shards(view: View, scope: OutboundScope, name: TableName) -> tuple[TableShard, ...]:
    """The shards of a table that is for more than one service.

    A client may still ask for a table while its listener goes away: the table is empty then.
    """
    table = _sidecar_table(view, scope, name)
    if table is None or (table.port and not port_is_used(view, scope, table.egress, table.port)):
        return ()
    return _table_shards(view, table)


def shard_hosts(view: View, shard: TableShard) -> tuple[PlannedHost, ...]:
    """The virtual hosts of a shard, in the order of their hosts' hashes."""
    if shard.shard == CROSS_SHARD:
        return _contested_hosts_planned(view, shard.table, shard.contested)
    hosts = _lone_shard(view, shard.table, shard.shard).hosts
    return tuple(h for h in hosts if host_of(h) not in shard.contested) if shard.contested else hosts


def egress_for(listeners: Iterable[Egress], name: TableName) -> Egress | None:
    """The egress listener that a table belongs to: the one on its port, else the first that catches all."""
    for egress in listeners:
        if not egress.port and not egress.bind.startswith(UNIX_PREFIX):
            return egress
        if name.port and egress.port == name.port:
            return egress
        if name.bind and egress.bind == name.bind:
            return egress
    return None


def _sidecar_table(view: View, scope: OutboundScope, name: TableName) -> SidecarTable | None:
    egress = egress_for(egress_listeners(view, scope), name)
    if egress is None:
        return None
    # Applications ask an explicit HTTP proxy for every port.
    return SidecarTable(scope, egress, 0 if egress.protocol is Protocol.HTTP_PROXY else name.port)


@derived
def _table_shards(view: View, table: SidecarTable) -> tuple[TableShard, ...]:
    contested = _contested_hosts(view, table)
    every = scope_shards(view, table.scope)
    if not contested:
        return tuple(TableShard(table, shard) for shard in every)
    bits = every.start.bit_length() - 1
    left_out: dict[int, set[str]] = {}
    for host in contested:
        left_out.setdefault(shard_of(host, bits), set()).add(host)
    settled = (TableShard(table, shard, frozenset(left_out.get(shard, ()))) for shard in every)
    return (*settled, TableShard(table, CROSS_SHARD, contested))


def _sniffed_hosts(view: View, table: SidecarTable, host: str) -> tuple[PlannedHost, ...]:
    """The virtual host of one service, found by its domain, for any host in a request; all hosts if none has it.

    Empty without such a service: there is no listener for it then, and any client can make up a name.
    """
    if service_on(view, table, host) is None:
        return ()
    found: PlannedHost | None = None
    lone = _lone_shard(view, table, table_shard_of(view, table, host))
    # The name of a service is nobody's short form. Only an address, a wildcard or upper case can be another's, too.
    if not host.startswith("*") and not is_address(host) and host.lower() not in lone.contested:
        found = _with_domain((h for h in lone.hosts if host_of(h) == host), host)
    if found is None:
        every = [planned for shard in _table_shards(view, table) for planned in shard_hosts(view, shard)]
        found = _with_domain(every, host)
        if found is None:
            return tuple(every)
    return (attrs.evolve(found, domains=("*",)),)


def _with_domain(hosts: Iterable[PlannedHost], domain: str) -> PlannedHost | None:
    return next((host for host in hosts if domain in host.domains), None)


@attrs.frozen
class _LoneShard:
    """The virtual hosts of a shard as if there were no other shards."""

    hosts: tuple[PlannedHost, ...]
    tokens: frozenset[str]
    """The domains that the hosts want (``HostCandidate.tokens``)."""
    contested: frozenset[str]
    """The tokens that two hosts of the shard want."""


@derived
def _lone_shard(view: View, table: SidecarTable, shard: int) -> _LoneShard:
    bits = shard.bit_length() - 1
    candidates = host_candidates(
        view,
        table,
        services_on(view, table, shard),
        egress_virtual_services(view, table.scope, table.egress, shard),
        lambda host: shard_of(host, bits) == shard,
    )
    planned: dict[str, tuple[int, PlannedHost]] = {}
    owners: dict[str, str] = {}
    contested: set[str] = set()
    for candidate in candidates:
        if candidate.name in planned:
            continue
        domains = candidate.take_domains(DomainTable(candidate.reserved))
        planned[candidate.name] = _ordered(candidate, domains)
        for token in candidate.tokens():
            if owners.setdefault(token, candidate.host) != candidate.host:
                contested.add(token)
    return _LoneShard(_in_order(planned), frozenset(owners), frozenset(contested))


def _ordered(candidate: HostCandidate, domains: tuple[str, ...]) -> tuple[int, PlannedHost]:
    return host_hash(candidate.host), candidate.planned(domains)


def _in_order(planned: dict[str, tuple[int, PlannedHost]]) -> tuple[PlannedHost, ...]:
    return tuple(host for _, host in sorted(planned.values(), key=lambda item: (item[0], item[1].name)))


@derived
def _contested_hosts(view: View, table: SidecarTable) -> frozenset[str]:
    """The hosts that want a domain which another host wants, too."""
    shards = values_by_shard(view, scope_shards(view, table.scope), _lone_shard, table)
    overlaps = overlap_index(view, "hosts", table)
    contested = overlaps.shared({shard: lone.tokens for shard, lone in shards.items()})
    contested = contested.union(*[lone.contested for lone in shards.values() if lone.contested])
    if not contested:
        return NO_HOSTS
    return frozenset(
        host
        for lone in shards.values()
        if not lone.tokens.isdisjoint(contested)
        for planned in lone.hosts
        if token_of(host := host_of(planned)) in contested or any(token_of(d) in contested for d in planned.domains)
    )


@derived
def _contested_hosts_planned(view: View, table: SidecarTable, hosts: frozenset[str]) -> tuple[PlannedHost, ...]:
    """The virtual hosts of hosts that share domains with no other hosts: the first in precedence gets a domain."""
    scope, egress = table.scope, table.egress
    found = (service_on(view, table, host) for host in hosts)
    services = sorted((s for s in found if s is not None), key=lambda service: precedence(view, service))
    every = (egress_virtual_services(view, scope, egress, b) for b in {table_shard_of(view, table, h) for h in hosts})
    virtual_services = in_precedence((head for heads in every for head in heads), scope.namespace)
    candidates = host_candidates(view, table, services, virtual_services, hosts.__contains__)
    free = DomainTable({name for candidate in candidates for name in candidate.reserved})
    planned: dict[str, tuple[int, PlannedHost]] = {}
    for candidate in candidates:
        if candidate.name not in planned and (domains := candidate.take_domains(free)):
            planned[candidate.name] = _ordered(candidate, domains)
    return _in_order(planned)


def host_of(planned: PlannedHost) -> str:
    """The host that a virtual host is of."""
    return planned.name.rpartition(":")[0].removeprefix("[").removesuffix("]")
