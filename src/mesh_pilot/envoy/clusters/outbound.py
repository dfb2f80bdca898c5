"""Outbound clusters: one for each port and subset of every service that a scope can reach, and two default clusters.

A cluster is keyed by what it depends on (``Upstream``, ``ClusterClient``): scopes with the same rule share it, and a
change of endpoints leaves it alone, except for DNS clusters, which contain their endpoints.

Rules: Istio's DestinationRule and ServiceEntry references. Names are those of Pilot (golden ``app-shop-canary``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import attrs
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3 import config_source_pb2
from envoy.config.endpoint.v3 import endpoint_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.base.protowire import field
from mesh_pilot.engine import derived
from mesh_pilot.envoy.clusters.connection_pool import (
    PASSTHROUGH_POLICY,
    UpstreamHttp,
    apply_connection_pool,
    apply_proxy_settings,
    verify_requested_host,
)
from mesh_pilot.envoy.clusters.dns import DnsClient, apply_dns, apply_dynamic_dns
from mesh_pilot.envoy.clusters.health_checks import apply_health_check
from mesh_pilot.envoy.clusters.template import (
    ClusterClient,
    ClusterTemplate,
    ClusterVars,
    build_cluster,
    cluster_template,
    placeholder_values,
    upstream_http,
)
from mesh_pilot.envoy.core.protobuf import duration, encode, resource_of
from mesh_pilot.envoy.core.upstream_names import METADATA, SERVICE_NAMES, upstream_metadata
from mesh_pilot.envoy.endpoints.viewpoints import preference_of
from mesh_pilot.envoy.tls.upstream import ProxyCertificateFiles, TlsPeer, apply_tls, asks_for_requested_host
from mesh_pilot.istio.rules.tls import MAX_SNI
from mesh_pilot.mesh.clusters.destination_rules import (
    covers_many,
    destination_rule_ref,
    has_policy_tls,
    passes_through,
    subset_names,
)
from mesh_pilot.mesh.clusters.health_checks import check_spec, checked_hosts, health_check_for
from mesh_pilot.mesh.clusters.upstreams import BY_DNS, Discovery, Upstream, accepted_identities, discovery_of
from mesh_pilot.mesh.listeners.datagrams import datagram_clusters
from mesh_pilot.mesh.names.resources import (
    BLACK_HOLE,
    PASSTHROUGH,
    REQUESTED_HOST,
    outbound_sni,
    outbound_stat_name,
    parse_cluster,
    service_name,
)
from mesh_pilot.mesh.policies.peer_authentication import PeerMode, client_mtls
from mesh_pilot.mesh.policies.telemetry import provider_services
from mesh_pilot.mesh.proxy.gateway_selection import backend_certificate
from mesh_pilot.mesh.proxy.metric_source import metrics_anywhere
from mesh_pilot.mesh.proxy.plans import Plan, PlanQuery, PlanShards, ResourceQuery
from mesh_pilot.mesh.proxy.proxy_config import METADATA as PROXY_CONFIG
from mesh_pilot.mesh.proxy.scope import OWN_RESOLVER, OutboundScope, ProxyLocality
from mesh_pilot.mesh.reach.sidecar_scope import scope_services, scope_shards
from mesh_pilot.mesh.reach.unknown_hosts import unknown_host
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.mesh.settings.mesh_defaults import ClusterDefaults, cluster_defaults
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.resource import CLUSTER, Resource, make_resource
from mesh_pilot.model.service import Port, Protocol, Resolution, Service
from mesh_pilot.world.view import View

_METADATA = Cluster.METADATA_FIELD_NUMBER
CHECKED = (Discovery.EDS, *BY_DNS)
"""How clusters find their endpoints beforehand, so that they can be checked."""

AUTO_PASSTHROUGH = api.ServerTlsSettingsTlSmode.AUTO_PASSTHROUGH


@derived
def cluster_plans(view: View, scope: OutboundScope, locality: ProxyLocality) -> PlanShards:
    """The outbound clusters of a scope: a shard for each shard of its services, then the clusters of no service."""
    of_services = (service_clusters.query(scope, locality, shard) for shard in scope_shards(view, scope))
    of_datagrams = (datagram_upstreams.query(scope, locality),) if datagram_clusters(view, scope) else ()
    return (*of_services, *of_datagrams, clusters_of_no_service(view, scope))


def clusters_of_no_service(view: View, scope: OutboundScope) -> PlanQuery:
    """The query for a scope's clusters of no service."""
    resolves = scope.type is NodeType.SIDECAR and unknown_host(view, scope.sidecar) == REQUESTED_HOST
    settings = scope.meta(PROXY_CONFIG) if scope.type is NodeType.SIDECAR else ""
    return other_clusters.query(scope.type, settings, _client(view, scope) if resolves else None)


