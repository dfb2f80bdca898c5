"""Fields that Istio has deprecated, and what to write instead; using one is a warning, not an error."""

from __future__ import annotations

from collections.abc import Mapping

import betterproto2

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh
from mesh_pilot.api.istio.networking import v1alpha3 as networking

_NO_EFFECT = "it has no effect"

DEPRECATED: Mapping[type[betterproto2.Message], Mapping[str, str]] = {
    networking.HttpRoute: {"mirror_percent": "use mirrorPercentage"},
    networking.CorsPolicy: {"allow_origin": "use allowOrigins"},
    networking.HttpFaultInjectionDelay: {"percent": "use percentage"},
    networking.LoadBalancerSettingsConsistentHashLb: {"minimum_ring_size": "use ringHash.minimumRingSize"},
    networking.OutlierDetection: {
        "consecutive_errors": f"{_NO_EFFECT}; use consecutiveGatewayErrors or consecutive5xxErrors"
    },
    networking.Port: {"target_port": _NO_EFFECT},
    networking.SidecarPort: {"target_port": _NO_EFFECT},
    mesh.ProxyConfig: {
        "discovery_refresh_delay": _NO_EFFECT,
        "zipkin_address": "use tracing.zipkin.address",
        "envoy_metrics_service_address": "use envoyMetricsService",
        "availability_zone": "the proxy's locality comes from its node",
        "sds": _NO_EFFECT,
    },
    mesh.MeshConfig: {
        "certificates": _NO_EFFECT,
        "verify_certificate_at_client": "set caCertificates or subjectAltNames in DestinationRules",
    },
    mesh.MeshConfigExtensionProvider: {
        "lightstep": "use opentelemetry",
        "opencensus": "use opentelemetry",
    },
    mesh.MeshConfigExtensionProviderEnvoyExternalAuthorizationHttpProvider: {
        "include_headers_in_check": "use includeRequestHeadersInCheck",
    },
    mesh.MeshConfigExtensionProviderStackdriverProvider: dict.fromkeys(
        ("debug", "max_number_of_attributes", "max_number_of_annotations", "max_number_of_message_events"), _NO_EFFECT
    ),
}
"""By message, then by proto name: what to do instead."""
