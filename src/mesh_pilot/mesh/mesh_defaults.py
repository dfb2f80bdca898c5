"""The mesh-wide settings that clusters depend on, apart from the rest of the mesh config: an edit of access logs
leaves every cluster alone."""

from __future__ import annotations

from datetime import timedelta

import attrs

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import derived
from mesh_pilot.world.view import View


@attrs.frozen
class ClusterDefaults:
    connect_timeout: timedelta
    tcp_keepalive: api.ConnectionPoolSettingsTcpSettingsTcpKeepalive | None
    h2_upgrade: bool
    """Speak HTTP/2 to every HTTP port unless a rule says otherwise."""
    auto_mtls: bool
    dns_refresh_rate: timedelta
    locality: api.LocalityLoadBalancerSetting | None
    zone_aware: api.ZoneAwareLoadBalancerSetting | None
    tls: mesh_api.MeshConfigTlsConfig | None
    """Versions and ciphers of TLS to others than the mesh's proxies (``meshMTLS`` is for what those accept)."""
    verify_certificates: bool
    """Trust the operating system's roots, rather than everybody, where a rule asks for TLS and names no roots."""
    inbound_stat_name: str
    outbound_stat_name: str
    trust_domain: str
    trust_domain_aliases: tuple[str, ...]


@derived
def cluster_defaults(view: View) -> ClusterDefaults:
    """What of the mesh config clusters depend on."""
    mesh = view.mesh()
    return ClusterDefaults(
        connect_timeout=mesh.connect_timeout or timedelta(seconds=10),
        tcp_keepalive=mesh.tcp_keepalive,
        h2_upgrade=mesh.h2_upgrade_policy == mesh_api.MeshConfigH2UpgradePolicy.UPGRADE,
        auto_mtls=mesh.enable_auto_mtls is not False,
        dns_refresh_rate=mesh.dns_refresh_rate or timedelta(seconds=60),
        locality=mesh.locality_lb_setting,
        zone_aware=mesh.zone_aware_lb_setting,
        tls=mesh.tls_defaults,
        verify_certificates=mesh.verify_certificate_at_client is True,
        inbound_stat_name=mesh.inbound_cluster_stat_name,
        outbound_stat_name=mesh.outbound_cluster_stat_name,
        trust_domain=mesh.trust_domain,
        trust_domain_aliases=tuple(mesh.trust_domain_aliases),
    )
