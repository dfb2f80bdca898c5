"""The fields of Istio's ProxyConfig: how they are written, in YAML and on the wire, and where each has an effect.

A table in place of the generated message, which would cost the agent 8 MB. Source: Istio's ``proxy.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

import attrs


class FieldKind(Enum):
    """The type of a value."""

    STRING = "a text"
    INT = "a whole number"
    WRAPPED_INT = "a whole number, or nothing"
    DOUBLE = "a number"
    BOOL = "true or false"
    WRAPPED_BOOL = "true or false, or nothing"
    DURATION = "a duration"
    TEXTS = "an object of texts"
    OPAQUE = "an object"
    """One that only the control plane reads: not looked into."""


@attrs.frozen
class Listed:
    """A repeated field."""

    kind: FieldKind


@attrs.frozen
class Named:
    """The names of an enumeration, by number."""

    names: tuple[str, ...]


Message: TypeAlias = "Mapping[str, tuple[int, FieldType]]"
FieldType: TypeAlias = "FieldKind | Listed | Named | Message"

_ADDRESS: Message = {"address": (1, FieldKind.STRING)}
_TLS: Message = {
    "mode": (1, Named(("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"))),
    "clientCertificate": (2, FieldKind.STRING),
    "privateKey": (3, FieldKind.STRING),
    "caCertificates": (4, FieldKind.STRING),
    "subjectAltNames": (5, Listed(FieldKind.STRING)),
    "sni": (6, FieldKind.STRING),
    "credentialName": (7, FieldKind.STRING),
    "insecureSkipVerify": (8, FieldKind.WRAPPED_BOOL),
    "caCrl": (9, FieldKind.STRING),
}
_REMOTE: Message = {
    **_ADDRESS,
    "tlsSettings": (2, _TLS),
    "tcpKeepalive": (
        3,
        {"probes": (1, FieldKind.INT), "time": (2, FieldKind.DURATION), "interval": (3, FieldKind.DURATION)},
    ),
}
_TRACING: Message = {
    "zipkin": (1, _ADDRESS),
    "lightstep": (2, {**_ADDRESS, "accessToken": (2, FieldKind.STRING)}),
    "datadog": (3, _ADDRESS),
    "stackdriver": (4, FieldKind.OPAQUE),
    "customTags": (5, FieldKind.OPAQUE),
    "maxPathTagLength": (6, FieldKind.INT),
    "sampling": (7, FieldKind.DOUBLE),
    "tlsSettings": (8, _TLS),
    "openCensusAgent": (9, FieldKind.OPAQUE),
    "enableIstioTags": (10, FieldKind.WRAPPED_BOOL),
}

_UNDERSCORES = ("UNSPECIFIED", "ALLOW", "REJECT_REQUEST", "DROP_HEADER")
_CONNECTIONS: Message = {
    "profile": (1, Named(("SIDECAR", "EDGE"))),
    "listenerPerConnectionBufferLimitBytes": (2, FieldKind.WRAPPED_INT),
    "clusterPerConnectionBufferLimitBytes": (3, FieldKind.WRAPPED_INT),
    "httpIdleTimeout": (4, FieldKind.DURATION),
    "httpMaxConnectionDuration": (5, FieldKind.DURATION),
    "httpDrainTimeout": (6, FieldKind.DURATION),
    "httpRequestTimeout": (7, FieldKind.DURATION),
    "httpRequestHeadersTimeout": (8, FieldKind.DURATION),
    "httpStreamIdleTimeout": (9, FieldKind.DURATION),
    "httpMaxStreamDuration": (10, FieldKind.DURATION),
    "httpMaxConcurrentStreams": (11, FieldKind.WRAPPED_INT),
    "http2InitialStreamWindowSize": (12, FieldKind.WRAPPED_INT),
    "http2InitialConnectionWindowSize": (13, FieldKind.WRAPPED_INT),
    "httpHeadersWithUnderscoresAction": (
        14,
        Named(
            tuple(
                f"HEADERS_WITH_UNDERSCORES_{action}"
                for action in ("UNSPECIFIED", "ALLOW", "REJECT_REQUEST", "DROP_HEADER")
            )
        ),
    ),
    "httpMergeSlashes": (15, FieldKind.WRAPPED_BOOL),
    "httpPathWithEscapedSlashesAction": (
        16,
        Named(
            (
                "PATH_WITH_ESCAPED_SLASHES_UNSPECIFIED",
                "KEEP_UNCHANGED",
                "REJECT_REQUEST",
                "UNESCAPE_AND_REDIRECT",
                "UNESCAPE_AND_FORWARD",
            )
        ),
    ),
    "listenerConnectionLimit": (17, FieldKind.WRAPPED_INT),
    "globalDownstreamConnectionLimit": (18, FieldKind.WRAPPED_INT),
}

PROXY_CONFIG: Message = {
    "configPath": (1, FieldKind.STRING),
    "binaryPath": (2, FieldKind.STRING),
    "serviceCluster": (3, FieldKind.STRING),
    "drainDuration": (4, FieldKind.DURATION),
    "discoveryAddress": (6, FieldKind.STRING),
    "discoveryRefreshDelay": (7, FieldKind.DURATION),
    "zipkinAddress": (8, FieldKind.STRING),
    "statsdUdpAddress": (10, FieldKind.STRING),
    "proxyAdminPort": (11, FieldKind.INT),
    "availabilityZone": (12, FieldKind.STRING),
    "controlPlaneAuthPolicy": (13, Named(("NONE", "MUTUAL_TLS"))),
    "customConfigFile": (14, FieldKind.STRING),
    "statNameLength": (15, FieldKind.INT),
    "concurrency": (16, FieldKind.WRAPPED_INT),
    "proxyBootstrapTemplatePath": (17, FieldKind.STRING),
    "interceptionMode": (18, Named(("REDIRECT", "TPROXY", "NONE"))),
    "tracing": (19, _TRACING),
    "envoyMetricsServiceAddress": (20, FieldKind.STRING),
    "sds": (21, FieldKind.OPAQUE),
    "envoyAccessLogService": (22, _REMOTE),
    "envoyMetricsService": (23, _REMOTE),
    "proxyMetadata": (24, FieldKind.TEXTS),
    "statusPort": (26, FieldKind.INT),
    "extraStatTags": (27, Listed(FieldKind.STRING)),
    "gatewayTopology": (28, FieldKind.OPAQUE),
    "terminationDrainDuration": (29, FieldKind.DURATION),
    "meshId": (30, FieldKind.STRING),
    "readinessProbe": (31, FieldKind.OPAQUE),
    "proxyStatsMatcher": (
        32,
        {
            "inclusionPrefixes": (1, Listed(FieldKind.STRING)),
            "inclusionSuffixes": (2, Listed(FieldKind.STRING)),
            "inclusionRegexps": (3, Listed(FieldKind.STRING)),
        },
    ),
    "holdApplicationUntilProxyStarts": (33, FieldKind.WRAPPED_BOOL),
    "caCertificatesPem": (34, Listed(FieldKind.STRING)),
    "image": (35, FieldKind.OPAQUE),
    "tracingServiceName": (
        36,
        Named(("APP_LABEL_AND_NAMESPACE", "CANONICAL_NAME_ONLY", "CANONICAL_NAME_AND_NAMESPACE")),
    ),
    "runtimeValues": (37, FieldKind.TEXTS),
    "privateKeyProvider": (38, FieldKind.OPAQUE),
    "proxyHeaders": (39, FieldKind.OPAQUE),
    "fileFlushInterval": (40, FieldKind.DURATION),
    "fileFlushMinSizeKb": (41, FieldKind.INT),
    "statsCompression": (42, FieldKind.WRAPPED_BOOL),
    "connectionSettings": (43, _CONNECTIONS),
}
"""The fields by the name in YAML, with their number and type."""

LEGACY: Mapping[str, FieldKind] = {"parentShutdownDuration": FieldKind.DURATION}
"""Fields of older versions that still have an effect: written in YAML, not sent."""


AT_THE_PLANE = ("tracing", "gatewayTopology", "proxyHeaders", "connectionSettings")
"""Fields that the control plane reads in the node's metadata."""