@derived
def service_clusters(view: View, scope: OutboundScope, locality: ProxyLocality, shard: int) -> Plan:
    """The outbound clusters of the services in a shard of a scope."""
    plan: dict[str, ResourceQuery] = {}
    checked = checked_hosts(view, shard)
    for service in (*scope_services(view, scope, shard), *provider_services(view, scope, shard)):
        plan.update(_queries(view, scope, locality, service, service.host in checked))
    return plan


@derived
def datagram_upstreams(view: View, scope: OutboundScope, locality: ProxyLocality) -> Plan:
    """The clusters of a router's UDP listeners: those that a route leads to, and no others."""
    plan: dict[str, ResourceQuery] = {}
    for parsed in filter(None, map(parse_cluster, datagram_clusters(view, scope))):
        service = scope_service(view, scope, parsed.host)
        if service is not None:
            ref = destination_rule_ref(view, scope.namespace, scope.labels, service.key)
            upstream = Upstream(service.key, parsed.port, parsed.subset, ref, datagrams=True)
            through = bool(ref) and passes_through(view, ref, parsed.port, parsed.subset)
            discovery = discovery_of(scope, service, through)
            dns_client = _dns_client(view, scope, locality, upstream, discovery)
            plan[upstream.name] = cluster.query(_client(view, scope), upstream, discovery, dns_client)
    return plan


@derived
def other_clusters(_: View, of: NodeType, settings: str, resolving: ClusterClient | None) -> Plan:
    """The clusters that belong to no service.

    ``settings``: the ProxyConfig of the node itself. ``resolving``: the client, if undeclared hosts are resolved for
    it.
    """
    plan: dict[str, ResourceQuery] = {BLACK_HOLE: black_hole.query()}
    if of is NodeType.SIDECAR:
        plan[PASSTHROUGH] = passthrough.query(settings)
    if resolving is not None:
        plan[REQUESTED_HOST] = requested_host.query(resolving)
    return plan


@derived
def cluster(
    view: View,
    client: ClusterClient,
    upstream: Upstream,
    discovery: Discovery,
    dns_client: DnsClient | None = None,
    check: ConfigKey | None = None,
) -> Resource | None:
    """The cluster for a port and subset of a service; ``dns_client`` if Envoy resolves its endpoints by DNS, ``check``
    is its HealthCheck."""
    service = view.service(upstream.service)
    port = _port(service, upstream) if service else None
    if service is None or port is None:
        return None
    defaults = cluster_defaults(view)
    variables = _variables(view, upstream, service, port, defaults)
    identified = service.declared_by_users and bool(variables.identities)
    common = _template(view, client, upstream, discovery, service, port, defaults, identified)
    # The template of a rule for a single service would have no second user: that cluster is built directly.
    is_plain = dns_client is None and check is None and not variables.connect_id
    if is_plain and (not upstream.rule or covers_many(view, upstream.rule)):
        filled = cluster_template(view, common)
        body = filled.fill(placeholder_values(variables, filled.names))
    else:
        message = build_cluster(view, common, variables)
        if dns_client is not None:
            apply_dns(view, message, upstream, port, dns_client, logical=discovery is Discovery.LOGICAL_DNS)
        checked = check_spec(view, check) if check is not None else None
        if checked is not None:
            http2 = upstream_http(view, common) is UpstreamHttp.HTTP2
            apply_health_check(message, checked, service.host, http2=http2)
        body = encode(message)
    if metrics_anywhere(view):
        body += field(_METADATA, upstream_metadata(_service_names(service)))
    configs = (*service.configs, *upstream.rule, *([check] if check is not None else []))
    return make_resource(variables.name, CLUSTER, body, configs)


def _port(service: Service, upstream: Upstream) -> Port | None:
    if not upstream.datagrams:
        return service.port(upstream.port)
    port = service.datagram_port(upstream.port)
    return attrs.evolve(port, protocol=Protocol.UDP) if port is not None else None


