"""Outbound clusters from byte templates: what many clusters have in common, and the variables of each.

Most clusters of a mesh have an equal ``ClusterTemplate`` and differ only in the strings of their ``ClusterVars``: the
message is built once for a template and filled for each cluster (``core.templates``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3 import health_check_pb2

from mesh_pilot.engine import derived
from mesh_pilot.envoy.clusters.connection_pool import (
    HTTP_OPTIONS,
    UpstreamHttp,
    allow_upgrades,
    apply_connection_pool,
    apply_proxy_settings,
    outbound_http,
    verify_requested_host,
)
from mesh_pilot.envoy.clusters.dns import apply_dynamic_dns
from mesh_pilot.envoy.clusters.load_balancing import apply_load_balancing, apply_outlier_detection, apply_weights
from mesh_pilot.envoy.core.protobuf import ads, encode, uint32
from mesh_pilot.envoy.core.templates import Template, template
from mesh_pilot.envoy.tls.common import host_matcher, san_matchers, server_name
from mesh_pilot.envoy.tls.upstream import (
    ProxyCertificateFiles,
    TlsPeer,
    apply_proxy_protocol,
    apply_tls,
    asks_for_requested_host,
)
from mesh_pilot.mesh.clusters.destination_rules import DestinationRuleRef, client_policy
from mesh_pilot.mesh.clusters.upstreams import Discovery
from mesh_pilot.mesh.settings.mesh_defaults import cluster_defaults
from mesh_pilot.model.service import Protocol, TrafficDistribution
from mesh_pilot.world.view import View

_TYPES = {
    Discovery.EDS: Cluster.EDS,
    Discovery.STRICT_DNS: Cluster.STRICT_DNS,
    Discovery.LOGICAL_DNS: Cluster.LOGICAL_DNS,
    Discovery.ORIGINAL_DST: Cluster.ORIGINAL_DST,
}


@attrs.frozen(cache_hash=True)
class ClusterClient:
    """The parts of a scope that its clusters depend on."""

    sidecar: bool
    files: ProxyCertificateFiles | None = None
    settings: str = ""
    """The ProxyConfig of the node itself (see ``proxy_settings``)."""
    certified: bool = True
    """True if it has a certificate of the mesh."""
    by_agent: bool = False
    """True if it gets that from its agent."""
    system_roots_by_agent: bool = False
    """See ``OutboundScope.system_roots_by_agent``."""
    has_local_cluster: bool = False
    """See ``OutboundScope.has_local_cluster``."""
    certificate: str = ""
    """The credential that it shows where a BackendTLSPolicy says TLS; empty: none."""


@attrs.frozen(cache_hash=True)
class ClusterTemplate:
    """All that clusters filled from one byte template have in common."""

    client: ClusterClient
    rule: DestinationRuleRef
    port: int
    """The rule may have settings for it; 0 without a rule."""
    subset: str
    """Likewise; empty without a rule."""
    protocol: Protocol
    discovery: Discovery
    by_sni: bool
    """True for connections that a gateway forwards by their server name without terminating TLS."""
    declares_identities: bool
    mesh_mtls: bool
    """See ``TlsPeer``."""
    distribution: TrafficDistribution = TrafficDistribution.ANY
    port_override: int = 0
    """The port to connect to at the original destination; 0: the one that the client connected to."""


@attrs.frozen
class ClusterVars:
    """The strings in which a cluster differs from others of its template."""

    name: str
    stat_name: str
    """Empty: its name."""
    sni: str
    """Empty: none."""
    host: str
    """The service's, which may be a wildcard."""
    identities: tuple[str, ...]
    connect_id: str = ""
    """See ``Service.connect_id``. Such clusters are built without a template."""


_WITH_SESSIONS = (
    health_check_pb2.UNKNOWN,
    health_check_pb2.HEALTHY,
    health_check_pb2.DEGRADED,
    health_check_pb2.DRAINING,
)
"""The states of endpoints that sessions stay at: one that drains takes no others."""

_PLACEHOLDERS = ClusterVars("\0name", "\0stat_name", "\0sni", "\0host", ("spiffe://\0identity",))
"""Strings that no cluster has. A SPIFFE identity makes exactly one matcher."""


@derived
def cluster_template(view: View, common: ClusterTemplate) -> Template:
    """The byte template of clusters, with placeholders for their ``ClusterVars``."""
    placeholders = {name: value for name, (value,) in placeholder_values(_PLACEHOLDERS, _VALUES).items()}
    return template(encode(build_cluster(view, common, _PLACEHOLDERS)), placeholders)