class Place(Enum):
    """Where a field has its effect."""

    BOOTSTRAP = "Envoy's bootstrap"
    ENVOY = "Envoy's flags"
    AGENT = "the agent"
    PLANE = "the control plane, by node metadata `PROXY_CONFIG`"
    NOWHERE = "nowhere"


_METADATA = "metadata of the node"

EFFECTS: Mapping[str, tuple[Place, str]] = {
    "configPath": (Place.NOWHERE, "use `--run-dir`"),
    "binaryPath": (Place.ENVOY, "the Envoy to run, unless `--envoy` is given; only from this machine"),
    "serviceCluster": (Place.BOOTSTRAP, "the node's cluster, unless it is `istio-proxy`"),
    "drainDuration": (Place.ENVOY, "`--drain-time-s`"),
    "discoveryAddress": (Place.AGENT, "the control plane, unless `--pilot` is given; only from this machine"),
    "discoveryRefreshDelay": (Place.NOWHERE, "changes are pushed at once"),
    "zipkinAddress": (Place.BOOTSTRAP, "as `tracing.zipkin.address`, which is newer"),
    "statsdUdpAddress": (Place.BOOTSTRAP, "a sink of statistics; an IP address and a port"),
    "proxyAdminPort": (Place.BOOTSTRAP, "Envoy's admin port, unless `--admin-port` is given; only from this machine"),
    "availabilityZone": (Place.NOWHERE, "use `--locality`"),
    "controlPlaneAuthPolicy": (Place.AGENT, "`NONE` is `--plaintext`; only from this machine"),
    "customConfigFile": (Place.BOOTSTRAP, "as `--custom-bootstrap`; only from this machine"),
    "statNameLength": (Place.NOWHERE, "Envoy has no such limit any more"),
    "concurrency": (Place.ENVOY, "`--concurrency`; 0 or nothing: one thread a CPU, or `ISTIO_CPU_LIMIT`"),
    "proxyBootstrapTemplatePath": (Place.NOWHERE, "use `--custom-bootstrap`"),
    "interceptionMode": (Place.BOOTSTRAP, f"{_METADATA}, unless `--interception` is given; only from this machine"),
    "tracing": (
        Place.BOOTSTRAP,
        "the tracer and cluster of `zipkin` or `datadog`, with `tlsSettings`; a current Envoy has none of the others."
        " The other fields: the control plane, by node metadata `PROXY_CONFIG`",
    ),
    "envoyMetricsServiceAddress": (Place.BOOTSTRAP, "as `envoyMetricsService.address`, which is newer"),
    "sds": (Place.NOWHERE, "certificates are served over SDS, always"),
    "envoyAccessLogService": (Place.BOOTSTRAP, "the cluster `envoy_accesslog_service`, for EnvoyFilters"),
    "envoyMetricsService": (Place.BOOTSTRAP, "a sink of statistics, and its cluster"),
    "proxyMetadata": (
        Place.BOOTSTRAP,
        f"`ISTIO_META_X` is `X` in the {_METADATA}; `METRICS_LOCALHOST_ACCESS_ONLY`: port 15090 on 127.0.0.1;"
        " `EXIT_ON_ZERO_ACTIVE_CONNECTIONS` and `MINIMUM_DRAIN_DURATION`: the drain, unless their flags are given",
    ),
    "statusPort": (Place.AGENT, "`--status-port`, unless that is given; only from this machine"),
    "extraStatTags": (Place.BOOTSTRAP, "tags of statistics"),
    "gatewayTopology": (Place.PLANE, ""),
    "terminationDrainDuration": (Place.AGENT, "how long the drain at the end takes"),
    "meshId": (Place.BOOTSTRAP, f"`MESH_ID` in the {_METADATA}"),
    "readinessProbe": (Place.AGENT, "the probe of the application"),
    "proxyStatsMatcher": (Place.BOOTSTRAP, "statistics besides those that are always there"),
    "holdApplicationUntilProxyStarts": (
        Place.NOWHERE,
        "start the application after the unit of the proxy, which is up when Envoy is ready; in a Pod, the injected"
        " sidecar has it",
    ),
    "caCertificatesPem": (Place.AGENT, "roots besides the mesh's; only from the control plane"),
    "image": (Place.NOWHERE, "`--envoy` names the binary; the image of a Pod is chosen when the sidecar is injected"),
    "tracingServiceName": (Place.BOOTSTRAP, "the node's cluster, made of the labels"),
    "runtimeValues": (Place.BOOTSTRAP, "Envoy's static runtime layer; an empty value removes one of ours"),
    "privateKeyProvider": (Place.NOWHERE, "a stock Envoy has no such provider"),
    "proxyHeaders": (Place.PLANE, ""),
    "fileFlushInterval": (Place.ENVOY, "`--file-flush-interval-msec`"),
    "fileFlushMinSizeKb": (Place.ENVOY, "`--file-flush-min-size-kb`"),
    "statsCompression": (Place.BOOTSTRAP, "compression at the Prometheus port, on by default"),
    "connectionSettings": (
        Place.PLANE,
        "`globalDownstreamConnectionLimit`: the bootstrap's overload manager",
    ),
    "parentShutdownDuration": (Place.ENVOY, "`--parent-shutdown-time-s`; of older versions"),
}
"""The table of ``docs/proxy.md``: where each field has an effect, and which."""
