"""The environment of Istio's agent: which variables set what, and which have no effect here, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

META, META_JSON = "ISTIO_META_", "ISTIO_METAJSON_"
"""Variables of which node metadata are made: ``ISTIO_META_X`` is ``X``; the others are objects, merged."""

HONOURED: Mapping[str, str] = {
    "CA_ROOT_CA": "tls-ca",
    "ENVOY_PROMETHEUS_PORT": "prometheus-port",
    "ENVOY_STATUS_PORT": "readiness-port",
    "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "exit-on-zero-active-connections",
    "INSTANCE_IP": "ip",
    "ISTIOD_SAN": "tls-server-name",
    "ISTIO_BOOTSTRAP_OVERRIDE": "custom-bootstrap",
    "ISTIO_META_AUTO_REGISTER_GROUP": "auto-register-group",
    "ISTIO_META_DNS_CAPTURE": "dns",
    "ISTIO_META_INTERCEPTION_MODE": "interception",
    "MINIMUM_DRAIN_DURATION": "minimum-drain",
    "POD_NAME": "name",
    "POD_NAMESPACE": "namespace",
    "SECRET_TTL": "cert-ttl",
    "SERVICE_ACCOUNT": "service-account",
    "XDS_ROOT_CA": "tls-ca",
}
"""Variables, each with the setting that it is."""


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
    metadata: dict[str, Any] = {}
    labels: dict[str, str] = {}
    remarks = list(_metadata(given, metadata, labels))
    return FromIstio(settings, metadata, labels, given.get("PROXY_CONFIG", ""), tuple(remarks))


def _metadata(given: Mapping[str, str], metadata: dict[str, Any], labels: dict[str, str]) -> Iterator[Remark]:
    for name, text in given.items():
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
