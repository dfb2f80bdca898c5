"""Route tables from planned virtual hosts: what a table holds is planned apart from the bytes it is made of.

A plan names its virtual hosts and says which translator gives the routes of each. An edit of one VirtualService
leaves plans alone; it costs its own routes, their virtual hosts, and putting the table together again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.config.route.v3 import route_pb2

from mesh_pilot.envoy.messages import boolean, encode, field
from mesh_pilot.envoy.proxy_settings import counts_attempts
from mesh_pilot.envoy.route.build import Encoded, service_routes
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import ROUTE, Resource, make_resource
from mesh_pilot.world import View

RoutesCall = tuple[Callable[..., tuple[Encoded, ...]], tuple[Any, ...]]
"""A translator that gives routes, and its key."""

NAME = 1
HOST_DOMAINS, HOST_ROUTES = 2, 3
TABLE_HOSTS = 2
"""Field numbers of VirtualHost and RouteConfiguration."""


@attrs.frozen(cache_hash=True)
class PlannedHost:
    """One virtual host of a table."""

    name: str
    domains: tuple[str, ...]
    routes: tuple[RoutesCall, ...] = ()
    """Where its routes come from, in order."""
    https_only: bool = False
    """Plaintext requests are redirected to HTTPS."""
    configs: tuple[ConfigKey, ...] = ()
    """What its routes were written in."""


def virtual_host(view: View, planned: PlannedHost) -> bytes:
    """A VirtualHost, encoded. Of routes from several sources those that take everything go last."""
    routes = [route for call in planned.routes for route in _routes(view, call)]
    if len(planned.routes) > 1:
        routes.sort(key=lambda route: route.takes_all)
    parts = [field(NAME, planned.name.encode())]
    parts += [field(HOST_DOMAINS, domain.encode()) for domain in planned.domains]
    parts += [field(HOST_ROUTES, route.data) for route in routes]
    parts.append(view.get(_host_settings, planned.https_only))
    return b"".join(parts)


def _routes(view: View, call: RoutesCall) -> tuple[Encoded, ...]:
    function, key = call
    return function(view, *key) if function is service_routes else view.get(function, *key)


def _host_settings(view: View, https_only: bool) -> bytes:
    """What virtual hosts have besides names and routes."""
    host = rc.VirtualHost(include_request_attempt_count=view.get(counts_attempts, ""))
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
    encoded = [view.get(virtual_host, host) for host in planned]
    encoded += last
    rest = b"" if grpc else encode(route_pb2.RouteConfiguration(validate_clusters=boolean(False)))
    body = b"".join((field(NAME, name.encode()), *(field(TABLE_HOSTS, host) for host in encoded), rest))
    configs = tuple(dict.fromkeys(key for host in planned for key in host.configs))
    return make_resource(name, ROUTE, body, configs)
