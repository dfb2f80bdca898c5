"""Which HTTP rules of a VirtualService apply to a client: by gateway, source and port, which the proxy can't match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.clusters.destination_rules import NO_RULE, DestinationRuleRef, destination_rule_ref
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.mesh.virtual_services.chains import gateway_destinations, rules_at
from mesh_pilot.mesh.virtual_services.redirects import SchemePort, default_ports
from mesh_pilot.mesh.virtual_services.rules import HttpRule, matches_all, traits
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world import View
from mesh_pilot.world.names import MESH_GATEWAY


@attrs.frozen(cache_hash=True)
class RouteClient:
    """The properties of a proxy that the routes of a VirtualService depend on. Proxies with equal ones share routes."""

    gateway: str = MESH_GATEWAY
    """``mesh``, or the ``namespace/name`` of a Gateway."""
    namespace: str = ""
    """Empty if no match needs it."""
    labels: Labels = frozenset()
    """Only labels that matches of the VirtualService need."""
    rules: tuple[tuple[str, DestinationRuleRef], ...] = ()
    """The DestinationRules that apply to the client, by destination host. Hosts without a rule are omitted."""
    only_ports: tuple[tuple[str, int], ...] = ()
    """The port of destinations without one, by host, where the service has only one: else it is that of the request."""
    grpc: bool = False
    """True for proxyless gRPC, which reads timeouts from other fields."""

    def rule(self, host: str) -> DestinationRuleRef:
        return next((ref for name, ref in self.rules if name == host), NO_RULE)

    def only_port(self, host: str) -> int:
        """0: the port of the request."""
        return next((port for name, port in self.only_ports if name == host), 0)


Selected = tuple[HttpRule, api.HttpMatchRequest | None]
"""A rule and one of its matches; None if the rule has none and matches all requests."""


def route_client(view: View, scope: OutboundScope, gateway: str, key: ConfigKey) -> RouteClient:
    """The client that a proxy of a scope is for a VirtualService."""
    needed = traits(view, key)
    destinations = needed.destinations if gateway == MESH_GATEWAY else gateway_destinations(view, key)
    rules = []
    for host in destinations:
        ref = destination_rule_ref(view, scope.namespace, scope.labels, service_key(view, scope, host))
        if ref:
            rules.append((host, ref))
    without_port = needed.without_port if gateway == MESH_GATEWAY else destinations
    ports = ((host, only_port(view, scope, host)) for host in without_port)
    return RouteClient(
        gateway=gateway,
        namespace=scope.namespace if needed.by_namespace else "",
        labels=frozenset(item for item in scope.labels if item[0] in needed.source_labels),
        rules=tuple(rules),
        only_ports=tuple((host, port) for host, port in ports if port),
        grpc=scope.grpc,
    )


@derived
def has_routes(view: View, key: ConfigKey, client: RouteClient, port: int) -> bool:
    """True if any rule of a VirtualService applies to a client on a port. Otherwise the VirtualService is ignored."""
    return next(applicable_rules(rules_at(view, key, client.gateway), client, port), None) is not None


def applicable_rules(rules: Sequence[HttpRule], client: RouteClient, port: int) -> Iterator[Selected]:
    """The rules and matches that apply to a client, in order, up to the first that matches all requests."""
    for rule in rules:
        if not rule.spec.match:
            yield rule, None
            return
        for match in rule.spec.match:
            if not _applies(match, client, port):
                continue
            yield rule, match
            if matches_all(match):
                return


def redirect_ports(rule: HttpRule, client: RouteClient) -> tuple[SchemePort, ...]:
    """The further routes that a rule's redirect needs for each of its matches. gRPC follows no redirects."""
    return () if client.grpc else default_ports(rule.spec.redirect)


def session_route_count(rule: HttpRule, client: RouteClient) -> int:
    """The number of further routes that each of a rule's matches needs for sessions at one of its destinations."""
    if rule.spec.session is None or client.grpc or len(rule.spec.route) == 1:
        return 0
    return sum(1 for each in rule.spec.route if each.destination is not None and each.weight)


def _applies(match: api.HttpMatchRequest, client: RouteClient, port: int) -> bool:
    if match.gateways and client.gateway not in match.gateways:
        return False
    if match.port and match.port != port:
        return False
    if match.source_namespace and match.source_namespace != client.namespace:
        return False
    return match.source_labels.items() <= client.labels


@derived
def service_key(view: View, scope: OutboundScope, host: str) -> ServiceKey:
    """The key of the service that a host means in a scope; for a host without a service a key without namespace."""
    service = scope_service(view, scope, host)
    return service.key if service is not None else ServiceKey(host, "")


@derived
def only_port(view: View, scope: OutboundScope, host: str) -> int:
    """The port of a service that has only one; 0 if it has several, or there is no service."""
    service = scope_service(view, scope, host)
    return service.ports[0].number if service is not None and len(service.ports) == 1 else 0