def _service_names(service: Service) -> Iterable[tuple[str, str]]:
    values = (service.host, service_name(service), service.namespace)
    return ((name, value) for name, value in zip(SERVICE_NAMES, values, strict=True) if value)


@derived
def black_hole(view: View) -> Resource | None:
    """The cluster without endpoints: connections to it fail."""
    message = Cluster(name=BLACK_HOLE, type=Cluster.STATIC)
    message.connect_timeout.CopyFrom(duration(cluster_defaults(view).connect_timeout))
    return _of_no_service(view, message)


@derived
def passthrough(view: View, settings: str) -> Resource | None:
    """The cluster that forwards to the connection's original destination."""
    message = Cluster(name=PASSTHROUGH, type=Cluster.ORIGINAL_DST, lb_policy=Cluster.CLUSTER_PROVIDED)
    apply_connection_pool(message, PASSTHROUGH_POLICY, cluster_defaults(view), UpstreamHttp.AS_CLIENT)
    apply_proxy_settings(view, message, settings)
    return _of_no_service(view, message)


@derived
def requested_host(view: View, client: ClusterClient) -> Resource | None:
    """The cluster that resolves the host of each request, with the TLS of the mesh's outbound traffic policy."""
    policy = view.mesh().outbound_traffic_policy
    tls = policy.tls if policy is not None else None
    asks = asks_for_requested_host(tls)
    verified = tls is not None and asks and not tls.subject_alt_names and not tls.insecure_skip_verify
    message = Cluster(name=REQUESTED_HOST)
    defaults = cluster_defaults(view)
    apply_dynamic_dns(message, defaults, verified=verified)
    apply_connection_pool(message, PASSTHROUGH_POLICY, defaults, UpstreamHttp.AS_CLIENT)
    apply_proxy_settings(view, message, client.settings)
    if tls is not None:
        peer = TlsPeer(
            identities=(),
            sni="",
            http2=False,
            declares_identities=False,
            mesh_mtls=False,
            by_agent=client.by_agent,
            system_roots_by_agent=client.system_roots_by_agent,
        )
        apply_tls(message, tls, peer, defaults, client.files)
        if asks:
            verify_requested_host(message, verify=verified)
    return _of_no_service(view, message)


def _of_no_service(view: View, message: Cluster) -> Resource:
    if metrics_anywhere(view):
        message.metadata.filter_metadata[METADATA].update({"service_name": message.name})
    return resource_of(message.name, message)


def _queries(
    view: View, scope: OutboundScope, locality: ProxyLocality, service: Service, checked: bool
) -> Iterator[tuple[str, ResourceQuery]]:
    """(cluster name, query) of one service's clusters; ``checked``: there is a HealthCheck for its host."""
    client = _client(view, scope)
    ref = destination_rule_ref(view, scope.namespace, scope.labels, service.key)
    subsets = ("", *subset_names(view, ref)) if ref else ("",)
    by_sni = not service.external and bool(scope.gateways) and _passes_by_sni(view, scope.gateways)
    for port in service.ports:
        if port.protocol is Protocol.UDP:
            continue
        check = health_check_for(view, scope.namespace, service.key, port.number) if checked else None
        for subset in subsets:
            upstream = Upstream(service.key, port.number, subset, ref)
            through = bool(ref) and passes_through(view, ref, port.number, subset)
            discovery = discovery_of(scope, service, through)
            dns_client = _dns_client(view, scope, locality, upstream, discovery)
            own_check = check if discovery in CHECKED else None
            shown = _with_certificate(view, scope, client, upstream)
            yield upstream.name, cluster.query(shown, upstream, discovery, dns_client, own_check)
            if by_sni:
                named = attrs.evolve(upstream, by_sni=True)
                yield named.name, cluster.query(client, named, discovery, dns_client)


def _dns_client(
    view: View, scope: OutboundScope, locality: ProxyLocality, upstream: Upstream, discovery: Discovery
) -> DnsClient | None:
    if discovery not in BY_DNS:
        return None
    wanted = preference_of(view, upstream.rule, upstream.port, upstream.subset, locality)
    return DnsClient(wanted, scope.ipv4, scope.ipv6, scope.is_on(OWN_RESOLVER))


