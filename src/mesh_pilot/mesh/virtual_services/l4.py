"""Routing of connections: the tls and tcp routes of VirtualServices turned into filter chains.

Conditions that the proxy can't see (its own labels, its namespace, the port and gateway that it is asked for) are
decided here; server names and subnets become the chain's match. Rules: Istio's VirtualService reference; Pilot's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.config.scalars import read_duration
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import client_policy, destination_rule_ref
from mesh_pilot.mesh.names import outbound
from mesh_pilot.mesh.proxy.scope import Labels, OutboundScope
from mesh_pilot.mesh.stat_names import outbound_stat_name
from mesh_pilot.mesh.visibility import scope_service
from mesh_pilot.model.config import Config
from mesh_pilot.model.service import Resolution, ServiceKey
from mesh_pilot.world.view import View

L4Match = api.L4MatchAttributes | api.TlsMatchAttributes


@attrs.frozen(cache_hash=True)
class TcpTarget:
    """Where a connection goes."""

    stat_prefix: str
    clusters: tuple[tuple[str, int], ...]
    """Clusters with their weights, each above 0; the weight of an only one does not matter."""
    hash_source_ip: bool = False
    """Connections of one address go to the same endpoint."""
    idle_timeout: timedelta | None = None
    tunnel: Tunnel | None = None
    sni_port: int = 0
    """Not 0: the server name that the client asks for is resolved, and connected to at this port."""


@attrs.frozen(cache_hash=True)
class Tunnel:
    """The connection is carried in an HTTP request to the cluster."""

    target: str
    """``host:port`` that the cluster is asked to connect to."""
    post: bool = False
    """POST rather than CONNECT."""


def to_cluster(name: str) -> TcpTarget:
    """A target that is one cluster and nothing else."""
    return TcpTarget(name, ((name, 1),))


@attrs.frozen
class Conditions:
    """What a match is held against that is known before there is any connection."""

    gateways: frozenset[str]
    """Names that count as this proxy's: ``mesh``, or the full names of Gateways."""
    port: int
    namespace: str
    labels: Labels

    def allow(self, view: View, match: L4Match, config: Config) -> bool:
        """Whether a match of this VirtualService may apply here at all."""
        gateways = (view.full_gateway(g, config.namespace) for g in match.gateways)
        return (
            (not match.gateways or any(g in self.gateways for g in gateways))
            and match.port in (0, self.port)
            and match.source_namespace in ("", self.namespace)
            and match.source_labels.items() <= self.labels
        )


@attrs.frozen
class L4Route:
    """A route that applies, with what is left of its match."""

    config: Config
    server_names: tuple[str, ...]
    cidrs: tuple[str, ...]
    source_cidrs: tuple[str, ...]
    destinations: Sequence[api.RouteDestination]

    @property
    def is_any(self) -> bool:
        return not (self.server_names or self.cidrs or self.source_cidrs)


def tls_routes(view: View, configs: Sequence[Config], conditions: Conditions) -> Iterator[L4Route]:
    """The tls routes that apply, in order; of equal matches the first."""
    seen: set[tuple[tuple[str, ...], ...]] = set()
    for config in configs:
        spec: api.VirtualService = config.spec
        for tls in spec.tls:
            for match in tls.match:
                if not tls.route or not conditions.allow(view, match, config):
                    continue
                cidrs = tuple(match.destination_subnets) if conditions.port else ()
                predicates = (tuple(match.sni_hosts), cidrs)
                if predicates not in seen:
                    seen.add(predicates)
                    yield L4Route(config, tuple(match.sni_hosts), cidrs, (), tls.route)


def tcp_routes(view: View, configs: Sequence[Config], conditions: Conditions) -> Iterator[L4Route]:
    """The tcp routes that apply, in order; the first that takes every connection is the last."""
    for config in configs:
        spec: api.VirtualService = config.spec
        for tcp in spec.tcp:
            if not tcp.route:
                continue
            routes = [
                L4Route(
                    config,
                    (),
                    tuple(match.destination_subnets) if conditions.port else (),
                    (match.source_subnet,) if match.source_subnet else (),
                    tcp.route,
                )
                for match in tcp.match
                if conditions.allow(view, match, config)
            ]
            if not tcp.match:
                routes = [L4Route(config, (), (), (), tcp.route)]
            for route in routes:
                yield route
                if route.is_any:
                    return


