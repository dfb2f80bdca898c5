"""Types of Kuma's resources: what is taken, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping

TAKEN_TYPES: Mapping[str, str] = {
    "Mesh": "a namespace, with a PeerAuthentication",
    "Dataplane": "a WorkloadEntry, and a ServiceEntry for each service",
    "ExternalService": "a ServiceEntry, and for TLS a DestinationRule",
    "MeshExternalService": "a ServiceEntry, and for TLS a DestinationRule",
    "MeshService": "a ServiceEntry that selects WorkloadEntries",
    "TrafficRoute": "a VirtualService, and subsets of a DestinationRule",
    "MeshHTTPRoute": "a VirtualService, and subsets of a DestinationRule",
    "MeshTCPRoute": "a VirtualService, and subsets of a DestinationRule",
    "TrafficPermission": "AuthorizationPolicies",
    "MeshTrafficPermission": "AuthorizationPolicies",
    "Timeout": "connectionPool of a DestinationRule, timeout of a VirtualService",
    "MeshTimeout": "connectionPool of a DestinationRule, timeout of a VirtualService",
    "Retry": "retries of a VirtualService",
    "MeshRetry": "retries of a VirtualService",
    "CircuitBreaker": "outlierDetection and connectionPool of a DestinationRule",
    "MeshCircuitBreaker": "outlierDetection and connectionPool of a DestinationRule",
    "MeshLoadBalancingStrategy": "loadBalancer of a DestinationRule",
    "FaultInjection": "fault of a VirtualService",
    "MeshFaultInjection": "fault of a VirtualService",
    "HealthCheck": "a HealthCheck",
    "MeshHealthCheck": "a HealthCheck",
    "RateLimit": "a LocalRateLimit",
    "MeshRateLimit": "a LocalRateLimit",
}
"""The types that are taken, each with what it becomes."""

_TELEMETRY = ("telemetry is said by Istio's own kinds", "write a Telemetry, and extensionProviders in mesh.yaml")
_GATEWAY = ("a gateway of Kuma's", "run mesh-pilot proxy router, and write a Gateway and VirtualServices")
_ZONES = ("zones are networks here", "write networks.yaml, and see docs/clusters.md")
_PATCH = ("a patch of Envoy's configuration", "write an EnvoyFilter")
_SECRET = ("a secret", "put credentials into a folder of --secrets-dir")
_STATUS = ("what Kuma observed", "")
_HOSTS = ("names of services follow a template", "hosts are NAME.mesh; name others in ServiceEntries")
_SYSTEM = ("a setting of Kuma's control plane", "")

LEFT_TYPES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("MeshAccessLog", "MeshTrace", "MeshMetric", "TrafficLog", "TrafficTrace"), _TELEMETRY),
    "MeshOpenTelemetryBackend": _TELEMETRY,
    **dict.fromkeys(("MeshGateway", "MeshGatewayRoute", "MeshGatewayInstance", "MeshGatewayConfig"), _GATEWAY),
    **dict.fromkeys(("Zone", "ZoneIngress", "ZoneEgress", "MeshZoneAddress"), _ZONES),
    **dict.fromkeys(("ProxyTemplate", "MeshProxyPatch", "ContainerPatch"), _PATCH),
    **dict.fromkeys(("Secret", "GlobalSecret"), _SECRET),
    **dict.fromkeys(("HostnameGenerator", "VirtualOutbound"), _HOSTS),
    "MeshMultiZoneService": ("services of several zones", "a ServiceEntry may have endpoints of several networks"),
    "MeshPassthrough": ("hosts that nobody declared", "write ServiceEntries, or outboundTrafficPolicy in mesh.yaml"),
    "MeshTLS": ("versions and ciphers are of the whole mesh", "set meshMTLS in mesh.yaml"),
    "MeshOPA": ("an agent beside the proxy", "write an AuthorizationPolicy with action CUSTOM"),
    "OPAPolicy": ("an agent beside the proxy", "write an AuthorizationPolicy with action CUSTOM"),
    "MeshIdentity": ("identities are of mesh-pilot's own CA", "see docs/security.md"),
    "MeshTrust": ("identities are of mesh-pilot's own CA", "see docs/federation.md"),
    "MeshGlobalRateLimit": ("a service that counts for all proxies", "write a LocalRateLimit, or an EnvoyFilter"),
    "AccessRole": _SYSTEM,
    "AccessRoleBinding": _SYSTEM,
    "AccessAudit": _SYSTEM,
    "Config": _SYSTEM,
    "Workload": _STATUS,
    **dict.fromkeys(
        (
            "DataplaneInsight",
            "DataplaneOverview",
            "MeshInsight",
            "ServiceInsight",
            "ZoneInsight",
            "ZoneIngressInsight",
            "ZoneEgressInsight",
            "ZoneOverview",
            "ZoneIngressOverview",
            "ZoneEgressOverview",
        ),
        _STATUS,
    ),
}
"""Other types, each with the reason and what to do."""

NEWER: Mapping[str, str] = {
    "TrafficRoute": "MeshHTTPRoute",
    "TrafficPermission": "MeshTrafficPermission",
    "Timeout": "MeshTimeout",
    "Retry": "MeshRetry",
    "CircuitBreaker": "MeshCircuitBreaker",
    "FaultInjection": "MeshFaultInjection",
    "HealthCheck": "MeshHealthCheck",
    "RateLimit": "MeshRateLimit",
}
"""Types of the old form, each with the type that takes its place where a mesh has one."""
