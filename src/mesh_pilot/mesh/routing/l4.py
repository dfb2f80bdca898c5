"""The tls and tcp routes of VirtualServices.

MatchContext that a proxy can't match (its labels and namespace, port and gateway) are evaluated here. Server names and
subnets become matches of filter chains. Rules: Istio's VirtualService reference; Pilot's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.istio.meaning.durations import read_duration
from mesh_pilot.mesh.clusters.destination_rules import client_policy, destination_rule_ref
from mesh_pilot.mesh.names.resources import (
    BLACK_HOLE,
    outbound,
    outbound_datagrams,
    outbound_stat_name,
    parse_cluster,
)
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.mesh.virtual_services.chains import gateway_connections
from mesh_pilot.model.config import Config
from mesh_pilot.model.service import Resolution, ServiceKey
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.view import View

L4Match = api.L4MatchAttributes | api.TlsMatchAttributes


@attrs.frozen(cache_hash=True)
class TcpTarget:
    """The target of connections."""

    stat_prefix: str
    clusters: tuple[tuple[str, int], ...]
    """Clusters with their weights, each above 0; the weight of a single one is ignored."""
    hash_source_ip: bool = False
    """Connections from one address go to the same endpoint."""
    idle_timeout: timedelta | None = None
    max_duration: timedelta | None = None
    """After which a connection ends, busy or not."""
    tunnel: Tunnel | None = None
    sni_port: int = 0
    """If not 0, connections go to this port of the host that the SNI names, resolved by the proxy."""


@attrs.frozen(cache_hash=True)
class Tunnel:
    """Tunnels connections through HTTP requests to the cluster."""

    target: str
    """The ``host:port`` that the cluster has to connect to."""
    post: bool = False
    """True for POST, False for CONNECT."""


def to_cluster(name: str) -> TcpTarget:
    """A target with one cluster and no settings."""
    return TcpTarget(name, ((name, 1),))


@attrs.frozen
class MatchContext:
    """The properties of a proxy and listener that matches are evaluated against."""

    gateways: frozenset[str]
    """``mesh``, or the full names of the proxy's Gateways."""
    port: int
    namespace: str
    labels: Labels

    def destinations(
        self, view: View, config: Config, route: Sequence[api.RouteDestination]
    ) -> Sequence[api.RouteDestination]:
        """The destinations of a route of this VirtualService; at gateways, with Consul's chains."""
        return route if MESH_GATEWAY in self.gateways else gateway_connections(view, route, config.namespace)

    def allow(self, view: View, match: L4Match, config: Config) -> bool:
        """True if the conditions of a match of this VirtualService hold, except server names and subnets."""
        gateways = (view.full_gateway(g, config.namespace) for g in match.gateways)
        return (
            (not match.gateways or any(g in self.gateways for g in gateways))
            and match.port in (0, self.port)
            and match.source_namespace in ("", self.namespace)
            and match.source_labels.items() <= self.labels
        )


@attrs.frozen
class L4Route:
    """A route that applies, with the part of its match that the proxy evaluates."""

    config: Config
    server_names: tuple[str, ...]
    cidrs: tuple[str, ...]
    source_cidrs: tuple[str, ...]
    destinations: Sequence[api.RouteDestination]

    @property
    def is_any(self) -> bool:
        return not (self.server_names or self.cidrs or self.source_cidrs)


def tls_routes(view: View, configs: Sequence[Config], conditions: MatchContext) -> Iterator[L4Route]:
    """The tls routes that apply, in order; of equal matches only the first."""
    seen: set[tuple[tuple[str, ...], ...]] = set()
    for config in configs:
        spec: api.VirtualService = config.spec
        for tls in spec.tls:
            for match in tls.match:
                if not tls.route or not conditions.allow(view, match, config):
                    continue
                cidrs = tuple(match.destination_subnets) if conditions.port else ()
                names = tuple(name.lower() for name in match.sni_hosts)
                if (names, cidrs) not in seen:
                    seen.add((names, cidrs))
                    yield L4Route(config, names, cidrs, (), conditions.destinations(view, config, tls.route))


def tcp_routes(view: View, configs: Sequence[Config], conditions: MatchContext) -> Iterator[L4Route]:
    """The tcp routes that apply, in order, up to the first that matches all connections."""
    for config in configs:
        spec: api.VirtualService = config.spec
        for tcp in spec.tcp:
            if not tcp.route:
                continue
            to = conditions.destinations(view, config, tcp.route)
            routes = [
                L4Route(
                    config,
                    (),
                    tuple(match.destination_subnets) if conditions.port else (),
                    (match.source_subnet,) if match.source_subnet else (),
                    to,
                )
                for match in tcp.match
                if conditions.allow(view, match, config)
            ]
            if not tcp.match:
                routes = [L4Route(config, (), (), (), to)]
            for route in routes:
                yield route
                if route.is_any:
                    return