def _text(text: str) -> Sequence[bytes]:
    return (text.encode(),) if text else ()


_VALUES: Mapping[str, Callable[[ClusterVars], Sequence[bytes]]] = {
    "name": lambda variables: _text(variables.name),
    "stat_name": lambda variables: _text(variables.stat_name),
    "sni": lambda variables: _text(variables.sni),
    "host": lambda variables: _text(server_name(variables.host)),
    "host_matcher": lambda variables: (encode(host_matcher(variables.host)),),
    "identity": lambda variables: [encode(matcher) for matcher in san_matchers(variables.identities)],
}
"""The values of each placeholder for one cluster."""


def placeholder_values(variables: ClusterVars, names: Iterable[str]) -> Mapping[str, Sequence[bytes]]:
    """The values of a template's placeholders of these names for one cluster."""
    return {name: _VALUES[name](variables) for name in names}


def upstream_http(view: View, common: ClusterTemplate) -> UpstreamHttp:
    """The version of HTTP that a cluster speaks."""
    policy = client_policy(view, common.rule, common.port, common.subset)
    http = policy.connection_pool.http if policy.connection_pool else None
    upgrade = cluster_defaults(view).h2_upgrade
    return outbound_http(common.protocol, http, mesh_upgrade=upgrade, sniff=common.client.sidecar)


def build_cluster(view: View, common: ClusterTemplate, variables: ClusterVars) -> Cluster:
    """A cluster, without the endpoints of DNS clusters."""
    policy = client_policy(view, common.rule, common.port, common.subset)
    defaults = cluster_defaults(view)
    http_version = upstream_http(view, common)
    message = Cluster(name=variables.name, alt_stat_name=variables.stat_name)
    message.common_lb_config.SetInParent()
    if common.discovery is Discovery.DYNAMIC_DNS:
        apply_dynamic_dns(message, defaults)
    else:
        message.type = _TYPES[common.discovery]
        if common.discovery is Discovery.EDS:
            _apply_eds(message)
    apply_connection_pool(message, policy, defaults, http_version)
    apply_proxy_settings(view, message, common.client.settings)
    if http_version is UpstreamHttp.HTTP2 and not common.protocol.is_http2:
        allow_upgrades(message)
    if common.discovery is Discovery.DYNAMIC_DNS and HTTP_OPTIONS in message.typed_extension_protocol_options:
        # Envoy does so by default, but refuses such a cluster if there are HTTP options that do not say it.
        verify_requested_host(message)
    apply_outlier_detection(message, policy.outlier_detection)
    apply_load_balancing(
        message,
        policy.load_balancer,
        defaults,
        common.distribution,
        has_local_cluster=common.client.has_local_cluster,
    )
    if policy.session is not None:
        message.common_lb_config.override_host_status.statuses.extend(_WITH_SESSIONS)
    if policy.weights is not None:
        apply_weights(
            message,
            policy.weights,
            by_locality=message.common_lb_config.HasField("locality_weighted_lb_config"),
        )
    if common.port_override:
        message.original_dst_lb_config.upstream_port_override.CopyFrom(uint32(common.port_override))
    if not common.by_sni and common.protocol is not Protocol.UDP:
        peer = TlsPeer(
            identities=variables.identities,
            sni=variables.sni,
            http2=http_version is UpstreamHttp.HTTP2,
            declares_identities=common.declares_identities,
            mesh_mtls=common.mesh_mtls and common.client.certified,
            host=variables.host,
            has_requests=common.protocol.is_http or common.protocol is Protocol.AUTO,
            by_agent=common.client.by_agent,
            system_roots_by_agent=common.client.system_roots_by_agent,
            connect_id=variables.connect_id,
            certificate=common.client.certificate,
        )
        apply_tls(message, policy.tls, peer, defaults, common.client.files)
        apply_proxy_protocol(message, policy.proxy_protocol)
        if policy.tls is not None and asks_for_requested_host(policy.tls):
            unnamed = not policy.tls.subject_alt_names and not policy.tls.insecure_skip_verify
            verify_requested_host(message, verify=unnamed)
    return message


def _apply_eds(message: Cluster) -> None:
    message.eds_cluster_config.service_name = message.name
    message.eds_cluster_config.eds_config.CopyFrom(ads())
