"""Clusters on demand: those that only routes of HTTP name are sent when a request first needs them (Envoy's
``on_demand`` filter, ODCDS over ADS).

For sidecars that get Delta and ask for it (``Scope.on_demand``). Envoy waits for a cluster only where a request is to
go; for copies of requests, for what is not HTTP, and for what proxies need themselves clusters must be there
beforehand. The hosts of those are *pinned*.
"""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.engine import derived
from mesh_pilot.envoy.clusters.outbound import clusters_of_no_service, service_clusters
from mesh_pilot.mesh.names.resources import Direction, parse_cluster
from mesh_pilot.mesh.policies.telemetry import provider_ports
from mesh_pilot.mesh.proxy.plans import Plan, PlanShards, ResourceQuery
from mesh_pilot.mesh.proxy.scope import OutboundScope, ProxyLocality
from mesh_pilot.mesh.reach.sidecar_scope import (
    Egress,
    egress_listeners,
    egress_virtual_services,
    scope_services,
    scope_shard_bits,
    scope_shards,
)
from mesh_pilot.mesh.reach.unknown_hosts import unknown_destination
from mesh_pilot.mesh.virtual_services.rules import http_rules
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import Resource
from mesh_pilot.world.shards import WILDCARD_HOSTS, shard_of
from mesh_pilot.world.view import View


@derived
def needed_cluster_plans(view: View, scope: OutboundScope, place: ProxyLocality) -> PlanShards:
    """The outbound clusters that a scope must have beforehand, in parts."""
    of_services = (_needed.query(scope, place, shard) for shard in scope_shards(view, scope))
    return (*of_services, clusters_of_no_service(view, scope))


@derived
def cluster_on_demand(view: View, scope: OutboundScope, place: ProxyLocality, name: str) -> Resource | None:
    """An outbound cluster of a scope by its name; None where there is no such cluster."""
    parts = parse_cluster(name)
    if parts is None or parts.direction is not Direction.OUTBOUND:
        return None
    bits = scope_shard_bits(view, scope)
    call = _call_of(view, scope, place, shard_of(parts.host, bits), name)
    return None if call is None else call.get(view)


@derived
def pinned_hosts(view: View, scope: OutboundScope) -> frozenset[str]:
    """The hosts whose clusters something else than a request's route names."""
    found = set(provider_ports(view))
    proxy = parse_cluster(unknown_destination(view, scope.sidecar))
    if proxy is not None:
        found.add(proxy.host)
    for egress in egress_listeners(view, scope):
        for shard in (*scope_shards(view, scope), WILDCARD_HOSTS):
            found |= _pinned_in(view, scope, egress, shard)
    return frozenset(found)


@derived
def _needed(view: View, scope: OutboundScope, place: ProxyLocality, shard: int) -> Plan:
    pinned = pinned_hosts(view, scope)
    services = {service.host: service for service in scope_services(view, scope, shard)}

    def is_needed(name: str) -> bool:
        parts = parse_cluster(name)
        service = services.get(parts.host) if parts is not None else None
        port = service.port(parts.port) if parts is not None and service is not None else None
        return port is None or not port.protocol.is_http or (parts is not None and parts.host in pinned)

    plan = service_clusters(view, scope, place, shard)
    return {name: call for name, call in plan.items() if is_needed(name)}


@derived
def _call_of(view: View, scope: OutboundScope, place: ProxyLocality, shard: int, name: str) -> ResourceQuery | None:
    return service_clusters(view, scope, place, shard).get(name)


@derived
def _pinned_in(view: View, scope: OutboundScope, egress: Egress, shard: int) -> frozenset[str]:
    heads = egress_virtual_services(view, scope, egress, shard)
    return frozenset().union(*(_pinned_by(view, head.key) for head in heads))


@derived
def _pinned_by(view: View, key: ConfigKey) -> frozenset[str]:
    """The hosts that a VirtualService sends copies, questions of authorization or connections to."""
    return frozenset(_not_routed(view, key))


def _not_routed(view: View, key: ConfigKey) -> Iterator[str]:
    for rule in http_rules(view, key):
        spec = rule.spec
        copies = (spec.mirror, *(mirror.destination for mirror in spec.mirrors))
        for each in (*copies, *(auth.destination for auth in spec.external_auth)):
            if each is not None:
                yield view.destination_host(each.host, rule.namespace)
    config = view.config(key)
    if config is None:
        return
    for route in (*config.spec.tcp, *config.spec.tls):
        for part in route.route:
            if part.destination is not None:
                yield view.destination_host(part.destination.host, key.namespace)
