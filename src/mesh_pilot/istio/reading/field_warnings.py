"""Fields whose use is a warning, whatever their value: without effect here, deprecated, or removed from Istio's API.

A stock Envoy can be configured over xDS only as far as xDS goes. Settings of its bootstrap, of Kubernetes or of the
program that starts the proxy have no effect here, and the warning says so. A MeshConfig lives for years and is dumped
with the defaults of the version that wrote it, so removed fields are warnings too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import betterproto2

from mesh_pilot.api.istio.extensions import v1alpha1 as extensions
from mesh_pilot.api.istio.mesh import v1alpha1 as mesh
from mesh_pilot.api.istio.networking import v1alpha3 as networking
from mesh_pilot.api.istio.networking import v1beta1 as networking_v1beta1
from mesh_pilot.api.istio.telemetry import v1alpha1 as telemetry
from mesh_pilot.api.k8s.io.api.networking import v1 as ingress
from mesh_pilot.api.k8s.io.gateway_api import v1 as gateway_api
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, camel_case
from mesh_pilot.model.config import Problem, Severity

NO_EFFECT = "has no effect"
"""First words of the reason of such a warning."""


def use_warnings(message: type[betterproto2.Message], field: FieldDescriptor, path: str) -> Iterator[Problem]:
    """Warnings about the field at `path` because it is set."""
    if (idle := WITHOUT_EFFECT.get(message)) and field.proto_name in idle:
        yield Problem(path, f"{NO_EFFECT}: {idle[field.proto_name]}", Severity.WARNING)
    elif (deprecated := DEPRECATED.get(message)) and field.proto_name in deprecated:
        yield Problem(path, f"is deprecated: {deprecated[field.proto_name]}", Severity.WARNING)


_MACHINE = "it is for each machine to say, in the settings of mesh-pilot proxy there"
_AGENT = "it is for the program that starts the proxy; set it there"
_INJECTED = "only sidecars that a webhook injects follow it"
_LOG_SERVICE = "use an extensionProvider with envoyHttpAls or envoyTcpAls; this one's cluster is in the bootstrap"
_LATER = "this version does not carry it out"
_INTERVAL = "metrics are read from proxies, as often as Prometheus asks"
_SIGNATURES = "signatures of images are not verified, in Istio neither; pin the module with sha256"
_DEPLOYED = "nothing is deployed for a Gateway: its proxies are those that you start"
_SESSIONS = "Istio has none for routes; use consistentHash of a DestinationRule with a cookie or a header"
_NO_TRACES = "no tracer is generated for it, and tracing is off for those who name it; use opentelemetry"
_TRACER = "a current Envoy has no such tracer; use an extensionProvider with opentelemetry"

WITHOUT_EFFECT: Mapping[type[betterproto2.Message], Mapping[str, str]] = {
    mesh.MeshConfig: {
        "hbone_idle_timeout": "ambient mode is absent",
        "service_scope_configs": "ambient mode is absent",
        "enable_prometheus_merge": f"{_AGENT}; {_INJECTED}",
        "enable_envoy_access_log_service": _LOG_SERVICE,
        "ca": "certificates are signed by the control plane itself",
    },
    mesh.ProxyConfig: {
        **dict.fromkeys(
            (
                "binary_path",
                "discovery_address",
                "proxy_admin_port",
                "control_plane_auth_policy",
                "custom_config_file",
                "status_port",
            ),
            _MACHINE,
        ),
        "config_path": "the folders of mesh-pilot proxy are settings of each machine",
        "proxy_bootstrap_template_path": "mesh-pilot proxy merges a custom bootstrap of its machine",
        "stat_name_length": "Envoy has no such limit any more",
        "hold_application_until_proxy_starts": f"the units of each machine say what starts after what; {_INJECTED}",
        "image": f"mesh-pilot proxy --envoy names the binary; {_INJECTED}",
        "interception_mode": "a proxy says its own in node metadata INTERCEPTION_MODE",
        "private_key_provider": "a stock Envoy has no such provider",
    },
    mesh.ProxyConfigProxyHeaders: {"metadata_exchange_headers": "a stock Envoy exchanges no metadata"},
    mesh.ProxyConfigConnectionSettings: {"listener_connection_limit": _LATER},
    mesh.Tracing: {
        "lightstep": _TRACER,
        "stackdriver": _TRACER,
        "open_census_agent": _TRACER,
    },
    mesh.MeshConfigCertificateData: {"cert_signers": "certificates are signed by the control plane itself"},
    mesh.ConfigSource: {"subscribed_resources": "everything that the source has is read"},
    mesh.MeshConfigExtensionProvider: {
        "stackdriver": _TRACER,
        "sds": "secrets come from the control plane alone",
        "lightstep": _NO_TRACES,
        "opencensus": _NO_TRACES,
    },
    mesh.NetworkIstioNetworkGateway: {"locality": "all gateways of a network are used"},
    networking.Server: {"default_endpoint": "requests go where routes say; Istio ignores it too"},
    networking.ServerTlsSettingsTlsCertificate: {"ca_certificates": "use caCertificates of the server's tls"},
    networking.WorkloadGroupObjectMeta: {"annotations": "only the labels are for the group's entries"},
    telemetry.Metrics: {"reporting_interval": _INTERVAL},
    extensions.WasmPlugin: {"verification_key": _SIGNATURES},
    extensions.WasmConfig: {"verification_key": _SIGNATURES},
    networking_v1beta1.ProxyConfig: {"image": f"mesh-pilot proxy --envoy names the binary; {_INJECTED}"},
    gateway_api.ListenerTlsConfig: {"frontend_validation": "it moved to tls.frontend of the Gateway"},
    gateway_api.HttpRouteRule: {"session_persistence": _SESSIONS},
    gateway_api.GrpcRouteRule: {"session_persistence": _SESSIONS},
    gateway_api.BackendTrafficPolicySpec: {"session_persistence": _SESSIONS},
    **{
        route: {"use_default_gateways": "a route is attached to the parents that it names"}
        for route in (
            gateway_api.HttpRouteSpec,
            gateway_api.GrpcRouteSpec,
            gateway_api.TlsRouteSpec,
            gateway_api.TcpRouteSpec,
            gateway_api.UdpRouteSpec,
        )
    },
    gateway_api.GatewaySpec: {"default_scope": "a route is attached to the parents that it names"},
    gateway_api.GatewayClassSpec: {"parameters_ref": _DEPLOYED},
    gateway_api.GatewayInfrastructure: {"labels": _DEPLOYED, "annotations": _DEPLOYED},
    gateway_api.BackendTlsPolicySpec: {"options": "none is known; use a DestinationRule"},
    gateway_api.RequestRate: {"interval": "minRetryRate.count is a number of retries at once"},
    ingress.IngressClassSpec: {"parameters": "settings are those of the mesh config"},
}
"""By message, then by proto name: the reason."""


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
        "verify_certificate_at_client": (
            f"{_NO_EFFECT}: servers are always verified; use insecureSkipVerify in a DestinationRule"
        ),
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
"""By message, then by proto name: the replacement."""


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
    networking.HttpRoute: {"websocket_upgrade": "removed in Istio 1.5: WebSockets pass without it"},
    mesh.TracingLightstep: {
        "secure": "removed in Istio 1.6: use tlsSettings of tracing",
        "cacert_path": "removed in Istio 1.6: use tlsSettings of tracing",
    },
}
"""By message, then by proto name: the version that removed it, and its replacement."""

_ADD = "removed in Istio 1.5; write headers.{}.add"
_REMOVE = "removed in Istio 1.5; write headers.{}.remove"
_HEADERS = {
    "append_request_headers": _ADD.format("request"),
    "append_response_headers": _ADD.format("response"),
    "remove_request_headers": _REMOVE.format("request"),
    "remove_response_headers": _REMOVE.format("response"),
}

_REPLACED: Mapping[type[betterproto2.Message], Mapping[str, str]] = {
    networking.HttpRoute: {**_HEADERS, "append_headers": _ADD.format("request")},
    networking.HttpRouteDestination: _HEADERS,
    networking.HttpFaultInjectionAbort: {"percent": "removed in Istio 1.5; write percentage.value"},
    networking.PortSelector: {"name": "removed in Istio 1.4; write number"},
    networking.TlsMatchAttributes: {"source_subnet": "removed in Istio 1.5; write sourceLabels or sourceNamespace"},
    networking.EnvoyFilter: {
        "filters": "removed in Istio 1.6; write configPatches",
        "workload_labels": "removed in Istio 1.6; write workloadSelector.labels",
    },
}
"""By message, then by proto name: removed fields that had an effect, and what an object must have instead."""


def _by_every_name(
    table: Mapping[type[betterproto2.Message], Mapping[str, str]],
) -> Mapping[type[betterproto2.Message], Mapping[str, str]]:
    """The same by every name that the fields may be written with."""
    return {
        message: {name: reason for field, reason in fields.items() for name in (field, camel_case(field))}
        for message, fields in table.items()
    }


REMOVED = _by_every_name(_REMOVED)
"""Removed fields whose use is a warning: objects that have one are in force."""

REPLACED = _by_every_name(_REPLACED)
"""Removed fields whose use is an error: without what they said, the object would mean something else."""

ONCE_SINGLE: Mapping[tuple[type[betterproto2.Message], str], str] = {
    (mesh.MeshConfigDefaultProviders, "tracing"): "1.11",
}
"""Lists that once were a single text, and the version of Istio that made them lists."""
