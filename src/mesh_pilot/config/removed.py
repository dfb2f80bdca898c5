"""Fields that Istio's mesh configuration once had: they are warned of, and the rest is read.

A MeshConfig lives for years, and is dumped with the defaults of the version that it was made for. The versions are
those of Istio's API in which a field was last seen.
"""

from __future__ import annotations

from collections.abc import Mapping

import betterproto2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh
from mesh_pilot.config.shapes import camel

_MIXER = "removed in Istio 1.8 with Mixer"
_POLICY = f"{_MIXER}: use AuthorizationPolicy, with action CUSTOM for a policy service of your own"
_REPORTS = f"{_MIXER}: use Telemetry for access logs and metrics"
_SDS = "removed in Istio 1.8: proxies get certificates over their xDS connection"

_REMOVED: Mapping[type[betterproto2.Message], Mapping[str, str]] = {
    mesh.MeshConfig: {
        "mtls_excluded_services": "removed in Istio 1.0: use PeerAuthentication and DestinationRule",
        "mixer_address": _MIXER,
        "mixer_check_server": _POLICY,
        "disable_policy_checks": _POLICY,
        "policy_check_fail_open": _POLICY,
        "enable_client_side_policy_check": _POLICY,
        "mixer_report_server": _REPORTS,
        "disable_mixer_http_reports": _REPORTS,
        "disable_report_batch": _REPORTS,
        "report_batch_max_entries": _REPORTS,
        "report_batch_max_time": _REPORTS,
        "sidecar_to_telemetry_session_affinity": _REPORTS,
        "sds_uds_path": _SDS,
        "sds_refresh_delay": _SDS,
        "enable_sds_token_mount": _SDS,
        "sds_use_k8s_sa_jwt": _SDS,
        "auth_policy": "removed in Istio 1.9: use PeerAuthentication, and enableAutoMtls",
        "rds_refresh_delay": "removed in Istio 1.9: changes are sent to proxies as they happen",
        "thrift_config": "removed in Istio 1.17 with its Thrift support",
    },
    mesh.ProxyConfig: {
        "connect_timeout": "removed in Istio 1.6: use connectTimeout of the MeshConfig, or DestinationRules",
        "parent_shutdown_duration": "removed in Istio 1.17: use terminationDrainDuration",
    },
    mesh.TracingLightstep: {
        "secure": "removed in Istio 1.6: use tlsSettings of tracing",
        "cacert_path": "removed in Istio 1.6: use tlsSettings of tracing",
    },
}
"""By message, then by proto name: since when, and what took its place."""

REMOVED: Mapping[type[betterproto2.Message], Mapping[str, str]] = {
    message: {name: reason for field, reason in fields.items() for name in (field, camel(field))}
    for message, fields in _REMOVED.items()
}
"""By message, then by every name that the field may be written with."""
