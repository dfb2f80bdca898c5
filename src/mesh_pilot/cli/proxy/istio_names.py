"""The environment of Istio's agent: which variables set what, and which have no effect here, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

META, META_JSON = "ISTIO_META_", "ISTIO_METAJSON_"
"""Variables of which node metadata are made: ``ISTIO_META_X`` is ``X``; the others are objects, merged."""

HONOURED: Mapping[str, str] = {
    "CA_ROOT_CA": "tls-ca",
    "ENVOY_PATH": "envoy",
    "ENVOY_PROMETHEUS_PORT": "prometheus-port",
    "ENVOY_STATUS_PORT": "readiness-port",
    "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "exit-on-zero-active-connections",
    "INSTANCE_IP": "ip",
    "ISTIOD_SAN": "tls-server-name",
    "ISTIO_BOOTSTRAP_OVERRIDE": "custom-bootstrap",
    "ISTIO_DELTA_XDS": "delta",
    "ISTIO_DUAL_STACK": "dual-stack",
    "ISTIO_KUBE_APP_PROBERS": "app-probers",
    "ISTIO_META_AUTO_REGISTER_GROUP": "auto-register-group",
    "ISTIO_META_DNS_CAPTURE": "dns",
    "ISTIO_META_INTERCEPTION_MODE": "interception",
    "ISTIO_PROMETHEUS_ANNOTATIONS": "scrape",
    "MINIMUM_DRAIN_DURATION": "minimum-drain",
    "POD_NAME": "name",
    "POD_NAMESPACE": "namespace",
    "SECRET_TTL": "cert-ttl",
    "SERVICE_ACCOUNT": "service-account",
    "XDS_ROOT_CA": "tls-ca",
}
"""Variables, each with the setting that it is. The last one counts where two are the same."""

_PLANE_SIGNS = "the control plane that is connected signs"
_TOKENS = "give --token-file, --consul-login-token-file, or a certificate"
_KEYS = "--key-type says it: P-256, or RSA of 2048 bits"
_RENEWAL = "a certificate is renewed at a random point between half and three quarters of its life"
_WASM = "Envoy fetches no modules through the agent"
_PLATFORM = "no cloud is asked for metadata: use --locality and --metadata"
_ALWAYS = "this is always so"
_NEVER = "this is never so"

ANSWERED: Mapping[str, str] = {
    "CA_ADDR": f"{_PLANE_SIGNS}: --pilot",
    "CA_PROVIDER": _PLANE_SIGNS,
    "CLOUD_PLATFORM": _PLATFORM,
    "COMPLIANCE_POLICY": "the control plane says it: set meshMTLS in the MeshConfig",
    "CREDENTIAL_FETCHER_TYPE": _TOKENS,
    "CREDENTIAL_IDENTITY_PROVIDER": _TOKENS,
    "DISABLE_ENVOY": "Envoy is what this command is for; proxyless applications need none",
    "DNS_FORWARD_PARALLEL": "the agent has its own timeouts and retries",
    "DNS_FORWARD_TIMEOUT": "the agent has its own timeouts and retries",
    "ECC_CURVE": _KEYS,
    "ECC_SIGNATURE_ALGORITHM": _KEYS,
    "ENABLE_ENVOY_CORE_DUMP": _NEVER,
    "ENABLE_PROBE_KEEPALIVE_CONNECTIONS": "each probe has a connection of its own",
    "ENVOY_SECURE_MERGED_METRICS_PORT": "use --status-port, behind a listener of a Sidecar",
    "ENVOY_SECURE_METRICS_PORT": "use --prometheus-port, behind a listener of a Sidecar",
    "ENVOY_SKIP_DEPRECATED_LOGS": "use --envoy-flag --skip-deprecated-logs",
    "FILE_DEBOUNCE_DURATION": "files are read when they change",
    "GRPC_XDS_BOOTSTRAP": "docs/proxyless-grpc.md has the file for proxyless applications",
    "ISTIO_BOOTSTRAP": "--custom-bootstrap is merged over ours",
    "HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED": "use runtimeValues of the ProxyConfig",
    "ISTIO_ENABLE_HTTP2_PROBING": "probes are by HTTP/1.1",
    "ISTIO_ENVOY_ENABLE_CORE_DUMP": _NEVER,
    "ISTIO_META_CERT_SIGNER": "the control plane says who signs",
    "ISTIO_META_ENABLE_DNS_SERVER": "use --dns",
    "JWT_POLICY": _TOKENS,
    "OUTPUT_CERTS": "key and certificate are in --state-dir, for Envoy alone; mesh-pilot certificate writes others",
    "PEER_METADATA_DISCOVERY": "a stock Envoy has no such extension",
    "PKCS8_KEY": _ALWAYS,
    "PROXY_CONFIG_XDS_AGENT": _ALWAYS,
    "PROXY_XDS_DEBUG_VIA_AGENT": "the pages of the control plane and /debug of --status-port have it",
    "PROXY_XDS_DEBUG_VIA_AGENT_PORT": "the pages of the control plane and /debug of --status-port have it",
    "PROXY_XDS_VIA_AGENT": _ALWAYS,
    "REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION": "give the probe a host, such as 127.0.0.1",
    "SECRET_GRACE_PERIOD_RATIO": _RENEWAL,
    "SECRET_GRACE_PERIOD_RATIO_JITTER": _RENEWAL,
    "TRUST_DOMAIN": "the control plane says it",
    "USE_TOKEN_FOR_CSR": "a token counts until there is a certificate",
    "WASM_HTTP_REQUEST_MAX_RETRIES": _WASM,
    "WASM_HTTP_REQUEST_TIMEOUT": _WASM,
    "WASM_INSECURE_REGISTRIES": _WASM,
    "WASM_MODULE_EXPIRY": _WASM,
    "WASM_PURGE_INTERVAL": _WASM,
    "WORKLOAD_IDENTITY_SOCKET_FILE": "give the whole path of the socket with --sds-socket",
    "WORKLOAD_RSA_KEY_SIZE": _KEYS,
    "XDS_AUTH_PROVIDER": _TOKENS,
}
"""Variables without effect, and why, or what replaces them."""

CPU_LIMIT = "ISTIO_CPU_LIMIT"

SPECIAL: Mapping[str, str] = {
    "DNS_PROXY_ADDR": "`--dns-listen` and `--dns-port`",
    "FILE_MOUNTED_CERTS": "with `true` and `PROV_CERT`, as that alone",
    CPU_LIMIT: "threads of Envoy, where no ProxyConfig has `concurrency`",
    "ISTIO_METAJSON_*": "node metadata, from JSON objects; those of `ISTIO_METAJSON_LABELS` are labels",
    "ISTIO_META_*": "node metadata: `ISTIO_META_X` is `X`",
    "PROV_CERT": "`--cert-chain`, `--key` and `--root-cert`, if `cert-chain.pem`, `key.pem` and `root-cert.pem` exist",
    "PROXY_CONFIG": "`--proxy-config`, below that",
}
"""Variables that set more than one setting."""


@attrs.frozen
class Remark:
    """A line for the log about a variable, or a setting, that has no effect."""

    event: str
    fields: Mapping[str, object]


@attrs.frozen
class FromIstio:
    """Settings that the environment has: texts of settings by name, with the variable; metadata; remarks."""

    settings: Mapping[str, tuple[str, str]]
    metadata: Mapping[str, Any]
    labels: Mapping[str, str]
    proxy_config: str
    remarks: tuple[Remark, ...]


def read_environment(environ: Mapping[str, str]) -> FromIstio:
    """Settings by Istio's variables. An empty variable is as one that is not set."""
    given = {name: text for name, text in sorted(environ.items()) if text}
    settings = {setting: (variable, given[variable]) for variable, setting in HONOURED.items() if variable in given}
    remarks = [
        Remark("variable of istio has no effect", {"variable": name, "reason": ANSWERED[name]})
        for name in given
        if name in ANSWERED
    ]
    settings |= _listen(given) | _provided(given)
    metadata: dict[str, Any] = {}
    labels: dict[str, str] = {}
    remarks += _metadata(given, metadata, labels)
    return FromIstio(settings, metadata, labels, given.get("PROXY_CONFIG", ""), tuple(remarks))


