"""Annotations of a Pod about its sidecar: the checks of their values. Source: Istio, "Resource Annotations"."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.mesh.proxy.agent_config import MAX_ANNOTATION
from mesh_pilot.model.config import ConfigError, Origin, Severity
from mesh_pilot.model.log_levels import parse_levels

PROXY_CONFIG = "proxy.istio.io/config"
OVERRIDES = "proxy.istio.io/overrides"
STATUS = "sidecar.istio.io/status"
STATUS_PORT = "status.sidecar.istio.io/port"
TEMPLATES = "inject.istio.io/templates"
NATIVE = "sidecar.istio.io/nativeSidecar"
INTERCEPTION = "sidecar.istio.io/interceptionMode"
REWRITE_PROBES = "sidecar.istio.io/rewriteAppHTTPProbers"
USER_VOLUME = "sidecar.istio.io/userVolume"
USER_VOLUME_MOUNT = "sidecar.istio.io/userVolumeMount"
LOG_LEVEL = "sidecar.istio.io/agentLogLevel"

_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_INTERFACE = re.compile(r"[^\s/:,]{1,15}")
_BOOLEANS = ("1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False")
_ENVOY_LEVELS = ("trace", "debug", "info", "warning", "warn", "error", "critical", "off")
_LONGEST = 300
"""Characters of a value that is quoted."""


class AnnotationError(ValueError):
    """An annotation with a value that is not possible: its name and the reason."""


def check_annotations(annotations: Mapping[str, str]) -> None:
    """Raise AnnotationError for the first value that is not possible."""
    for name in sorted(annotations):
        if (check := _CHECKS.get(name)) is not None and (reason := check(annotations[name])):
            value = annotations[name]
            shown = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
            raise AnnotationError(f"annotation {name}: {json.dumps(shown)} {reason}")


def annotation_warnings(annotations: Mapping[str, str]) -> Iterator[str]:
    """Annotations that have no effect, each with the reason."""
    for name, reason in _WITHOUT_EFFECT.items():
        if name in annotations:
            yield f"annotation {name} has no effect: {reason}"


def proxy_config_of(text: str) -> dict[str, Any]:
    """The ProxyConfig of the annotation, as it is written. Raises ValueError."""
    if len(text) > MAX_ANNOTATION:
        raise ValueError(f"has more than {MAX_ANNOTATION} characters")
    data = read_yaml(text, "is not a ProxyConfig")
    problems: list[Any] = []
    read_message(ProxyConfig, data, "", problems)
    if wrong := next((problem for problem in problems if problem.severity is Severity.ERROR), None):
        raise ValueError(f"is not a ProxyConfig: {wrong}")
    return data


def read_yaml(text: str, is_wrong: str) -> dict[str, Any]:
    """The one object of a string; empty where it has none. Raises ValueError, which begins with ``is_wrong``.

    By the reader for files: a string of a Pod must neither nest deeper than the stack of a thread, nor take long.
    """
    documents = list(load(text, Origin("annotation")))
    if (wrong := next((found for found in documents if isinstance(found, ConfigError)), None)) is not None:
        reason = "; ".join(problem.reason for problem in wrong.problems).partition(" with apiVersion")[0]
        raise ValueError(f"{is_wrong}: {' '.join(reason.split())}")
    if len(documents) > 1:
        raise ValueError(f"{is_wrong}: expected one document, got {len(documents)}")
    return {name: value for found in documents if isinstance(found, Document) for name, value in found.data.items()}


def volumes_of(text: str) -> list[dict[str, Any]]:
    """Volumes, or mounts, of the annotation: ``{"NAME": {...}}``, or a list of objects with names.

    Raises ValueError.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if isinstance(data, dict):
        data = [{"name": name, **value} if isinstance(value, dict) else value for name, value in data.items()]
    if not isinstance(data, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in data
    ):
        raise ValueError('is not of the form {"NAME": {...}}')
    return data


def agent_log_level(text: str) -> str:
    """The level of the agent's log, without scopes of Istio's agent that ours has nothing like."""
    parts = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            parse_levels(part)
        except ValueError:
            continue
        parts.append(part.removeprefix("default:"))
    return ",".join(parts) or "info"


