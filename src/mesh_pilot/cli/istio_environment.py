"""Environment variables and flags of istiod: which are honoured, and what replaces the others.

``PILOT_*`` and ``ISTIOD_*`` are those of Istio 1.0 to 1.30, as ``pilot-discovery help`` lists them; of istiod's other
variables the table has those that are about the same matters as our flags. A flag of ours, or its ``MESH_PILOT_*``
variable, wins over a variable of Istio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import attrs
import click

PREFIXES = ("PILOT_", "ISTIOD_")


@attrs.frozen
class Honoured:
    """A variable that sets the default of a flag."""

    flag: str
    unless_zero: bool = False
    """0 means in Istio that the default counts."""

    @property
    def setting(self) -> str:
        """The name under which the command has the value."""
        return self.flag.removeprefix("--").replace("-", "_")


HONOURED: Mapping[str, Honoured] = {
    "CLUSTER_ID": Honoured("--cluster-id"),
    "DEFAULT_WORKLOAD_CERT_TTL": Honoured("--workload-cert-ttl"),
    "PILOT_MULTICLUSTER_KUBECONFIG_PATH": Honoured("--clusters-dir"),
    "PILOT_REMOTE_CLUSTER_TIMEOUT": Honoured("--cluster-timeout"),
    "ISTIO_GPRC_MAXRECVMSGSIZE": Honoured("--max-request-bytes"),
    "ISTIO_GPRC_MAXSTREAMS": Honoured("--max-concurrent-streams"),
    "MAX_WORKLOAD_CERT_TTL": Honoured("--max-workload-cert-ttl"),
    "PILOT_DEBOUNCE_AFTER": Honoured("--debounce-after"),
    "PILOT_DEBOUNCE_MAX": Honoured("--debounce-max"),
    "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD": Honoured("--auto-register-grace"),
    "PILOT_ANALYSIS_INTERVAL": Honoured("--status-interval"),
    "PILOT_ENABLE_ANALYSIS": Honoured("--status-messages"),
    "PILOT_ENABLE_GATEWAY_API_STATUS": Honoured("--status-conditions"),
    "PILOT_ENABLE_STATUS": Honoured("--status-distribution"),
    "PILOT_STATUS_QPS": Honoured("--status-qps"),
    "REVISION": Honoured("--revision"),
    "SHARED_MESH_CONFIG": Honoured("--shared-mesh-config"),
    "PILOT_MAX_REQUESTS_PER_SECOND": Honoured("--max-requests-per-second", unless_zero=True),
}

_LIVES = ("DEFAULT_WORKLOAD_CERT_TTL", "MAX_WORKLOAD_CERT_TTL")
_LIFE, _LONGEST = (HONOURED[name].setting for name in _LIVES)

_TAINTS = "taints of Nodes are left to the installer of the CNI plugin: none is taken away here"
_GATEWAY_API = "the Gateway API is always read, and nothing is deployed for a Gateway: label routers with its name"
_GATEWAY_CLASSES = (
    "the controller is istio.io/gateway-controller; its class istio needs no object, and a GatewayClass adds others"
)
_UNREADY = "Pods that are not ready are sent where trafficDistribution needs them; for Consul, use --consul-critical"
_AMBIENT = "ambient mode is absent"
_STATUS = "status is written by four tasks, once a second for an object that changes: see --status-qps"
_CACHE = "what was generated is remembered for as long as a proxy uses it; there is no cache to size or switch off"
_PUSHES = (
    "a push goes to each proxy in a task of its own, and what changes meanwhile is merged: nothing has to be limited"
)
_TELEMETRY = "the filters and metadata of Istio's build of Envoy are not sent"
_PROTOCOLS = "such a port is plain TCP; use an EnvoyFilter for the filter"
_SNIFFING = "protocols are detected where a port declares none; name the port, or set appProtocol"
_AGENT = "it is a variable of the agent or the bootstrap; see docs/envoy-bootstrap.md"
_ALWAYS = "this is always so"
_NEVER = "this is never so"
_CALLERS = "whose tokens are believed is not widened by the environment: give {}"
_SIGNER = "certificates are signed by the CA in --ca-dir, or by Vault (--vault-addr)"
_GONE = "recent versions of Istio do not have it, and neither has mesh-pilot"

ANSWERED: Mapping[str, str] = {
    "TRUSTED_GATEWAY_CIDR": "whom the control plane believes is not widened by the environment: give"
    " --trusted-gateway-cidrs",
    "PILOT_PUSH_THROTTLE": _PUSHES,
    "PILOT_PUSH_THROTTLE_COUNT": _PUSHES,
    "PILOT_PUSH_BURST": _PUSHES,
    "PILOT_ENABLE_FLOW_CONTROL": "a proxy has one unanswered response of a type, always",
    "PILOT_FLOW_CONTROL_TIMEOUT": "a proxy has one unanswered response of a type, however long it takes",
    "PILOT_XDS_SEND_TIMEOUT": "a proxy that does not read delays nobody; it is closed when it does not answer a PING",
    "PILOT_ENABLE_EDS_DEBOUNCE": "changes of endpoints only are never delayed; those in one batch with others are",
    "PILOT_SCOPE_PUSHES": "a proxy is sent what has changed for it, always",
    "PILOT_PARTIAL_FULL_PUSHES": "a proxy is sent what has changed for it, always",
    "PILOT_DISABLE_EDS_ISOLATION": "a proxy is sent what has changed for it, always",
    "PILOT_XDS_CACHE_SIZE": _CACHE,
    "PILOT_XDS_CACHE_STATS": "metrics xds_cache_reads, _evictions and _size are always there",
    "PILOT_XDS_CACHE_INDEX_CLEAR_INTERVAL": _CACHE,
    "PILOT_ENABLE_XDS_CACHE": _CACHE,
    "PILOT_ENABLE_CDS_CACHE": _CACHE,
    "PILOT_ENABLE_RDS_CACHE": _CACHE,
    "PILOT_CACHE_SQUASH": _CACHE,
    "PILOT_ENABLE_CDS_PRECOMPUTATION": _CACHE,
    "PILOT_DISABLE_XDS_MARSHALING_TO_ANY": _CACHE,
    "PILOT_CONVERT_SIDECAR_SCOPE_CONCURRENCY": "what a Sidecar selects is computed when a proxy needs it",
    "PILOT_UNIFIED_SIDECAR_SCOPE": "what a Sidecar selects is computed when a proxy needs it",
    "PILOT_ALLOW_CONCURRENT": "one task changes the configuration, always",
    "PILOT_HTTP10": "set HTTP10 in the metadata of a node (mesh-pilot envoy-bootstrap --metadata HTTP10=1)",
    "PILOT_TRACE_SAMPLING": "set defaultConfig.tracing.sampling in the MeshConfig, or a Telemetry",
    "PILOT_SPAWN_UPSTREAM_SPAN_FOR_GATEWAY": _ALWAYS,
    "PILOT_ENABLE_ISTIO_TAGS": "set enableIstioTags in defaultConfig.tracing or a Telemetry",
    "PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES": _ALWAYS,
    "PILOT_USE_ENDPOINT_SLICE": "EndpointSlices are read, and Endpoints from a server that has no slices",
    "PILOT_SEND_UNHEALTHY_ENDPOINTS": _UNREADY,
    "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS": _UNREADY,
    "ENABLE_LEADER_ELECTION": "use --leader-election",
    "ENABLE_AUTO_SNI": "this is always so; set sni in tls of a DestinationRule for another name",
    "VERIFY_CERTIFICATE_AT_CLIENT": "this is always so; set insecureSkipVerify in tls of a DestinationRule",
    "JWT_RULE": _CALLERS.format("--jwt-rules"),
    "TOKEN_AUDIENCES": _CALLERS.format("--kubernetes-token-audience, or audiences in --jwt-rules"),
    "ROOT_CA_DIR": "use --ca-dir",
    **dict.fromkeys(("CERT_SIGNER_DOMAIN", "EXTERNAL_CA", "K8S_SIGNER"), _SIGNER),
    "PILOT_DRAINING_LABEL": "use the registry's health: Consul's maintenance mode",
    "PILOT_ENABLE_CROSS_CLUSTER_WORKLOAD_ENTRY": "WorkloadEntries are those of the cluster that has the configuration",
    "PILOT_ENABLE_REMOTE_CREDENTIALS_CONTROLLER": "credentials are read from the cluster that holds the configuration",
    "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS": (
        "what kubeconfigs may do here is not widened by the environment: give --insecure-kubeconfig-options"
    ),
    "PILOT_ENABLE_WAIT_CACHE_SYNC": "use --sync-timeout: the wait for sources before serving without them",
    "PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION": _ALWAYS,
    "PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS": _ALWAYS,
    "PILOT_ENABLE_XDS_IDENTITY_CHECK": "a proxy that proves an identity is held to it, always",
    "PILOT_SKIP_VALIDATE_TRUST_DOMAIN": "list trustDomainAliases in the MeshConfig",
    "PILOT_CERT_DIR": "use --tls-cert and --tls-key",
    "PILOT_CERT_PROVIDER": "the CA signs the server's certificate, or use --tls-cert and --tls-key",
    "PILOT_CA_CERT_CONFIGMAP": "roots are read from --ca-dir, and given to proxies over SDS",
    "PILOT_CRL_CONFIGMAP": "revocation lists are read from --ca-dir",
    "PILOT_ENABLE_CA_CRL": "revocation lists in --ca-dir always count",
    "PILOT_JWT_ENABLE_REMOTE_JWKS": "the control plane fetches the keys of issuers, always",
    "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL": "keys are fetched again every 20 minutes",
    "PILOT_SCOPE_GATEWAY_TO_NAMESPACE": "a Gateway selects proxies of all namespaces",
    "PILOT_FILTER_GATEWAY_CLUSTER_CONFIG": "use a Sidecar, or --clusters on-demand of mesh-pilot envoy-bootstrap",
    "PILOT_SIDECAR_USE_REMOTE_ADDRESS": "use an EnvoyFilter",
    "PILOT_ENABLE_HEADLESS_SERVICE_POD_LISTENERS": _ALWAYS,
    "PILOT_ENABLE_HEADLESS_FILTER_CHAIN_LISTENER": _NEVER,
    "PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES": _NEVER,
    "PILOT_ENABLE_INBOUND_PASSTHROUGH": _ALWAYS,
    "PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION": _ALWAYS,
    "PILOT_ENABLE_VIRTUAL_SERVICE_DELEGATE": _ALWAYS,
    "PILOT_ENABLE_FALLTHROUGH_ROUTE": _ALWAYS,
    "PILOT_ENABLE_LOCALITY_LOAD_BALANCING": "set localityLbSetting in the MeshConfig or a DestinationRule",
    "PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN": _ALWAYS,
    "PILOT_ALLOW_SIDECAR_SERVICE_INBOUND_LISTENER_MERGE": _NEVER,
    "PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE": _NEVER,
    "PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS": _NEVER,
    "PILOT_ENABLE_LEGACY_AUTO_PASSTHROUGH": _NEVER,
    "PILOT_ENABLE_LEGACY_ISTIO_MUTUAL_CREDENTIAL_NAME": _NEVER,
    "PILOT_ENABLE_DESTINATION_RULE_INHERITANCE": _NEVER,
    "PILOT_ALLOW_METADATA_CERTS_DR_MUTUAL_TLS": _NEVER,
    "PILOT_ENABLE_UNSAFE_REGEX": _NEVER,
    "PILOT_SIDECAR_ENABLE_INBOUND_TLS_V2": "set meshMTLS.minProtocolVersion in the MeshConfig; the least is TLS 1.2",
    "PILOT_ENABLE_PERSISTENT_SESSION_FILTER": "use consistentHash with a cookie in a DestinationRule",
    "PILOT_PERSISTENT_SESSION_LABEL": "use consistentHash with a cookie in a DestinationRule",
    "PILOT_PERSISTENT_SESSION_HEADER_LABEL": "use consistentHash with a header in a DestinationRule",
    "PILOT_ENABLE_QUIC_LISTENERS": "there are no QUIC listeners",
    "PILOT_ENABLE_IP_AUTOALLOCATE": "services without addresses get one for proxies that capture DNS, always",
    "PILOT_IP_AUTOALLOCATE_IPV4_PREFIX": "addresses are from 241.0.0.0/8 and 2001:2::/48",
    "PILOT_IP_AUTOALLOCATE_IPV6_PREFIX": "addresses are from 241.0.0.0/8 and 2001:2::/48",
    "PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS": "Envoy keeps 1024 hosts; use an EnvoyFilter",
    "PILOT_DNS_CARES_UDP_MAX_QUERIES": "use an EnvoyFilter",
    "PILOT_DNS_JITTER_DURATION": "use an EnvoyFilter",
    "PILOT_RESPECT_DNS_TTL": _ALWAYS,
    "ISTIO_DUAL_STACK": "listeners are at addresses of both families for a proxy whose node says both",
    "PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT": "use an EnvoyFilter",
    "PILOT_HTTP_DELAYED_CLOSE_TIMEOUT": "use an EnvoyFilter",
    "PILOT_ENABLE_MONGO_FILTER": "use an EnvoyFilter to remove the filter",
    "PILOT_ENABLE_MYSQL_FILTER": _PROTOCOLS,
    "PILOT_ENABLE_REDIS_FILTER": _PROTOCOLS,
    "PILOT_ENABLE_THRIFT_FILTER": _PROTOCOLS,
    "PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_INBOUND": _SNIFFING,
    "PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_OUTBOUND": _SNIFFING,
    "PILOT_BLOCK_HTTP_ON_443": _SNIFFING,
    "PILOT_INBOUND_PROTOCOL_DETECTION_TIMEOUT": "set protocolDetectionTimeout in the MeshConfig",
    "PILOT_ENABLE_ALPN_FILTER": _TELEMETRY,
    "PILOT_DISABLE_MX_ALPN": _TELEMETRY,
    "PILOT_MX_ADDITIONAL_LABELS": _TELEMETRY,
    "PILOT_ENABLE_METADATA_EXCHANGE": _TELEMETRY,
    "PILOT_ENABLE_TCP_METADATA_EXCHANGE": _TELEMETRY,
    "PILOT_ENABLE_TELEMETRY_LABEL": _TELEMETRY,
    "PILOT_ENDPOINT_TELEMETRY_LABEL": _TELEMETRY,
    "PILOT_ENVOY_FILTER_STATS": "/debug/rejections has the patches that match nothing or cannot be applied",
    "PILOT_STATUS_BURST": _STATUS,
    "PILOT_STATUS_MAX_WORKERS": _STATUS,
    "PILOT_STATUS_UPDATE_INTERVAL": _STATUS,
    "PILOT_ENABLE_CONFIG_DISTRIBUTION_TRACKING": "use --status-distribution, or mesh-pilot proxy-status",
    "PILOT_DISTRIBUTION_HISTORY_RETENTION": "mesh-pilot proxy-status and /debug say what each proxy has accepted",
    "PILOT_ENABLE_CRD_VALIDATION": "each object is checked as it is read, always",
    "PILOT_ENABLE_INCREMENTAL_MCP": "MCP is incremental where the server offers it, always",
    "PILOT_DEBUG_ADSZ_CONFIG": "/debug has the pages",
    "PILOT_DUMP_ALPHA3": "/debug has the pages",
    "PILOT_INITIAL_FETCH_TIMEOUT": _AGENT,
    "PILOT_AGENT_MERGE_ENVOY_STATS": _AGENT,
    "ISTIOD_ADDR": _AGENT,
    "ISTIOD_CUSTOM_HOST": "use --tls-dns-names",
    "ISTIOD_ENABLE_SDS_SERVER": "credentials of gateways are served over SDS, always",
    "PILOT_IGNORE_RESOURCES": "point --config-dir at the objects that are to count",
    "PILOT_INCLUDE_RESOURCES": "point --config-dir at the objects that are to count",
    "PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API": _ALWAYS,
    **dict.fromkeys(
        (
            "PILOT_ENABLED_SERVICE_APIS",
            "PILOT_ENABLE_AGENTGATEWAY",
            "PILOT_ENABLE_ALPHA_GATEWAY_API",
            "PILOT_ENABLE_GATEWAY_API",
            "PILOT_ENABLE_GATEWAY_API_COPY_LABELS_ANNOTATIONS",
            "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER",
            "PILOT_ENABLE_STRICT_GATEWAY_MERGING",
        ),
        _GATEWAY_API,
    ),
    **dict.fromkeys(
        (
            "PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER",
            "PILOT_GATEWAY_API_CONTROLLER_NAME",
            "PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME",
        ),
        _GATEWAY_CLASSES,
    ),
    "PILOT_ENABLE_MCS_SERVICEEXPORT": "ServiceExports are read, none is made: see --cluster-set",
    "PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS": _TAINTS,
    "PILOT_ENABLE_SERVICEENTRY_SELECT_PODS": "a ServiceEntry selects WorkloadEntries; use a Service for Pods",
    "PILOT_LEGACY_INGRESS_BEHAVIOR": _NEVER,
    "PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME": _TAINTS,
    **dict.fromkeys(("PILOT_ENABLE_AMBIENT", "PILOT_ENABLE_AMBIENT_CONTROLLERS", "PILOT_ENABLE_HBONE"), _AMBIENT),
    **dict.fromkeys(
        (
            "PILOT_DISABLE_EMPTY_ROUTE_RESPONSE",
            "PILOT_DISABLE_PARTIAL_ROUTE_RESPONSE",
            "PILOT_ENABLE_LOOP_BLOCKER",
            "PILOT_RESTRICT_POD_UP_TRAFFIC_LOOP",
            "PILOT_USE_TARGET_PORT_FOR_GATEWAY_ROUTES",
        ),
        _GONE,
    ),
}
"""Variables without effect, and why, or what replaces them."""

FLAGS: Mapping[str, str] = {
    "--keepaliveMaxServerConnectionAge": "--max-connection-age",
    "--keepaliveInterval": "",
    "--keepaliveTimeout": "",
    "--grpcAddr": "--grpc-addr",
    "--secureGRPCAddr": "--secure-grpc-addr",
    "--httpAddr": "--http-addr",
    "--httpsAddr": "--https-addr",
    "--monitoringAddr": "--monitoring-addr",
    "--meshConfig": "--mesh-config",
    "--networksConfig": "--networks-config",
    "--configDir": "--config-dir",
    "--consulserverURL": "--consul-server-url",
    "--domain": "--domain",
    "--shutdownDuration": "--shutdown-duration",
    "--tlsCertFile": "--tls-cert",
    "--tlsKeyFile": "--tls-key",
    "--caCertFile": "--tls-ca",
    "--log_output_level": "--log-level",
    "--log_as_json": "--log-format json",
    "--plugins": "",
    "--ctrlz_port": "",
}
"""Flags of istiod (``pilot-discovery discovery``), and ours; empty if nothing is needed in their place."""

_API_RATE = "requests to an API server are not limited; writes of status are: --status-qps"
_LOG_FORM = "log lines go to standard error; --log-format and --log-level say how and which"
_SCOPES = "/scopez on the port of --http-addr has the scopes of the log; mesh-pilot admin log changes them"

ANSWERED_FLAGS: Mapping[str, str] = {
    "--clusterAliases": "a cluster has one id: the key in its remote Secret, or the name of its file in --clusters-dir",
    "--clusterRegistriesNamespace": "remote Secrets are read from --namespace",
    "--consulserverInterval": "changes in Consul are waited for: see --consul-wait",
    "--ctrlz_address": _SCOPES,
    "--kubernetesApiBurst": _API_RATE,
    "--kubernetesApiQPS": _API_RATE,
    "--log_caller": _LOG_FORM,
    "--log_stacktrace_level": _LOG_FORM,
    "--log_target": _LOG_FORM,
    "--profile": "mesh-pilot admin profile profiles a control plane while it runs",
    "--resync": "objects are watched, and listed again when a watch fails",
    "--tls-cipher-suites": "the suites are those of OpenSSL's defaults",
    "--tls-min-version": "the least is TLS 1.2",
    "--trust-domain": "set trustDomain in the MeshConfig",
}
"""Flags of istiod that no flag of ours replaces, and why, or what does."""


def flag_hint(name: str) -> str:
    """The text that helps with a flag of istiod; empty for any other flag."""
    name = name.partition("=")[0]
    if answer := ANSWERED_FLAGS.get(name):
        return f"{name} is a flag of istiod; here it has no counterpart: {answer}"
    if name not in FLAGS:
        return ""
    ours = FLAGS[name]
    return (
        f"{name} is a flag of istiod; here it is {ours}"
        if ours
        else f"{name} is a flag of istiod; it is not needed here"
    )


@attrs.frozen
class Line:
    """A line for the log."""

    event: str
    fields: Mapping[str, object]
    is_warning: bool = False


def take_istio_environment(
    settings: MutableMapping[str, Any],
    environ: Mapping[str, str],
    is_default: Callable[[str], bool],
    read: Callable[[str, str], object],
) -> list[Line]:
    """Put the values of Istio's variables in place of defaults in ``settings``, and give the lines that say so.

    ``is_default`` tells for the name of a setting whether nobody has given it; ``read`` converts a text as its flag
    does, and raises click.BadParameter. An empty variable is as one that is not set. Raises UsageError for lives of
    certificates that contradict each other: neither is a safe choice.
    """
    before = settings.get(_LIFE), settings.get(_LONGEST)
    lines = list(_taken(settings, {name: text for name, text in environ.items() if text}, is_default, read))
    after = life, longest = settings.get(_LIFE), settings.get(_LONGEST)
    if after != before and life is not None and longest is not None and not 0 < life <= longest:
        found = ", ".join(f"{name}={environ[name]}" for name in _LIVES if environ.get(name))
        raise click.UsageError(
            f"{found} in the environment: --workload-cert-ttl ({life:g} s) must be over 0 and at most"
            f" --max-workload-cert-ttl ({longest:g} s): change the variables, or give both flags"
        )
    return lines


def log_lines(lines: Iterable[Line]) -> None:
    """Write the lines to the log."""
    import structlog

    log = structlog.get_logger(scope="bootstrap")
    for line in lines:
        (log.warning if line.is_warning else log.info)(line.event, **line.fields)


def _taken(
    settings: MutableMapping[str, Any],
    environ: Mapping[str, str],
    is_default: Callable[[str], bool],
    read: Callable[[str, str], object],
) -> Iterator[Line]:
    unknown = []
    for name in sorted(environ):
        if (honoured := HONOURED.get(name)) is not None:
            yield _honour(name, environ[name], honoured, settings, is_default, read)
        elif name in ANSWERED:
            yield Line("variable of istio has no effect", {"variable": name, "reason": ANSWERED[name]})
        elif name.startswith(PREFIXES):
            unknown.append(name)
    if unknown:
        yield Line("variables of istio are unknown", {"variables": unknown, "effect": "none"}, is_warning=True)


def _honour(
    name: str,
    text: str,
    honoured: Honoured,
    settings: MutableMapping[str, Any],
    is_default: Callable[[str], bool],
    read: Callable[[str, str], object],
) -> Line:
    fields: dict[str, object] = {"variable": name, "value": text, "flag": honoured.flag}
    if not is_default(honoured.setting):
        return Line("variable of istio has no effect", {**fields, "reason": f"{honoured.flag} is given"})
    try:
        value = read(honoured.setting, text)
    except click.BadParameter as error:
        kept = f"{error.message}; the default of {honoured.flag} stays"
        return Line("variable of istio is refused", {**fields, "reason": kept}, is_warning=True)
    if honoured.unless_zero and not value:
        return Line("variable of istio has no effect", {**fields, "reason": "0 is the default here as well"})
    settings[honoured.setting] = value
    return Line("variable of istio is honoured", fields)