def _listen(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    name = "DNS_PROXY_ADDR"
    host, _, port = given.get(name, "").rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    return {"dns-listen": (name, host), "dns-port": (name, port)} if port else {}


def _provided(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The certificate of a folder, once there is one: the first time Istio's agent uses the token."""
    name = "PROV_CERT"
    files = {"cert-chain": "cert-chain.pem", "key": "key.pem", "root-cert": "root-cert.pem"}
    paths = {setting: Path(given.get(name, "")) / file for setting, file in files.items()}
    is_there = name in given and all(path.exists() for path in paths.values())
    return {setting: (name, str(path)) for setting, path in paths.items()} if is_there else {}


def _metadata(given: Mapping[str, str], metadata: dict[str, Any], labels: dict[str, str]) -> Iterator[Remark]:
    for name, text in given.items():
        if name in HONOURED:
            continue  # the setting puts it there, wherever that comes from
        if name.startswith(META):
            metadata[name.removeprefix(META)] = text
        elif name.startswith(META_JSON):
            try:
                values = json.loads(text)
            except ValueError:
                values = None
            if not isinstance(values, dict):
                yield Remark("variable of istio is refused", {"variable": name, "reason": "it is no JSON object"})
            elif name == f"{META_JSON}LABELS":
                labels.update({key: str(value) for key, value in values.items()})
            else:
                metadata.update(values)