def route_target(view: View, scope: OutboundScope, route: L4Route, port: int) -> TcpTarget:
    """The target of a route for connections to a port."""
    key = route.config.key
    resolved = [
        (_resolved(view, scope, d.destination, key.namespace, port), d.weight)
        for d in route.destinations
        if d.destination is not None
    ]
    (first, _), *others = resolved
    if not others:
        return _with_policy(view, scope, _single(view, first), first)
    weighted = tuple((destination.cluster, weight) for destination, weight in resolved if weight > 0)
    target = TcpTarget(f"{key.name}.{key.namespace}", weighted or ((first.cluster, 1),))
    return _with_policy(view, scope, target, attrs.evolve(first, subset=""))


def datagram_target(view: View, scope: OutboundScope, route: L4Route, port: int) -> TcpTarget:
    """The target of a route for datagrams. Those for a service or port that is unknown are dropped."""
    target = route_target(view, scope, route, port)
    clusters = tuple((_datagram_cluster(view, scope, name), weight) for name, weight in target.clusters)
    is_named = target.stat_prefix == target.clusters[0][0]
    return attrs.evolve(target, clusters=clusters, stat_prefix=clusters[0][0] if is_named else target.stat_prefix)


def _datagram_cluster(view: View, scope: OutboundScope, name: str) -> str:
    parsed = parse_cluster(name)
    service = scope_service(view, scope, parsed.host) if parsed is not None else None
    if parsed is None or service is None or service.datagram_port(parsed.port) is None:
        return BLACK_HOLE
    if service.resolution is Resolution.DYNAMIC_DNS:
        return BLACK_HOLE  # a datagram names no host
    return outbound_datagrams(parsed.host, parsed.port, parsed.subset)


def service_target(view: View, scope: OutboundScope, service: ServiceKey, port: int) -> TcpTarget:
    """The target of connections to a service's port without a route."""
    destination = _ResolvedDestination(outbound(service.host, port), service, port, "")
    return _with_policy(view, scope, _single(view, destination), destination)


@attrs.frozen
class _ResolvedDestination:
    """A destination with its service and port."""

    cluster: str
    service: ServiceKey | None
    """None: the service is unknown."""
    port: int
    subset: str


def _resolved(
    view: View, scope: OutboundScope, destination: api.Destination, namespace: str, listener_port: int
) -> _ResolvedDestination:
    """A destination without a port means the service's only port, else the listener's."""
    host = view.destination_host(destination.host, namespace)
    service = scope_service(view, scope, host)
    port = listener_port
    if destination.port is not None and destination.port.number:
        port = destination.port.number
    elif service is not None and len(service.ports) == 1:
        port = service.ports[0].number
    subset = destination.subset
    return _ResolvedDestination(outbound(host, port, subset), service.key if service else None, port, subset)


def _single(view: View, destination: _ResolvedDestination) -> TcpTarget:
    """The target for one destination, with the cluster's name or the mesh's pattern as stat prefix."""
    pattern = _stat_pattern(view)
    service = view.service(destination.service) if pattern and destination.service else None
    port = service.port(destination.port) if service else None
    if service is None or port is None:
        return to_cluster(destination.cluster)
    return TcpTarget(outbound_stat_name(pattern, service, port, destination.subset), ((destination.cluster, 1),))


@derived
def _stat_pattern(view: View) -> str:
    return view.mesh().outbound_cluster_stat_name


def _with_policy(view: View, scope: OutboundScope, target: TcpTarget, destination: _ResolvedDestination) -> TcpTarget:
    """The target with settings of the (first) destination's DestinationRule, and of the proxy."""
    own = idle_timeout(scope)
    if destination.service is None:
        return attrs.evolve(target, idle_timeout=own)
    ref = destination_rule_ref(view, scope.namespace, scope.labels, destination.service)
    policy = client_policy(view, ref, destination.port, destination.subset)
    hashing = policy.load_balancer.consistent_hash if policy.load_balancer else None
    tcp = policy.connection_pool.tcp if policy.connection_pool else None
    tunnel = policy.tunnel
    return attrs.evolve(
        target,
        hash_source_ip=bool(hashing and hashing.use_source_ip),
        idle_timeout=tcp.idle_timeout if tcp is not None and tcp.idle_timeout is not None else own,
        max_duration=tcp.max_connection_duration if tcp is not None else None,
        tunnel=Tunnel(f"{tunnel.target_host}:{tunnel.target_port}", tunnel.protocol == "POST") if tunnel else None,
        sni_port=destination.port if _is_dynamic(view, destination.service) else 0,
    )


@derived
def _is_dynamic(view: View, service: ServiceKey) -> bool:
    found = view.service(service)
    return found is not None and found.resolution is Resolution.DYNAMIC_DNS


def idle_timeout(scope: OutboundScope) -> timedelta | None:
    """The idle timeout of TCP connections in node metadata; None if it is missing or invalid."""
    text = scope.meta("IDLE_TIMEOUT")
    if not text:
        return None
    try:
        return read_duration(text)
    except ValueError:
        return None
