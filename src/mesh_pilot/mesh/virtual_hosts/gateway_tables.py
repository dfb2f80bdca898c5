"""Which virtual hosts a router's route table has: the hosts that its servers and VirtualServices have in common.

Rules are Pilot's. Unlike on sidecars, all VirtualServices for one host count, the oldest first, and routes that match
every request go last. Of several namespaces the owner's go first (see `mesh.reach.ownership`). Hosts with the same
routes share a virtual host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.mesh.listeners.gateway_servers import GatewayServer
from mesh_pilot.mesh.names.hosts import host_port, in_brackets
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.ownership import for_host
from mesh_pilot.mesh.reach.sidecar_scope import visible_virtual_services
from mesh_pilot.mesh.routing.client import has_routes, route_client
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost, RouteSource, VirtualServiceRoutes
from mesh_pilot.mesh.virtual_services.chains import gateway_rules
from mesh_pilot.mesh.virtual_services.rules import sources
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.hosts import host_covers
from mesh_pilot.world import View
from mesh_pilot.world.indexes import VirtualServiceMeta

ANY_HOST = "*"


@attrs.define
class _HostBuilder:
    """A host, with what the servers and VirtualServices seen so far add to it."""

    host: str
    port: int
    routes: dict[RouteSource, None] = attrs.Factory(dict)
    configs: dict[ConfigKey, None] = attrs.Factory(dict)
    redirects: bool = False


@derived
def planned_gateway_hosts(
    view: View, scope: OutboundScope, servers: tuple[GatewayServer, ...]
) -> tuple[PlannedHost, ...]:
    """The virtual hosts of the table that these servers share. One without hosts answers 404 to every request."""
    builders: dict[str, _HostBuilder] = {}
    for server in servers:
        found: dict[str, list[tuple[VirtualServiceMeta, VirtualServiceRoutes]]] = {}
        for head in visible_virtual_services(view, scope.namespace, server.gateway_name):
            hosts = tuple(common_hosts(server.hosts_for(head.key.namespace), head.hosts))
            if not hosts:
                continue
            client = route_client(view, scope, server.gateway_name, head.key)
            if not has_routes(view, head.key, client, server.port):
                continue
            routes = VirtualServiceRoutes(head.key, client, server.port)
            for host in hosts:
                builders.setdefault(host, _HostBuilder(host, server.port))
                found.setdefault(host, []).append((head, routes))
        # Servers come in order; within one, the owner of a host goes first, which is another one for each host.
        for host, of_host in found.items():
            builder = builders[host]
            builder.redirects |= server.redirects
            if len(of_host) > 1:
                order = for_host(view, server.gateway_name, scope.namespace, host, [head for head, _ in of_host])
                of_host = [of_host[number] for number in order]
            for head, routes in of_host:
                builder.routes[routes] = None
                chains = gateway_rules(view, head.key).chains
                builder.configs.update(dict.fromkeys((server.gateway, *sources(view, head.key), *chains)))
        for host in server.server_names if server.redirects else ():
            builder = builders.setdefault(host, _HostBuilder(host, server.port))
            builder.configs[server.gateway] = None
            builder.redirects = True
    if not builders:
        return (PlannedHost(host_port("blackhole", servers[0].port), (ANY_HOST,)),)
    return tuple(sorted(_collapsed(builders.values()), key=lambda host: host.name))


def common_hosts(servers: Iterable[str], hosts: Iterable[str]) -> Iterator[str]:
    """The hosts that two lists have in common; of two that overlap, the narrower."""
    patterns = tuple(hosts)
    seen: set[str] = set()
    for server in servers:
        for host in patterns:
            common = server if host_covers(host, server) else host if host_covers(server, host) else ""
            if common and common not in seen:
                seen.add(common)
                yield common


def _collapsed(builders: Iterable[_HostBuilder]) -> Iterator[PlannedHost]:
    """Virtual hosts: one for all hosts with the same routes, named after the longest."""
    by_routes: dict[tuple[tuple[RouteSource, ...], bool], list[_HostBuilder]] = {}
    for builder in sorted(builders, key=lambda d: (d.host.startswith(ANY_HOST), -len(d.host), d.host)):
        by_routes.setdefault((tuple(builder.routes), builder.redirects), []).append(builder)
    for (routes, redirects), shared in by_routes.items():
        yield PlannedHost(
            name=host_port(shared[0].host, shared[0].port),
            domains=tuple(in_brackets(builder.host) for builder in shared),
            routes=routes,
            https_only=redirects,
            configs=tuple(dict.fromkeys(key for builder in shared for key in builder.configs)),
        )
