"""Outbound clusters: one for each port and subset of every service that a scope may reach, and the two defaults.

A cluster is keyed by its dependencies (``Upstream``, ``ClusterClient``): scopes to which the same rule applies share
it, and a change of endpoints does not touch it. Only DNS clusters carry their endpoints with them.

Rules: Istio's DestinationRule and ServiceEntry references; structure and names as Pilot's.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.clusters.connection_pool import Speaks, apply_connection_pool
from mesh_pilot.envoy.clusters.dns import DnsClient, apply_dns
from mesh_pilot.envoy.clusters.template import (
    ClusterClient,
    ClusterTemplate,
    ClusterVars,
    build_cluster,
    own_contents,
    shared_cluster,
)
from mesh_pilot.envoy.core.protobuf import duration, encode, resource_of
from mesh_pilot.envoy.endpoints.assignments import preference_of
from mesh_pilot.envoy.tls.upstream import ProxyCertificateFiles
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import NO_POLICY, covers_many, destination_rule_ref, passes_through, subset_names
from mesh_pilot.mesh.identities import identities
from mesh_pilot.mesh.mesh_defaults import ClusterDefaults, cluster_defaults
from mesh_pilot.mesh.names import BLACK_HOLE, PASSTHROUGH, outbound_sni
from mesh_pilot.mesh.peer_authentication import PeerMode, client_mtls
from mesh_pilot.mesh.proxy.proxy_config import METADATA
from mesh_pilot.mesh.proxy.scope import OutboundScope, Plan, PlanShards, ProxyLocality, ResourceQuery
from mesh_pilot.mesh.sidecar_scope import scope_buckets, scope_services
from mesh_pilot.mesh.stat_names import outbound_stat_name
from mesh_pilot.mesh.upstreams import Upstream
from mesh_pilot.mesh.visibility import BY_DNS, Discovery, discovery_of
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.resource import CLUSTER, Resource, make_resource
from mesh_pilot.model.service import Port, Protocol, Service
from mesh_pilot.world.view import View

AUTO_PASSTHROUGH = api.ServerTlsSettingsTlSmode.AUTO_PASSTHROUGH


@derived
def cluster_plans(view: View, scope: OutboundScope, place: ProxyLocality) -> PlanShards:
    """The outbound clusters of a scope in parts: of its services by bucket, then those for everything else."""
    of_services = (service_clusters.query(scope, place, bucket) for bucket in scope_buckets(view, scope))
    return (*of_services, other_clusters.query(scope.type))


@derived
def service_clusters(view: View, scope: OutboundScope, place: ProxyLocality, bucket: int) -> Plan:
    """The outbound clusters for the services in a bucket of a scope."""
    plan: dict[str, ResourceQuery] = {}
    for service in scope_services(view, scope, bucket):
        plan.update(_calls(view, scope, place, service))
    return plan


@derived
def other_clusters(_: View, of: NodeType) -> Plan:
    """The clusters that are for no service."""
    plan: dict[str, ResourceQuery] = {BLACK_HOLE: black_hole.query()}
    if of is NodeType.SIDECAR:
        plan[PASSTHROUGH] = passthrough.query()
    return plan


@derived
def cluster(
    view: View, client: ClusterClient, upstream: Upstream, discovery: Discovery, resolver: DnsClient | None = None
) -> Resource | None:
    """The cluster for a port and subset of a service; ``resolver`` for those whose endpoints are names."""
    service = view.service(upstream.service)
    port = service.port(upstream.port) if service else None
    if service is None or port is None:
        return None
    defaults = cluster_defaults(view)
    shape = _shape(view, client, upstream, discovery, service, port, defaults)
    own = _own(view, upstream, service, port, defaults)
    if resolver is None and (not upstream.rule or covers_many(view, upstream.rule)):
        body = shared_cluster(view, shape).fill(own_contents(own))
    else:
        message = build_cluster(view, shape, own)
        if resolver is not None:
            apply_dns(view, message, upstream, port, resolver, logical=discovery is Discovery.LOGICAL_DNS)
        body = encode(message)
    return make_resource(own.name, CLUSTER, body, _configs(service, upstream))


@derived
def black_hole(view: View) -> Resource | None:
    """Nowhere."""
    message = Cluster(name=BLACK_HOLE, type=Cluster.STATIC)
    message.connect_timeout.CopyFrom(duration(cluster_defaults(view).connect_timeout))
    return resource_of(BLACK_HOLE, message)


@derived
def passthrough(view: View) -> Resource | None:
    """Wherever the client was going."""
    message = Cluster(name=PASSTHROUGH, type=Cluster.ORIGINAL_DST, lb_policy=Cluster.CLUSTER_PROVIDED)
    apply_connection_pool(message, NO_POLICY, cluster_defaults(view), Speaks.AS_CLIENT)
    return resource_of(PASSTHROUGH, message)


def _calls(
    view: View, scope: OutboundScope, place: ProxyLocality, service: Service
) -> Iterator[tuple[str, ResourceQuery]]:
    """The clusters of one service, by name."""
    client = _client(view, scope)
    ref = destination_rule_ref(view, scope.namespace, scope.labels, service.key)
    subsets = ("", *subset_names(view, ref)) if ref else ("",)
    by_sni = not service.external and bool(scope.gateways) and _passes_by_sni(view, scope.gateways)
    for port in service.ports:
        if port.protocol is Protocol.UDP:
            continue
        for subset in subsets:
            upstream = Upstream(service.key, port.number, subset, ref)
            through = bool(ref) and passes_through(view, ref, port.number, subset)
            discovery = discovery_of(scope, service, through)
            resolver = None
            if discovery in BY_DNS:
                wanted = preference_of(view, ref, port.number, subset, place)
                resolver = DnsClient(wanted, scope.ipv4)
            yield upstream.name, cluster.query(client, upstream, discovery, resolver)
            if by_sni:
                named = attrs.evolve(upstream, by_sni=True)
                yield named.name, cluster.query(client, named, discovery, resolver)


@derived
def _client(_: View, scope: OutboundScope) -> ClusterClient:
    chain, key = scope.meta("TLS_CLIENT_CERT_CHAIN"), scope.meta("TLS_CLIENT_KEY")
    files = ProxyCertificateFiles(chain, key, scope.meta("TLS_CLIENT_ROOT_CERT")) if chain and key else None
    certified = scope.certified or files is not None
    return ClusterClient(scope.type is NodeType.SIDECAR, files, scope.meta(METADATA), certified)


@derived
def _passes_by_sni(view: View, gateways: tuple[ConfigKey, ...]) -> bool:
    """Whether any server of these Gateways passes connections on by their server name (AUTO_PASSTHROUGH)."""
    configs = (view.config(key) for key in gateways)
    return any(
        server.tls is not None and server.tls.mode == AUTO_PASSTHROUGH
        for config in configs
        if config is not None
        for server in config.spec.servers
    )


def _shape(
    view: View,
    client: ClusterClient,
    upstream: Upstream,
    discovery: Discovery,
    service: Service,
    port: Port,
    defaults: ClusterDefaults,
) -> ClusterTemplate:
    mode = client_mtls(view, service.key, port.name, discovery is Discovery.ORIGINAL_DST)
    return ClusterTemplate(
        client=client,
        rule=upstream.rule,
        port=port.number if upstream.rule else 0,
        subset=upstream.subset if upstream.rule else "",
        protocol=port.protocol,
        discovery=discovery,
        by_sni=upstream.by_sni,
        declared_by_users=service.registry == "External",
        mesh_mtls=defaults.auto_mtls and mode not in (None, PeerMode.DISABLE),
    )


def _own(view: View, upstream: Upstream, service: Service, port: Port, defaults: ClusterDefaults) -> ClusterVars:
    return ClusterVars(
        name=upstream.name,
        stat_name=outbound_stat_name(defaults.outbound_stat_name, service, port, upstream.subset),
        sni=outbound_sni(service.host, port.number, upstream.subset),
        identities=() if upstream.by_sni else identities(view, service.key, port.name),
    )


def _configs(service: Service, upstream: Upstream) -> tuple[ConfigKey, ...]:
    return (service.config, *upstream.rule) if service.config else upstream.rule
