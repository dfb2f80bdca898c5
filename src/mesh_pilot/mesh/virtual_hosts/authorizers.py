"""Authorizers: the servers that rules of HTTPRoutes ask whether a request may pass (filter ``ExternalAuth``).

A listener has a filter for each authorizer of its route table, which does nothing but for the routes that name it. If
a table and the filters before it were replaced one after the other, requests on connections that are older than the
newer of the two could pass unasked. So a table belongs to its filters: its name has a digest of them, and a change of
authorizers gives the listener another table, while older connections end with theirs.

Sidecars share a listener among all hosts of a port. So theirs change with the set of authorizers of the port, and only
where the proxy may see the rules: VirtualServices that ask are indexed, and without any nothing is read of tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.listeners.gateway_servers import GatewayServer
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.sidecar_scope import (
    egress_listeners,
    egress_virtual_services,
    scope_shard_bits,
    visible_virtual_services,
)
from mesh_pilot.mesh.routing.client import applicable_rules
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost, VirtualServiceRoutes, is_address
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import (
    TableName,
    TableShard,
    host_of,
    parse_table,
    planned_hosts,
    shard_hosts,
    table_shards,
)
from mesh_pilot.mesh.virtual_services.chains import rules_at
from mesh_pilot.mesh.virtual_services.rules import http_rules
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import AUTHORIZERS, plain_table_name
from mesh_pilot.world.shards import ASKING, CROSS_SHARD, shard_of
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True, order=True)
class Authorizer:
    """A server that is asked, and what it is told. Rules that say the same have the same one."""

    host: str
    """Full name."""
    port: int
    grpc: bool
    """Envoy's authorization service over gRPC; else HTTP."""
    path_prefix: str
    allowed_headers: tuple[str, ...]
    """In lower case; see ``ExternalAuth.allowed_headers``."""
    allowed_response_headers: tuple[str, ...]
    max_body: int
    """Bytes; 0: no body."""

    @property
    def name(self) -> str:
        """Text that no other authorizer has: ``auth.shop.svc.cluster.local:9000/1f0c3a5b8e7d6c90``."""
        return f"{self.host}:{self.port}/{_digest(attrs.astuple(self))}"


def authorizers_of(rule: api.HttpRoute) -> Iterator[Authorizer]:
    """The authorizers of a rule, in the order in which they are asked."""
    for auth in rule.external_auth:
        assert auth.destination is not None and auth.destination.port is not None, "the conversion sets both"
        yield Authorizer(
            host=auth.destination.host,
            port=auth.destination.port.number,
            grpc=auth.grpc,
            path_prefix=auth.path_prefix,
            allowed_headers=_names(auth.allowed_headers),
            allowed_response_headers=_names(auth.allowed_response_headers),
            max_body=auth.max_body,
        )


@derived
def table_authorizers(view: View, scope: OutboundScope, servers: tuple[GatewayServer, ...]) -> tuple[Authorizer, ...]:
    """The authorizers of the rules in the route table that these servers share; each once, in a fixed order."""
    names = dict.fromkeys(server.gateway_name for server in servers)
    heads = (head for name in names for head in visible_virtual_services(view, scope.namespace, name))
    # In one rule several are asked in the order of their filters, which is that of the router's: the fixed one.
    return tuple(sorted({each for head in heads for each in _of_virtual_service(view, head.key)}))


def sidecar_authorizers(view: View, scope: OutboundScope, table: str) -> tuple[Authorizer, ...]:
    """The authorizers of the rules in a sidecar's table, by its plain name; each once, in a fixed order."""
    # Not derived where nobody asks: that would be a value for each table of each scope.
    name = parse_table(table) if _asks(view, scope) else None
    if name is None:
        return ()
    if not name.sniffed:
        return _at_port(view, scope, name)
    host = name.sniffed.rpartition(":")[0]
    if host.startswith("*") or is_address(host):
        # Its virtual host may be that of another service (see ``planned_hosts``).
        return _each_once((_by_host(view, planned_hosts(view, scope, name), _asking(view, scope, CROSS_SHARD)),))
    own = shard_of(host, scope_shard_bits(view, scope))
    if not _asking(view, scope, own):
        return ()
    every = table_shards(view, scope, attrs.evolve(name, sniffed=""))
    shards = (_in_shard(view, shard) for shard in every if shard.shard in (own, CROSS_SHARD))
    return tuple(sorted({each for found in shards for each in found.get(host.lower(), ())}))


def sidecar_table(view: View, scope: OutboundScope, name: str) -> TableName | None:
    """A sidecar's table of this name, parsed; None if it has none: also for one of a listener that is replaced, from
    which connections may be left that keep the table that they have."""
    plain = plain_table_name(name)
    if table_name(plain, sidecar_authorizers(view, scope, plain)) != name:
        return None
    return parse_table(plain)


@derived
def _asks(view: View, scope: OutboundScope) -> bool:
    return bool(_asking(view, scope, CROSS_SHARD))


@derived
def _asking(view: View, scope: OutboundScope, shard: int) -> frozenset[ConfigKey]:
    """The VirtualServices with a rule that asks, of those behind the egress listeners of a scope: those in a shard, or
    (``CROSS_SHARD``) all."""
    every = (
        egress_virtual_services(view, scope, egress, ASKING if shard == CROSS_SHARD else shard)
        for egress in egress_listeners(view, scope)
    )
    return frozenset(meta.key for metas in every for meta in metas if meta.asks)


_ByHost = Mapping[str, tuple[Authorizer, ...]]
"""Authorizers by the host of a virtual host, in lower case."""


@derived
def _at_port(view: View, scope: OutboundScope, name: TableName) -> tuple[Authorizer, ...]:
    return _each_once(_in_shard(view, shard) for shard in table_shards(view, scope, name))


def _in_shard(view: View, shard: TableShard) -> _ByHost:
    # As above: no value for each shard of each table.
    return _asked_in(view, shard) if _asking(view, shard.table.scope, shard.shard) else {}


@derived
def _asked_in(view: View, shard: TableShard) -> _ByHost:
    return _by_host(view, shard_hosts(view, shard), _asking(view, shard.table.scope, shard.shard))


def _by_host(view: View, hosts: Iterable[PlannedHost], asking: frozenset[ConfigKey]) -> _ByHost:
    found: dict[str, set[Authorizer]] = {}
    for planned in hosts:
        for source in planned.routes:
            if isinstance(source, VirtualServiceRoutes) and source.virtual_service in asking:
                rules = rules_at(view, source.virtual_service, source.client.gateway)
                selected = [rule for rule, _ in applicable_rules(rules, source.client, source.port)]
                asked = {each for rule in selected for each in authorizers_of(rule.spec)}
                found.setdefault(host_of(planned).lower(), set()).update(asked)
    return {host: tuple(sorted(asked)) for host, asked in found.items()}


def _each_once(found: Iterable[_ByHost]) -> tuple[Authorizer, ...]:
    return tuple(sorted({each for by_host in found for asked in by_host.values() for each in asked}))


@derived
def _of_virtual_service(view: View, key: ConfigKey) -> tuple[Authorizer, ...]:
    return tuple(dict.fromkeys(each for rule in http_rules(view, key) for each in authorizers_of(rule.spec)))


def table_name(plain: str, authorizers: tuple[Authorizer, ...]) -> str:
    """The name of a table: as Istio has it, and with authorizers a digest of them."""
    return f"{plain}{AUTHORIZERS}{_digest(authorizers)}" if authorizers else plain


def _names(headers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name.lower() for name in headers}))


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
