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
from mesh_pilot.envoy.egress import scope_services
from mesh_pilot.envoy.names import outbound
from mesh_pilot.envoy.policy import policy_for
from mesh_pilot.envoy.scope import Labels, Scope
from mesh_pilot.envoy.tcp import TcpTarget, Tunnel
from mesh_pilot.model.config import Config
from mesh_pilot.model.service import Service, ServiceKey
from mesh_pilot.world.view import View

L4Match = api.L4MatchAttributes | api.TlsMatchAttributes


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


def route_target(view: View, scope: Scope, route: L4Route, port: int) -> TcpTarget:
    """Where a route sends connections that came to a port."""
    key = route.config.key
    ends = [
        (_end(view, scope, d.destination, key.namespace, port), d.weight)
        for d in route.destinations
        if d.destination is not None
    ]
    (first, _), *others = ends
    if not others:
        return _with_policy(view, scope, TcpTarget(first.cluster, first.cluster), first)
    weighted = tuple((end.cluster, weight) for end, weight in ends if weight > 0)
    target = TcpTarget(f"{key.name}.{key.namespace}", weighted=weighted or ((first.cluster, 1),))
    return _with_policy(view, scope, target, attrs.evolve(first, subset=""))


def service_target(view: View, scope: Scope, service: ServiceKey, port: int) -> TcpTarget:
    """Where connections to a service's port go that no route says anything of."""
    cluster = outbound(service.host, port)
    return _with_policy(view, scope, TcpTarget(cluster, cluster), _End(cluster, service, port, ""))


def reachable(view: View, scope: Scope, host: str) -> Service | None:
    """The service that a host means to the proxies of a scope."""
    if scope.sidecar is not None:
        return view.get(_imported, scope).get(host)
    for service in view.services_named(host):
        if _visible(view, service, scope.namespace):
            return service
    return None


def _imported(view: View, scope: Scope) -> dict[str, Service]:
    return {s.host: s for s in view.get(scope_services, scope)}


def _visible(view: View, service: Service, namespace: str) -> bool:
    export = service.export_to or view.get(_default_export)
    return "*" in export or namespace in export or ("." in export and service.namespace == namespace)


def _default_export(view: View) -> frozenset[str]:
    return frozenset(view.mesh().default_service_export_to or ["*"])


@attrs.frozen
class _End:
    """Where a destination leads."""

    cluster: str
    service: ServiceKey | None
    """None: not known here."""
    port: int
    subset: str


def _end(view: View, scope: Scope, destination: api.Destination, namespace: str, listener_port: int) -> _End:
    """Without a port in the destination it is the service's only one, else the one that the connection came to."""
    host = view.full_host(destination.host, namespace)
    service = reachable(view, scope, host)
    port = listener_port
    if destination.port is not None and destination.port.number:
        port = destination.port.number
    elif service is not None and len(service.ports) == 1:
        port = service.ports[0].number
    subset = destination.subset
    return _End(outbound(host, port, subset), service.key if service else None, port, subset)


def _with_policy(view: View, scope: Scope, target: TcpTarget, end: _End) -> TcpTarget:
    """What the DestinationRule of the (first) destination and the proxy's own settings add."""
    target = attrs.evolve(target, idle_timeout=_idle_timeout(scope.meta("IDLE_TIMEOUT")))
    if end.service is None:
        return target
    policy = policy_for(view, scope.namespace, scope.labels, end.service, end.port, end.subset)
    hashing = policy.load_balancer.consistent_hash if policy.load_balancer else None
    tunnel = policy.tunnel
    return attrs.evolve(
        target,
        hash_source_ip=bool(hashing and hashing.use_source_ip),
        tunnel=Tunnel(f"{tunnel.target_host}:{tunnel.target_port}", tunnel.protocol == "POST") if tunnel else None,
    )


def _idle_timeout(text: str) -> timedelta | None:
    """The node metadata's idle timeout; None where it has none, or none that can be read."""
    if not text:
        return None
    try:
        return read_duration(text)
    except ValueError:
        return None
