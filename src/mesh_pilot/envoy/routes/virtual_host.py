"""Virtual hosts, encoded from what ``mesh.virtual_hosts`` plans.

An edit of one VirtualService leaves plans alone: it costs its own routes, their virtual hosts, and joining the table's
encoded shards again (``tables``).

A proxy that uses Delta and asks for it (``OutboundScope.split``) gets each virtual host as a resource (VHDS); an edit
then costs it one virtual host instead of a table. Envoy has one subscription for the virtual hosts of all its tables,
by names of ``model.resource.host_name``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
from envoy.config.route.v3 import route_components_pb2 as rc

from mesh_pilot.base.protowire import field
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import encode, seconds
from mesh_pilot.envoy.routes.action import challenge_route, https_redirects
from mesh_pilot.envoy.routes.build import EncodedRoute, service_routes, virtual_service_routes
from mesh_pilot.mesh.names.resources import REQUESTED_HOST
from mesh_pilot.mesh.proxy.plans import Plan, ResourceQuery
from mesh_pilot.mesh.proxy.proxy_config import counts_attempts
from mesh_pilot.mesh.reach.unknown_hosts import unknown_host
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost, RouteSource, ServiceRoutes
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import VIRTUAL_HOST, Resource, host_name, make_resource
from mesh_pilot.world import View

ALLOW_ANY = "allow_any"
ALLOW_ANY_DYNAMIC_DNS = "allow_any_dynamic_dns"
BLOCK_ALL = "block_all"
BAD_GATEWAY = 502
MISDIRECTED_REQUEST = 421

_NAME = rc.VirtualHost.NAME_FIELD_NUMBER
_DOMAINS = rc.VirtualHost.DOMAINS_FIELD_NUMBER
_ROUTES = rc.VirtualHost.ROUTES_FIELD_NUMBER


@derived
def encoded_virtual_host(view: View, planned: PlannedHost) -> bytes:
    """A VirtualHost, encoded."""
    return encode_host(view, planned, [routes_of(view, source) for source in planned.routes])


def routes_of(view: View, source: RouteSource) -> tuple[EncodedRoute, ...]:
    """The routes of a source, in order."""
    if isinstance(source, ServiceRoutes):
        return service_routes(view, source.host, source.port, source.rule)
    return virtual_service_routes(view, source.virtual_service, source.client, source.port)


def encode_host(view: View, planned: PlannedHost, sources: Sequence[Iterable[EncodedRoute]]) -> bytes:
    """A VirtualHost, encoded, with the routes of its sources. Of several sources, routes that match all go last."""
    routes = [route for source in sources for route in source]
    if len(sources) > 1:
        routes.sort(key=lambda route: route.matches_all)
    parts = [field(_NAME, planned.name.encode())]
    parts += [field(_DOMAINS, domain.encode()) for domain in planned.domains]
    parts += [field(_ROUTES, encode(challenge_route(answer))) for answer in planned.answers]
    if planned.https_only:
        parts += [field(_ROUTES, encode(route)) for route in https_redirects()]
    if planned.misdirected:
        parts.append(field(_ROUTES, encode(_misdirected())))
    parts += [field(_ROUTES, route.data) for route in routes]
    parts.append(_host_settings(view))
    return b"".join(parts)


def _misdirected() -> rc.Route:
    """All requests are for another server (RFC 9110, 421): clients ask again on another connection."""
    answer = rc.DirectResponseAction(status=MISDIRECTED_REQUEST)
    return rc.Route(name="misdirected", match=rc.RouteMatch(prefix="/"), direct_response=answer)


@derived
def _host_settings(view: View) -> bytes:
    """The fields of a VirtualHost other than name, domains and routes, encoded."""
    return encode(rc.VirtualHost(include_request_attempt_count=counts_attempts(view, "")))


@derived
def catch_all(view: View, sidecar: ConfigKey | None) -> bytes:
    """The last virtual host of a sidecar's table, encoded: for requests to undeclared hosts.

    As the outbound traffic policy says, it forwards to the original destination, the egress proxy or the host that is
    asked for, or answers 502.
    """
    cluster = unknown_host(view, sidecar)
    name = _catch_all_name(cluster)
    count = counts_attempts(view, "")
    host = rc.VirtualHost(name=name, domains=["*"], include_request_attempt_count=count)
    route = host.routes.add(name=name, match=rc.RouteMatch(prefix="/"))
    if cluster:
        route.route.cluster = cluster
        route.route.timeout.CopyFrom(seconds(0))
        route.route.max_stream_duration.grpc_timeout_header_max.CopyFrom(seconds(0))
    else:
        route.direct_response.status = BAD_GATEWAY
    return encode(host)


def _catch_all_name(cluster: str) -> str:
    return (ALLOW_ANY_DYNAMIC_DNS if cluster == REQUESTED_HOST else ALLOW_ANY) if cluster else BLOCK_ALL


# -- virtual hosts as resources (VHDS)


def host_plan(table: str, hosts: Iterable[PlannedHost]) -> dict[str, ResourceQuery]:
    """The planned virtual hosts of a table as resources."""
    return {host_name(table, host.name): host_resource.query(table, host) for host in hosts}


@derived
def catch_all_plan(view: View, table: str, sidecar: ConfigKey | None) -> Plan:
    """The catch-all virtual host of a table as a resource."""
    name = _catch_all_name(unknown_host(view, sidecar))
    return {host_name(table, name): catch_all_resource.query(table, sidecar)}


@derived
def host_resource(view: View, table: str, planned: PlannedHost) -> Resource:
    """A virtual host as a resource. It must have the resource's name: else Envoy cannot remove it."""
    name = host_name(table, planned.name)
    body = encoded_virtual_host.compute(view, attrs.evolve(planned, name=name))
    return make_resource(name, VIRTUAL_HOST, body, planned.configs)


@derived
def catch_all_resource(view: View, table: str, sidecar: ConfigKey | None) -> Resource:
    """The catch-all virtual host as a resource."""
    host = rc.VirtualHost.FromString(catch_all(view, sidecar))
    host.name = host_name(table, host.name)
    return make_resource(host.name, VIRTUAL_HOST, encode(host))
