"""Route tables (RouteConfiguration), by the name under which listeners request them (see ``TableName``).

A sidecar's table is joined from encoded shards of its virtual hosts, so that a change encodes one shard again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain

import attrs
from envoy.config.route.v3.route_pb2 import RouteConfiguration

from mesh_pilot.base.protowire import field, field_header
from mesh_pilot.engine import Derived, derived
from mesh_pilot.envoy.core.protobuf import ads, boolean, encode, uint32
from mesh_pilot.envoy.routes.virtual_host import catch_all, encoded_virtual_host
from mesh_pilot.istio.rules.http_route import MAX_BODY
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.virtual_hosts.authorizers import sidecar_table
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import TableShard, planned_hosts, shard_hosts, table_shards
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import ROUTE, JoinedKeys, Resource, make_resource
from mesh_pilot.world import View

_NAME = RouteConfiguration.NAME_FIELD_NUMBER
_VIRTUAL_HOSTS = RouteConfiguration.VIRTUAL_HOSTS_FIELD_NUMBER


def _settings(*, ignore_port: bool) -> RouteConfiguration:
    """The fields of every table. Envoy must not validate clusters: a table may arrive before the clusters that it
    names. The limit of direct responses is that of validation.

    ``ignore_port``: hosts are matched without the port that a request may name.
    """
    return RouteConfiguration(
        validate_clusters=boolean(False),
        ignore_port_in_host_matching=ignore_port,
        max_direct_response_body_size_bytes=uint32(MAX_BODY),
    )


_SETTINGS = {ignored: encode(_settings(ignore_port=ignored)) for ignored in (True, False)}


@derived
def route_configuration(view: View, scope: OutboundScope, name: str) -> Resource | None:
    """The route table of this name for a scope; None if it has no table of this name."""
    table = sidecar_table(view, scope, name)
    if table is None:
        return None
    if table.sniffed:
        return route_table(view, name, planned_hosts(view, scope, table))
    shards = table_shards(view, scope, table)
    # In a table for all ports the port that a request names next to the host is the one that it is for.
    ignore_port = all(shard.table.port for shard in shards)
    if scope.split:
        return split_table(view, name, ignore_port)
    last = catch_all(view, scope.sidecar)
    return _joined_table(name, [_encoded_shard(view, shard) for shard in shards], last, _SETTINGS[ignore_port])


def route_table(
    view: View,
    name: str,
    hosts: Iterable[PlannedHost],
    *,
    render: Derived[[PlannedHost], bytes] = encoded_virtual_host,
    grpc: bool = False,
) -> Resource:
    """A RouteConfiguration, whose virtual hosts ``render`` encodes; ``grpc`` clients never validate clusters."""
    planned = tuple(hosts)
    encoded = (field(_VIRTUAL_HOSTS, render(view, host)) for host in planned)
    settings = b"" if grpc else _SETTINGS[True]
    body = b"".join((field(_NAME, name.encode()), *encoded, settings))
    configs = tuple(dict.fromkeys(key for host in planned for key in host.configs))
    return make_resource(name, ROUTE, body, configs)


@derived
def split_table(view: View, name: str, ignore_port: bool = True) -> Resource:
    """A table whose virtual hosts are resources (VHDS): the same for any hosts.

    A listener waits for the first virtual host of its table, so no table is ever without one.
    """
    table = _settings(ignore_port=ignore_port)
    table.name = name
    table.vhds.config_source.CopyFrom(ads())
    return make_resource(name, ROUTE, encode(table))


@attrs.frozen
class EncodedShard:
    """The encoded virtual hosts of a table's shard."""

    fields: tuple[bytes, ...]
    """Fragments of the table's bytes, in order."""
    digests: bytes
    """A digest of each virtual host, in order."""
    configs: tuple[ConfigKey, ...]
    """The objects that define their routes."""


@derived
def _encoded_shard(view: View, shard: TableShard) -> EncodedShard:
    fields: list[bytes] = []
    digests: list[bytes] = []
    configs: dict[ConfigKey, None] = {}
    for planned in shard_hosts(view, shard):
        host = encoded_virtual_host(view, planned)
        fields += (field_header(_VIRTUAL_HOSTS, len(host)), host)
        digests.append(hashlib.blake2b(host, digest_size=16).digest())
        configs.update(dict.fromkeys(planned.configs))
    return EncodedShard(tuple(fields), b"".join(digests), tuple(configs))


def _joined_table(name: str, shards: Sequence[EncodedShard], last: bytes, settings: bytes) -> Resource:
    """A RouteConfiguration of shards, of an encoded virtual host at its end, and of encoded settings.

    Its version is a hash of its virtual hosts' digests: to hash all its bytes would cost more than the rest.
    """
    begin = field(_NAME, name.encode())
    end = field(_VIRTUAL_HOSTS, last) + settings
    body = b"".join(chain((begin,), *(shard.fields for shard in shards), (end,)))
    version = hashlib.blake2b(begin, digest_size=8)
    for shard in shards:
        version.update(shard.digests)
    version.update(end)
    return Resource(name, ROUTE, body, version.hexdigest(), JoinedKeys(tuple(shard.configs for shard in shards)))
