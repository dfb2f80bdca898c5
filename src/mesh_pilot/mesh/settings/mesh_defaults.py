"""The settings of the mesh config that clusters depend on, so that an edit of other settings changes no cluster."""

from __future__ import annotations

from datetime import timedelta

import attrs

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.world.view import View

DNS_REFRESH_RATE = timedelta(seconds=60)
"""Istio's default."""


@attrs.frozen
class ClusterDefaults:
    connect_timeout: timedelta
    tcp_keepalive: api.ConnectionPoolSettingsTcpSettingsTcpKeepalive | None
    h2_upgrade: bool
    """Use HTTP/2 for every HTTP port, unless a DestinationRule overrides it."""
    auto_mtls: bool
    dns_refresh_rate: timedelta
    locality: api.LocalityLoadBalancerSetting | None
    zone_aware: api.ZoneAwareLoadBalancerSetting | None
    tls: mesh_api.MeshConfigTlsConfig | None
    """Versions and ciphers of TLS with peers outside the mesh (``meshMTLS`` applies to the mesh's proxies)."""
    inbound_stat_name: str
    outbound_stat_name: str
    trust_domain: str
    trust_domain_aliases: tuple[str, ...]


READINESS_AND_METRICS = (15021, 15090)
"""The ports of listeners in the bootstraps of agents, on the wildcard address: Envoy refuses another listener there,
even one that does not bind."""


@derived
def capture_ports(view: View) -> tuple[int, int]:
    """The ports of a sidecar's listeners for captured connections, outbound and inbound: on the wildcard address."""
    mesh = view.mesh()
    return (mesh.proxy_listen_port, mesh.proxy_inbound_listen_port)


@derived
def cluster_defaults(view: View) -> ClusterDefaults:
    """The mesh config's settings for clusters."""
    mesh = view.mesh()
    return ClusterDefaults(
        connect_timeout=mesh.connect_timeout or timedelta(seconds=10),
        tcp_keepalive=mesh.tcp_keepalive,
        h2_upgrade=mesh.h2_upgrade_policy == mesh_api.MeshConfigH2UpgradePolicy.UPGRADE,
        auto_mtls=mesh.enable_auto_mtls is not False,
        dns_refresh_rate=mesh.dns_refresh_rate or DNS_REFRESH_RATE,
        locality=mesh.locality_lb_setting,
        zone_aware=mesh.zone_aware_lb_setting,
        tls=mesh.tls_defaults,
        inbound_stat_name=mesh.inbound_cluster_stat_name,
        outbound_stat_name=mesh.outbound_cluster_stat_name,
        trust_domain=mesh.trust_domain,
        trust_domain_aliases=tuple(mesh.trust_domain_aliases),
    )
