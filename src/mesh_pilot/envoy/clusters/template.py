"""Templates of outbound clusters, and the variables with which each cluster fills its template.

Most clusters of a mesh share one ``ClusterTemplate`` and differ in their ``ClusterVars``, which are texts: the message
is built once for a template and filled for each cluster (``core.templates``). A template of only one service is not
shared: its cluster is built directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.envoy.clusters.connection_pool import Speaks, apply_connection_pool, apply_proxy_settings, outbound_http
from mesh_pilot.envoy.clusters.dns import apply_dynamic_dns
from mesh_pilot.envoy.clusters.load_balancing import apply_load_balancing, apply_outlier_detection
from mesh_pilot.envoy.core.protobuf import ads, encode
from mesh_pilot.envoy.core.templates import Template, template
from mesh_pilot.envoy.tls.common import san_matchers
from mesh_pilot.envoy.tls.upstream import ProxyCertificateFiles, TlsPeer, apply_proxy_protocol, apply_tls
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import DestinationRuleRef, client_policy
from mesh_pilot.mesh.mesh_defaults import cluster_defaults
from mesh_pilot.mesh.visibility import Discovery
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

_TYPES = {
    Discovery.EDS: Cluster.EDS,
    Discovery.STRICT_DNS: Cluster.STRICT_DNS,
    Discovery.LOGICAL_DNS: Cluster.LOGICAL_DNS,
    Discovery.ORIGINAL_DST: Cluster.ORIGINAL_DST,
}


@attrs.frozen(cache_hash=True)
class ClusterClient:
    """What of a scope its clusters depend on."""

    sidecar: bool
    files: ProxyCertificateFiles | None = None
    settings: str = ""
    """What it says of its own settings (see ``proxy_settings``)."""
    certified: bool = True
    """Whether it has a certificate of the mesh to show."""


@attrs.frozen(cache_hash=True)
class ClusterTemplate:
    """What clusters have in common."""

    client: ClusterClient
    rule: DestinationRuleRef
    port: int
    """By which the rule may have settings; 0 without a rule."""
    subset: str
    """The same; empty without a rule."""
    protocol: Protocol
    discovery: Discovery
    by_sni: bool
    """For connections that a gateway passes on by their server name, untouched."""
    declared_by_users: bool
    mesh_mtls: bool
    """Whether the other side may be expected to take mesh mTLS (see ``TlsPeer``)."""


@attrs.frozen
class ClusterVars:
    """What a cluster has of its own."""

    name: str
    stat_name: str
    """Empty: its name."""
    sni: str
    identities: tuple[str, ...]


_MARKS = ClusterVars("\0name", "\0stat_name", "\0sni", ("spiffe://\0identity",))
"""Texts that no cluster has; the identity is of a kind that makes one matcher."""


@derived
def shared_cluster(view: View, shape: ClusterTemplate) -> Template:
    """The clusters of a shape, with blanks for what each has of its own: see ``own_contents``."""
    marks = {name: content for name, (content,) in own_contents(_MARKS).items()}
    return template(encode(build_cluster(view, shape, _MARKS)), marks)


def own_contents(own: ClusterVars) -> Mapping[str, Sequence[bytes]]:
    """What a cluster's own part puts into the blanks of its shape."""
    return {
        "name": (own.name.encode(),),
        "stat_name": (own.stat_name.encode(),) if own.stat_name else (),
        "sni": (own.sni.encode(),),
        "identity": [encode(matcher) for matcher in san_matchers(own.identities)],
    }


def build_cluster(view: View, shape: ClusterTemplate, own: ClusterVars) -> Cluster:
    """A cluster, but for the endpoints of those that are found by DNS."""
    policy = client_policy(view, shape.rule, shape.port, shape.subset)
    defaults = cluster_defaults(view)
    http = policy.connection_pool.http if policy.connection_pool else None
    speaks = outbound_http(shape.protocol, http, mesh_upgrade=defaults.h2_upgrade, sniff=shape.client.sidecar)
    message = Cluster(name=own.name, alt_stat_name=own.stat_name)
    if shape.discovery is Discovery.DYNAMIC_DNS:
        apply_dynamic_dns(message, defaults)
    else:
        message.type = _TYPES[shape.discovery]
        if shape.discovery is Discovery.EDS:
            _apply_eds(message)
    apply_connection_pool(message, policy, defaults, speaks)
    apply_proxy_settings(view, message, shape.client.settings)
    apply_outlier_detection(message, policy.outlier_detection)
    apply_load_balancing(message, policy.load_balancer, defaults)
    if not shape.by_sni:
        peer = TlsPeer(
            identities=own.identities,
            sni=own.sni,
            http2=speaks is Speaks.HTTP2,
            declared_by_users=shape.declared_by_users,
            mesh_mtls=shape.mesh_mtls and shape.client.certified,
        )
        apply_tls(message, policy.tls, peer, defaults, shape.client.files)
        apply_proxy_protocol(message, policy.proxy_protocol)
    return message


def _apply_eds(message: Cluster) -> None:
    message.eds_cluster_config.service_name = message.name
    message.eds_cluster_config.eds_config.CopyFrom(ads())
