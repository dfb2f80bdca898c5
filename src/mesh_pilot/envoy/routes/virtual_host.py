"""Virtual hosts and route tables, encoded from what ``mesh.virtual_hosts`` plans.

An edit of one VirtualService leaves plans alone: it costs its own routes, their virtual hosts, and joining the table's
encoded shards again. Virtual hosts of other shards are not looked at one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain

import attrs
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.config.route.v3 import route_pb2

from mesh_pilot.envoy.core.protobuf import boolean, encode
from mesh_pilot.envoy.routes.build import Encoded, service_routes, virtual_service_routes
from mesh_pilot.incremental import Derived, derived
from mesh_pilot.mesh.proxy.proxy_config import counts_attempts
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost, RouteSource, ServiceRoutes
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import ROUTE, JoinedKeys, Resource, make_resource
from mesh_pilot.protowire import field, field_header
from mesh_pilot.world import View

NAME = 1
HOST_DOMAINS, HOST_ROUTES = 2, 3
TABLE_HOSTS = 2
"""Field numbers of VirtualHost and RouteConfiguration."""


@derived
def virtual_host(view: View, planned: PlannedHost) -> bytes:
    """A VirtualHost, encoded."""
    return encode_host(view, planned, [routes_of(view, source) for source in planned.routes])


def routes_of(view: View, source: RouteSource) -> tuple[Encoded, ...]:
    """The routes of a source, in order."""
    if isinstance(source, ServiceRoutes):
        return service_routes(view, source.host, source.port, source.rule)
    return virtual_service_routes(view, source.virtual_service, source.client, source.port)


def encode_host(view: View, planned: PlannedHost, sources: Sequence[Iterable[Encoded]]) -> bytes:
    """A VirtualHost, encoded, with the routes of its sources. Of several sources, routes that match all go last."""
    routes = [route for source in sources for route in source]
    if len(sources) > 1:
        routes.sort(key=lambda route: route.takes_all)
    parts = [field(NAME, planned.name.encode())]
    parts += [field(HOST_DOMAINS, domain.encode()) for domain in planned.domains]
    parts += [field(HOST_ROUTES, route.data) for route in routes]
    parts.append(_host_settings(view, planned.https_only))
    return b"".join(parts)


@derived
def _host_settings(view: View, https_only: bool) -> bytes:
    """What virtual hosts have besides names and routes."""
    host = rc.VirtualHost(include_request_attempt_count=counts_attempts(view, ""))
    if https_only:
        host.require_tls = rc.VirtualHost.ALL
    return encode(host)


def route_table(
    view: View,
    name: str,
    hosts: Iterable[PlannedHost],
    *,
    render: Derived[[PlannedHost], bytes] = virtual_host,
    grpc: bool = False,
) -> Resource:
    """A RouteConfiguration, whose virtual hosts ``render`` encodes.

    Envoy is told not to check its clusters, for routes may come before the clusters they name; ``grpc`` clients
    never check.
    """
    planned = tuple(hosts)
    rest = b"" if grpc else encode(route_pb2.RouteConfiguration(validate_clusters=boolean(False)))
    encoded = (field(TABLE_HOSTS, render(view, host)) for host in planned)
    body = b"".join((field(NAME, name.encode()), *encoded, rest))
    configs = tuple(dict.fromkeys(key for host in planned for key in host.configs))
    return make_resource(name, ROUTE, body, configs)


@attrs.frozen
class EncodedShard:
    """Some virtual hosts of a table, ready to be put in it."""

    fields: tuple[bytes, ...]
    """What the table's bytes are made of, in order."""
    digests: bytes
    """Of each virtual host, in order."""
    configs: tuple[ConfigKey, ...]
    """What their routes were written in."""


def encode_shard(view: View, hosts: Iterable[PlannedHost]) -> EncodedShard:
    fields: list[bytes] = []
    digests: list[bytes] = []
    configs: dict[ConfigKey, None] = {}
    for planned in hosts:
        host = virtual_host(view, planned)
        fields += (field_header(TABLE_HOSTS, len(host)), host)
        digests.append(_digest(host))
        configs.update(dict.fromkeys(planned.configs))
    return EncodedShard(tuple(fields), b"".join(digests), tuple(configs))


def joined_table(name: str, pieces: Sequence[EncodedShard], last: bytes) -> Resource:
    """A RouteConfiguration of pieces, and of an encoded virtual host at its end.

    Its version follows from the digests of its virtual hosts: a hash of all its bytes would cost more than the rest.
    """
    begin = field(NAME, name.encode())
    end = field(TABLE_HOSTS, last) + encode(route_pb2.RouteConfiguration(validate_clusters=boolean(False)))
    body = b"".join(chain((begin,), *(piece.fields for piece in pieces), (end,)))
    version = hashlib.blake2b(begin, digest_size=8)
    for piece in pieces:
        version.update(piece.digests)
    version.update(end)
    return Resource(name, ROUTE, body, version.hexdigest(), JoinedKeys(tuple(piece.configs for piece in pieces)))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