def _with_certificate(view: View, scope: OutboundScope, client: ClusterClient, upstream: Upstream) -> ClusterClient:
    """The client with the certificate that its Gateway shows to this upstream."""
    if not upstream.rule or not scope.gateways:
        return client
    certificate = backend_certificate(view, scope.gateways)
    if not certificate or not has_policy_tls(view, upstream.rule, upstream.port, upstream.subset):
        return client
    return attrs.evolve(client, certificate=certificate)


@derived
def _client(_: View, scope: OutboundScope) -> ClusterClient:
    chain, key = scope.meta("TLS_CLIENT_CERT_CHAIN"), scope.meta("TLS_CLIENT_KEY")
    files = ProxyCertificateFiles(chain, key, scope.meta("TLS_CLIENT_ROOT_CERT")) if chain and key else None
    certified = scope.has_certificate or files is not None
    return ClusterClient(
        scope.type is NodeType.SIDECAR,
        files,
        scope.meta(PROXY_CONFIG),
        certified,
        by_agent=scope.agent_secrets,
        system_roots_by_agent=scope.system_roots_by_agent,
        has_local_cluster=scope.has_local_cluster,
    )


@derived
def _passes_by_sni(view: View, gateways: tuple[ConfigKey, ...]) -> bool:
    """True if any server of these Gateways forwards connections by their server name (AUTO_PASSTHROUGH)."""
    configs = (view.config(key) for key in gateways)
    return any(
        server.tls is not None and server.tls.mode == AUTO_PASSTHROUGH
        for config in configs
        if config is not None
        for server in config.spec.servers
    )


def _template(
    view: View,
    client: ClusterClient,
    upstream: Upstream,
    discovery: Discovery,
    service: Service,
    port: Port,
    defaults: ClusterDefaults,
    identified: bool,
) -> ClusterTemplate:
    mode = client_mtls(view, service.key, port.name, discovery is Discovery.ORIGINAL_DST)
    if service.external and client.files is not None:
        client = attrs.evolve(client, files=None)  # they are for the mesh; others have their own roots
    return ClusterTemplate(
        client=client,
        rule=upstream.rule,
        port=port.number if upstream.rule else 0,
        subset=upstream.subset if upstream.rule else "",
        protocol=port.protocol,
        discovery=discovery,
        by_sni=upstream.by_sni,
        declares_identities=identified,
        mesh_mtls=defaults.auto_mtls and mode not in (None, PeerMode.DISABLE),
        distribution=service.traffic_distribution,
        port_override=port.target_port if _redirects_port(service, discovery) else 0,
    )


def _redirects_port(service: Service, discovery: Discovery) -> bool:
    """True if connections to where the client was going go to the target port there: so with resolution NONE."""
    declared = service.declared_by_users and service.resolution is Resolution.PASSTHROUGH
    return declared and discovery is Discovery.ORIGINAL_DST


def _variables(view: View, upstream: Upstream, service: Service, port: Port, defaults: ClusterDefaults) -> ClusterVars:
    sni = outbound_sni(service.host, port.number, upstream.subset)
    return ClusterVars(
        name=upstream.name,
        stat_name=outbound_stat_name(defaults.outbound_stat_name, service, port, upstream.subset),
        sni=sni if len(sni) <= MAX_SNI else "",
        host=service.host,
        identities=() if upstream.by_sni else accepted_identities(view, service.key, port.name),
        connect_id=service.connect_id,
    )


# -- stand-ins for clusters that a client has and of which only the name is known (decision 011)


INITIAL_FETCH_TIMEOUT_SECONDS = 15
"""The time that Envoy waits for the endpoints of a placeholder. Until then it accepts no clusters, so it must not wait
forever where it refuses the routes that would end the waiting."""


@lru_cache(maxsize=1000)
def placeholder(name: str) -> Resource:
    """A cluster of this name that gets its endpoints over ADS."""
    cluster = cluster_pb2.Cluster(name=name, type=cluster_pb2.Cluster.EDS)
    source = cluster.eds_cluster_config.eds_config
    source.ads.SetInParent()
    source.resource_api_version = config_source_pb2.V3
    source.initial_fetch_timeout.seconds = INITIAL_FETCH_TIMEOUT_SECONDS
    return resource_of(name, cluster)


def no_endpoints(cluster: str) -> Resource:
    """The ClusterLoadAssignment of a cluster that has none."""
    return resource_of(cluster, endpoint_pb2.ClusterLoadAssignment(cluster_name=cluster))