def is_port(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit() and int(text[:7]) < 65536


def _one_of(*values: str) -> Callable[[str], str]:
    return lambda text: "" if text in values else f"is not one of {', '.join(values)}"


def _ports(text: str) -> str:
    wrong = next((part for part in text.split(",") if not is_port(part)), None) if text.strip() else None
    return "" if wrong is None else f"is not a list of ports: {json.dumps(wrong[:_LONGEST])} is not a port"


def _ports_or_all(text: str) -> str:
    return "" if text == "*" else _ports(text)


def _ranges(text: str) -> str:
    for part in filter(None, text.split(",")):
        try:
            if "/" not in part:
                raise ValueError
            ipaddress.ip_network(part, strict=False)
        except ValueError:
            return f"is not a list of address ranges: {json.dumps(part[:_LONGEST])} is not a range, such as 10.0.0.0/8"
    return ""


def _ranges_or_all(text: str) -> str:
    return "" if text == "*" else _ranges(text)


def _interfaces(text: str) -> str:
    good = all(_INTERFACE.fullmatch(part.strip()) for part in text.split(",")) if text.strip() else True
    return "" if good else "is not a list of network interfaces"


def _number(text: str) -> str:
    good = text.isascii() and text.isdigit() and int(text[:11]) < 2**32
    return "" if good else "is not a whole number"


def _quantity(text: str) -> str:
    return "" if _QUANTITY.fullmatch(text) else "is not a quantity, such as 100m or 128Mi"


def _raises(read: Callable[[str], object]) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            read(text)
        except ValueError as error:
            return str(error)
        return ""

    return check


def _component_levels(text: str) -> str:
    parts = [part.partition(":") for part in text.split(",")] if text else []
    return "" if all(name and level in _ENVOY_LEVELS for name, _, level in parts) else "is not NAME:LEVEL,..."


_CHECKS: Mapping[str, Callable[[str], str]] = {
    INTERCEPTION: _one_of("REDIRECT", "TPROXY", "NONE"),
    STATUS_PORT: lambda text: "" if is_port(text) else "is not a port",
    "readiness.status.sidecar.istio.io/initialDelaySeconds": _number,
    "readiness.status.sidecar.istio.io/periodSeconds": _number,
    "readiness.status.sidecar.istio.io/failureThreshold": _number,
    "traffic.sidecar.istio.io/includeOutboundIPRanges": _ranges_or_all,
    "traffic.sidecar.istio.io/excludeOutboundIPRanges": _ranges,
    "traffic.sidecar.istio.io/includeInboundPorts": _ports_or_all,
    "traffic.sidecar.istio.io/excludeInboundPorts": _ports,
    "traffic.sidecar.istio.io/includeOutboundPorts": _ports_or_all,
    "traffic.sidecar.istio.io/excludeOutboundPorts": _ports,
    "traffic.sidecar.istio.io/excludeInterfaces": _interfaces,
    "traffic.sidecar.istio.io/kubevirtInterfaces": _interfaces,
    "istio.io/reroute-virtual-interfaces": _interfaces,
    "prometheus.istio.io/merge-metrics": lambda text: "" if text in _BOOLEANS else "is neither true nor false",
    PROXY_CONFIG: _raises(proxy_config_of),
    "sidecar.istio.io/proxyCPU": _quantity,
    "sidecar.istio.io/proxyMemory": _quantity,
    "sidecar.istio.io/proxyCPULimit": _quantity,
    "sidecar.istio.io/proxyMemoryLimit": _quantity,
    "sidecar.istio.io/logLevel": _one_of(*_ENVOY_LEVELS),
    "sidecar.istio.io/componentLogLevel": _component_levels,
    USER_VOLUME: _raises(volumes_of),
    USER_VOLUME_MOUNT: _raises(volumes_of),
}

_WITHOUT_EFFECT: Mapping[str, str] = {
    "readiness.status.sidecar.istio.io/applicationPorts": "Istio no longer reads it; the application has its own probe",
    "sidecar.istio.io/enableCoreDump": "the proxy never writes core dumps, which would hold private keys",
    "sidecar.istio.io/controlPlaneAuthPolicy": "the control plane is always reached by TLS",
}
