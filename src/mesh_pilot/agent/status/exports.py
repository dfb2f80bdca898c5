"""How metrics leave the machine: settings of this machine over what ``proxyMetadata`` of the ProxyConfig says.

Names are Istio's and OpenTelemetry's. A value that cannot be read is left out, and said in the log; a list of
principals never grows by that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import attrs

from mesh_pilot.agent.bootstrap.configured import LOCAL_METRICS
from mesh_pilot.agent.settings import ExportSettings
from mesh_pilot.model.spiffe import SCHEME, parse_identity
from mesh_pilot.net.otlp.push import LEAST_SECONDS, MOST_SECONDS, PushSettings

SECURE_PORT = "ENVOY_SECURE_MERGED_METRICS_PORT"
SECURE_PRINCIPALS = "SECURE_METRICS_PRINCIPALS"
ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
ROOTS = "OTEL_EXPORTER_OTLP_CERTIFICATE"
EXPORT_NAMES = (SECURE_PORT, SECURE_PRINCIPALS, ENDPOINT, INTERVAL, ROOTS)
"""Names in ``proxyMetadata``."""

T = TypeVar("T")

_SPIFFE_ID = re.compile(r"spiffe://[a-z0-9._-]+(?:/[A-Za-z0-9._-]+)+")


@attrs.frozen
class MetricsExports:
    """The ways out that are in force."""

    port: int = 0
    """The port of the page over mutual TLS; 0: off."""
    principals: frozenset[str] | None = None
    """SPIFFE ids of those who may read it; None: all workloads of the mesh."""
    push: PushSettings | None = None
    roots: Path | None = None
    """The file of roots that the receiver is known by, for https; None: the system's."""
    local_only: bool = False
    """Over plaintext, the page is for programs on this machine."""


def read_exports(
    own: ExportSettings,
    metadata: Mapping[str, str],
    taken: Mapping[int, str],
    refuse: Callable[[str, str], None],
) -> MetricsExports:
    """``metadata``: ``proxyMetadata``; ``taken``: ports that are used already, with by what. ``refuse`` is told field
    and reason of what cannot be read."""
    # Each setting on its own: one that cannot be read costs no other, and what is set on the machine is never mixed
    # with the mesh's.
    port = own.secure_port
    if port is None:
        port = _read(SECURE_PORT, metadata, read_port, refuse) or 0
    if port in taken:
        refuse(SECURE_PORT if own.secure_port is None else "--secure-metrics-port", f"port {port} is {taken[port]}")
        port = 0
    listed = own.secure_principals or _listed(metadata, refuse)
    endpoint = own.endpoint or _read(ENDPOINT, metadata, read_endpoint, refuse)
    interval = own.interval_seconds or _read(INTERVAL, metadata, _milliseconds, refuse)
    push = PushSettings(endpoint) if endpoint else None
    if push is not None and interval:
        push = attrs.evolve(push, interval_seconds=interval)
    roots = own.roots or (Path(metadata[ROOTS]) if metadata.get(ROOTS) else None)
    local_only = metadata.get(LOCAL_METRICS, "").lower() == "true"
    return MetricsExports(port, frozenset(listed) if listed is not None else None, push, roots, local_only)


def read_port(text: str) -> int:
    """A port of TCP, or 0. Raises ValueError."""
    if not (text.isascii() and text.isdigit() and int(text[:6]) < 65536):
        raise ValueError(f"{text!r} is not a port of TCP")
    return int(text)


def read_principal(text: str) -> str:
    """The SPIFFE id that ``TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`` stands for, or that is given. Raises ValueError."""
    if _SPIFFE_ID.fullmatch(text):
        return text
    if parse_identity(SCHEME + text) is None:
        raise ValueError(f"{text!r} is not a principal such as cluster.local/ns/monitoring/sa/prometheus")
    return SCHEME + text


def read_endpoint(text: str) -> str:
    """The URL of an OTLP receiver over HTTP. Raises ValueError."""
    try:
        host = urlsplit(text).hostname
    except ValueError:
        host = None
    if not text.startswith(("http://", "https://")) or not host:
        raise ValueError(f"{text!r} is not a URL such as http://localhost:4318")
    return text


def read_interval(seconds: float) -> float:
    """Seconds between two pushes. Raises ValueError."""
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ValueError(f"an interval is {LEAST_SECONDS:g} s to {MOST_SECONDS:g} s long")
    return seconds


def _milliseconds(text: str) -> float:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a number of milliseconds")
    return read_interval(int(text[:9]) / 1000)


def _listed(metadata: Mapping[str, str], refuse: Callable[[str, str], None]) -> tuple[str, ...] | None:
    """The principals of a list; None without a list. An entry that cannot be read admits no workload."""
    texts = [text.strip() for text in metadata.get(SECURE_PRINCIPALS, "").split(",")]
    found: list[str] = []
    for text in filter(None, texts):
        try:
            found.append(read_principal(text))
        except ValueError as error:
            refuse(SECURE_PRINCIPALS, str(error))
    return tuple(found) if any(texts) else None


def _read(
    name: str, metadata: Mapping[str, str], read: Callable[[str], T], refuse: Callable[[str, str], None]
) -> T | None:
    text = metadata.get(name, "")
    try:
        return read(text) if text else None
    except ValueError as error:
        refuse(name, str(error))
        return None
