"""Outbound clusters from byte templates: what many clusters have in common, and the variables of each.

Most clusters of a mesh have an equal ``ClusterTemplate`` and differ only in the strings of their ``ClusterVars``: the
message is built once for a template and filled for each cluster (``core.templates``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.envoy.clusters.connection_pool import (
    UpstreamHttp,
    apply_connection_pool,
    apply_proxy_settings,
    outbound_http,
    verify_requested_host,
)
from mesh_pilot.envoy.clusters.dns import apply_dynamic_dns
from mesh_pilot.envoy.clusters.load_balancing import apply_load_balancing, apply_outlier_detection
from mesh_pilot.envoy.core.protobuf import ads, encode, uint32
from mesh_pilot.envoy.core.templates import Template, template
from mesh_pilot.envoy.tls.common import san_matchers
from mesh_pilot.envoy.tls.upstream import ProxyCertificateFiles, TlsPeer, apply_proxy_protocol, apply_tls
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import DestinationRuleRef, client_policy
from mesh_pilot.mesh.mesh_defaults import cluster_defaults
from mesh_pilot.mesh.upstreams import Discovery
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
    """For connections that a gateway forwards by their server name without terminating TLS."""
    declared_by_users: bool
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
    identities: tuple[str, ...]


_PLACEHOLDERS = ClusterVars("\0name", "\0stat_name", "\0sni", ("spiffe://\0identity",))
"""Strings that no cluster has. A SPIFFE identity makes exactly one matcher."""


@derived
def cluster_template(view: View, common: ClusterTemplate) -> Template:
    """The byte template of clusters, with placeholders for their ``ClusterVars``."""
    placeholders = {name: value for name, (value,) in placeholder_values(_PLACEHOLDERS).items()}
    return template(encode(build_cluster(view, common, _PLACEHOLDERS)), placeholders)


def placeholder_values(variables: ClusterVars) -> Mapping[str, Sequence[bytes]]:
    """The values of a template's placeholders for one cluster."""
    return {
        "name": (variables.name.encode(),),
        "stat_name": (variables.stat_name.encode(),) if variables.stat_name else (),
        "sni": (variables.sni.encode(),) if variables.sni else (),
        "identity": [encode(matcher) for matcher in san_matchers(variables.identities)],
    }


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
    if common.discovery is Discovery.DYNAMIC_DNS:
        verify_requested_host(message)
    apply_outlier_detection(message, policy.outlier_detection)
    apply_load_balancing(message, policy.load_balancer, defaults, common.distribution)
    if common.port_override:
        message.original_dst_lb_config.upstream_port_override.CopyFrom(uint32(common.port_override))
    if not common.by_sni:
        peer = TlsPeer(
            identities=variables.identities,
            sni=variables.sni,
            http2=http_version is UpstreamHttp.HTTP2,
            declared_by_users=common.declared_by_users,
            mesh_mtls=common.mesh_mtls and common.client.certified,
            by_agent=common.client.by_agent,
        )
        apply_tls(message, policy.tls, peer, defaults, common.client.files)
        apply_proxy_protocol(message, policy.proxy_protocol)
    return message


def _apply_eds(message: Cluster) -> None:
    message.eds_cluster_config.service_name = message.name
    message.eds_cluster_config.eds_config.CopyFrom(ads())