def route_target(view: View, scope: OutboundScope, route: L4Route, port: int) -> TcpTarget:
    """Where a route sends connections that came to a port."""
    key = route.config.key
    ends = [
        (_end(view, scope, d.destination, key.namespace, port), d.weight)
        for d in route.destinations
        if d.destination is not None
    ]
    (first, _), *others = ends
    if not others:
        return _with_policy(view, scope, _single(view, first), first)
    weighted = tuple((end.cluster, weight) for end, weight in ends if weight > 0)
    target = TcpTarget(f"{key.name}.{key.namespace}", weighted or ((first.cluster, 1),))
    return _with_policy(view, scope, target, attrs.evolve(first, subset=""))


def service_target(view: View, scope: OutboundScope, service: ServiceKey, port: int) -> TcpTarget:
    """Where connections to a service's port go that no route says anything of."""
    end = _End(outbound(service.host, port), service, port, "")
    return _with_policy(view, scope, _single(view, end), end)


@attrs.frozen
class _End:
    """Where a destination leads."""

    cluster: str
    service: ServiceKey | None
    """None: not known here."""
    port: int
    subset: str


def _end(view: View, scope: OutboundScope, destination: api.Destination, namespace: str, listener_port: int) -> _End:
    """Without a port in the destination it is the service's only one, else the one that the connection came to."""
    host = view.full_host(destination.host, namespace)
    service = scope_service(view, scope, host)
    port = listener_port
    if destination.port is not None and destination.port.number:
        port = destination.port.number
    elif service is not None and len(service.ports) == 1:
        port = service.ports[0].number
    subset = destination.subset
    return _End(outbound(host, port, subset), service.key if service else None, port, subset)


def _single(view: View, end: _End) -> TcpTarget:
    """One destination, counted under its cluster's name or by the mesh's pattern."""
    pattern = _stat_pattern(view)
    service = view.service(end.service) if pattern and end.service else None
    port = service.port(end.port) if service else None
    if service is None or port is None:
        return to_cluster(end.cluster)
    return TcpTarget(outbound_stat_name(pattern, service, port, end.subset), ((end.cluster, 1),))


@derived
def _stat_pattern(view: View) -> str:
    return view.mesh().outbound_cluster_stat_name


def _with_policy(view: View, scope: OutboundScope, target: TcpTarget, end: _End) -> TcpTarget:
    """What the DestinationRule of the (first) destination and the proxy's own settings add."""
    own = idle_timeout(scope)
    if end.service is None:
        return attrs.evolve(target, idle_timeout=own)
    ref = destination_rule_ref(view, scope.namespace, scope.labels, end.service)
    policy = client_policy(view, ref, end.port, end.subset)
    hashing = policy.load_balancer.consistent_hash if policy.load_balancer else None
    tcp = policy.connection_pool.tcp if policy.connection_pool else None
    tunnel = policy.tunnel
    return attrs.evolve(
        target,
        hash_source_ip=bool(hashing and hashing.use_source_ip),
        idle_timeout=(tcp.idle_timeout if tcp else None) or own,
        tunnel=Tunnel(f"{tunnel.target_host}:{tunnel.target_port}", tunnel.protocol == "POST") if tunnel else None,
        sni_port=end.port if _is_dynamic(view, end.service) else 0,
    )


@derived
def _is_dynamic(view: View, service: ServiceKey) -> bool:
    found = view.service(service)
    return found is not None and found.resolution is Resolution.DYNAMIC_DNS


def idle_timeout(scope: OutboundScope) -> timedelta | None:
    """How long a TCP connection may be idle, as node metadata says; None where it has nothing that can be read."""
    text = scope.meta("IDLE_TIMEOUT")
    if not text:
        return None
    try:
        return read_duration(text)
    except ValueError:
        return None
