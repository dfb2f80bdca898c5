"""Route tables from planned virtual hosts: what a table holds is planned apart from the bytes it is made of.

A plan names its virtual hosts and says which translator gives the routes of each. An edit of one VirtualService
leaves plans alone; it costs its own routes, their virtual hosts, and putting the table together again. A large table
is put together from pieces of many virtual hosts, so that those that stayed are not looked at one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

import attrs
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.config.route.v3 import route_pb2

from mesh_pilot.envoy.core.protobuf import boolean, encode
from mesh_pilot.envoy.routes.build import Encoded, service_routes
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import DestinationRuleRef
from mesh_pilot.mesh.proxy.proxy_config import counts_attempts
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import ROUTE, JoinedKeys, Resource, make_resource
from mesh_pilot.protowire import field, field_header
from mesh_pilot.world import View


class RouteSource(Protocol):
    """Where routes come from; compared and hashed by value."""

    def get(self, view: View) -> tuple[Encoded, ...]: ...


@attrs.frozen(cache_hash=True)
class ServiceRoutes:
    """The routes of a service that no VirtualService is for. They are not derived: to make them anew costs less than
    to remember them, and most services have nothing else."""

    host: str
    port: int
    rule: DestinationRuleRef

    def get(self, view: View) -> tuple[Encoded, ...]:
        return service_routes(view, self.host, self.port, self.rule)


NAME = 1
HOST_DOMAINS, HOST_ROUTES = 2, 3
TABLE_HOSTS = 2
"""Field numbers of VirtualHost and RouteConfiguration."""


@attrs.frozen(cache_hash=True)
class PlannedHost:
    """One virtual host of a table."""

    name: str
    domains: tuple[str, ...]
    routes: tuple[RouteSource, ...] = ()
    """Where its routes come from, in order."""
    https_only: bool = False
    """Plaintext requests are redirected to HTTPS."""
    configs: tuple[ConfigKey, ...] = ()
    """What its routes were written in."""


@derived
def virtual_host(view: View, planned: PlannedHost) -> bytes:
    """A VirtualHost, encoded. Of routes from several sources those that take everything go last."""
    routes = [route for source in planned.routes for route in source.get(view)]
    if len(planned.routes) > 1:
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
    view: View, name: str, hosts: Iterable[PlannedHost], last: Iterable[bytes] = (), *, grpc: bool = False
) -> Resource:
    """A RouteConfiguration; ``last`` are encoded virtual hosts to put at its end.

    Envoy is told not to check its clusters, for routes may come before the clusters they name; ``grpc`` clients
    never check.
    """
    planned = tuple(hosts)
    encoded = [virtual_host(view, host) for host in planned]
    encoded += last
    rest = b"" if grpc else encode(route_pb2.RouteConfiguration(validate_clusters=boolean(False)))
    body = b"".join((field(NAME, name.encode()), *(field(TABLE_HOSTS, host) for host in encoded), rest))
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
