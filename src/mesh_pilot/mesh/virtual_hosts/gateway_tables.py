"""Which virtual hosts a router's route table has: the hosts that its servers and VirtualServices have in common.

Rules are Pilot's. Unlike on sidecars, all VirtualServices for one host count, the oldest first, and routes that match
every request go last. Of several namespaces the owner's go first (see `mesh.reach.ownership`). Hosts with the same
routes share a virtual host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.mesh.listeners.gateway_servers import GatewayServer, ServerKind
from mesh_pilot.mesh.names.hosts import host_port, in_brackets
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.ownership import for_host
from mesh_pilot.mesh.reach.sidecar_scope import visible_virtual_services
from mesh_pilot.mesh.routing.client import has_routes, route_client
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost, RouteSource, VirtualServiceRoutes
from mesh_pilot.mesh.virtual_services.chains import gateway_rules
from mesh_pilot.mesh.virtual_services.rules import sources
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import ChallengeAnswer
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
    """The virtual hosts of the table that these servers share. One without hosts answers 404 to every request.

    Plaintext servers also answer issuers of certificates (``Challenges``).
    """
    planned = _routed_hosts(view, scope, servers)
    if servers[0].elsewhere:
        planned = _told_apart(planned, servers[0])
    if servers[0].kind is not ServerKind.HTTP:
        return planned
    for answer in view.challenges():
        if any(host_covers(name, answer.host) for server in servers for name in server.server_names):
            planned = _answering(planned, answer, servers[0].port)
    return planned


def _told_apart(planned: tuple[PlannedHost, ...], server: GatewayServer) -> tuple[PlannedHost, ...]:
    """The virtual hosts, and one for the hosts for which other HTTPS servers of the listener have the better name.

    Clients use a connection for all hosts of its certificate, so that requests come to a server that they would not
    have come to on their own connection. It must not serve them: the other one may ask for certificates.
    """
    own, others = server.server_names, [in_brackets(name) for name in server.elsewhere]
    told = []
    for host in planned:
        domains = tuple(each for each in host.domains if not _is_of_another(each, server))
        if domains and (host.routes or host.https_only):
            told.append(attrs.evolve(host, domains=domains))
    taken = {domain for host in told for domain in host.domains}
    # Where another server has the wider name, what is left of the own one has to be kept out of it.
    left = tuple(name for name in own if name not in taken)
    if left:
        told.append(PlannedHost(host_port(_UNROUTED, server.port), left, configs=(server.gateway,)))
    name = host_port(_MISDIRECTED, server.port)
    told.append(PlannedHost(name, tuple(others), misdirected=True, configs=(server.gateway,)))
    return tuple(sorted(told, key=lambda host: host.name))


def _is_of_another(domain: str, server: GatewayServer) -> bool:
    """True if another server has a name for a host that is narrower than the own one."""
    own = max((name for name in server.server_names if host_covers(name, domain)), key=len, default="")
    return any(host_covers(name, domain) and host_covers(own, name) for name in server.elsewhere if own)


_MISDIRECTED, _UNROUTED = "~misdirected", "~unrouted"
"""Names of virtual hosts; no host has them."""


def _answering(planned: tuple[PlannedHost, ...], answer: ChallengeAnswer, port: int) -> tuple[PlannedHost, ...]:
    """The virtual hosts, of which that of the host gives an answer.

    It is the one that Envoy selects for the host as it is: one of the host's own would take requests away from a
    wildcard's. Paths of challenges can't be guessed, so an answer at other hosts of it does no harm.
    """
    by_domain = {domain: host for host in planned for domain in host.domains}
    covering = sorted((domain for domain in by_domain if host_covers(domain, answer.host)), key=len)
    if not covering:
        return tuple(sorted((*planned, _own(answer, port)), key=lambda host: host.name))
    chosen = by_domain[covering[-1]]
    return tuple(attrs.evolve(each, answers=(*each.answers, answer)) if each is chosen else each for each in planned)


def _own(answer: ChallengeAnswer, port: int) -> PlannedHost:
    return PlannedHost(host_port(answer.host, port), (answer.host,), answers=(answer,))


@derived
def _routed_hosts(view: View, scope: OutboundScope, servers: tuple[GatewayServer, ...]) -> tuple[PlannedHost, ...]:
    """The virtual hosts with the routes of VirtualServices, and redirects."""
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
