"""Which rules of a VirtualService are for a client: by gateway, source and port, decided here and not by the proxy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import NO_RULE, DestinationRuleRef, destination_rule_ref
from mesh_pilot.mesh.proxy.scope import Labels, OutboundScope
from mesh_pilot.mesh.virtual_services.rules import HttpRule, http_rules, takes_all, traits
from mesh_pilot.mesh.virtual_services.services import only_port, service_key
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world import View
from mesh_pilot.world.names import MESH_GATEWAY


@attrs.frozen(cache_hash=True)
class RouteClient:
    """Of a proxy only what makes a difference for one VirtualService, so that as many as can be share its routes."""

    gateway: str = MESH_GATEWAY
    """``mesh``, or the ``namespace/name`` of the Gateway that routes."""
    namespace: str = ""
    """Empty where it makes no difference."""
    labels: Labels = frozenset()
    """Those that matches of the VirtualService ask for."""
    rules: tuple[tuple[str, DestinationRuleRef], ...] = ()
    """The DestinationRules that the client follows, by host of the destinations that have any."""
    only_ports: tuple[tuple[str, int], ...] = ()
    """What a destination without a port means, by host, where that is not the port that the client asked for."""
    grpc: bool = False
    """A gRPC client without proxy, which reads time limits elsewhere."""

    def rule(self, host: str) -> DestinationRuleRef:
        return next((ref for name, ref in self.rules if name == host), NO_RULE)

    def only_port(self, host: str) -> int:
        """0: the port that the client asked for."""
        return next((port for name, port in self.only_ports if name == host), 0)


Selected = tuple[HttpRule, api.HttpMatchRequest | None]
"""A rule and one of its matches; None where it has none and takes everything."""


def route_client(
    view: View, scope: OutboundScope, gateway: str, key: ConfigKey, *, infer_ports: bool = False
) -> RouteClient:
    """What a proxy of a scope is to a VirtualService.

    ``infer_ports``: a destination without a port means the only one of its service.
    """
    known = traits(view, key)
    rules = []
    for host in known.destinations:
        ref = destination_rule_ref(view, scope.namespace, scope.labels, service_key(view, scope, host))
        if ref:
            rules.append((host, ref))
    ports = ((host, only_port(view, scope, host)) for host in known.destinations if infer_ports)
    return RouteClient(
        gateway=gateway,
        namespace=scope.namespace if known.by_namespace else "",
        labels=frozenset(item for item in scope.labels if item[0] in known.source_labels),
        rules=tuple(rules),
        only_ports=tuple((host, port) for host, port in ports if port),
        grpc=scope.grpc,
    )


@derived
def has_routes(view: View, key: ConfigKey, client: RouteClient, port: int) -> bool:
    """Whether any rule of a VirtualService is for a client on a port: without one, it is as if it were not there."""
    return next(select(http_rules(view, key), client, port), None) is not None


def select(rules: Sequence[HttpRule], client: RouteClient, port: int) -> Iterator[Selected]:
    """The rules and matches for a client, in order, up to the first that takes everything."""
    for rule in rules:
        if not rule.spec.match:
            yield rule, None
            return
        for match in rule.spec.match:
            if not _is_for(match, client, port):
                continue
            yield rule, match
            if takes_all(match):
                return


def _is_for(match: api.HttpMatchRequest, client: RouteClient, port: int) -> bool:
    if match.gateways and client.gateway not in match.gateways:
        return False
    if match.port and match.port != port:
        return False
    if match.source_namespace and match.source_namespace != client.namespace:
        return False
    return match.source_labels.items() <= client.labels
