"""Metric sources: how the metrics of a proxy's requests name its workload.

These names differ between workloads, and a listener with them is not shared with proxies of other workloads. They are
therefore left out unless some metrics provider is in force. Rules: Istio's page "Istio Standard Metrics".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.model.service import Endpoint
from mesh_pilot.world.view import View

WORKLOAD_NAME = "WORKLOAD_NAME"
"""Node metadata: the name of the proxy's workload."""

Names = tuple[tuple[str, str], ...]
"""Values by the end of the label that has them: ``workload`` for ``source_workload`` and ``destination_workload``."""

WORKLOAD_NAMES = (
    "workload",
    "workload_namespace",
    "app",
    "version",
    "canonical_service",
    "canonical_revision",
    "cluster",
)
"""The names of a workload, in the order of its labels."""

MAX_NAME = 128
"""The length to which names are cut, whoever says them."""

CANONICAL_SERVICE = ("service.istio.io/canonical-name", "app.kubernetes.io/name", "app")
CANONICAL_REVISION = ("service.istio.io/canonical-revision", "app.kubernetes.io/version", "version")

_VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?![0-9])")
"""The beginning of a version; proxies write it as they like."""
_KNOWN_SINCE = (1, 38)
"""The first Envoy whose stats logger has rules for tags."""
_LIMITED_SINCE = (1, 40)
"""The first Envoy whose stats logger can limit how many statistics there are."""


@attrs.frozen(cache_hash=True)
class MetricSource:
    """The workload of a proxy as its metrics name it, and what its Envoy can do."""

    names: Names
    limited: bool
    """True if its Envoy can limit the number of statistics."""


def metric_source(version: str, names: Names) -> MetricSource | None:
    """The source of a proxy, by the version of its Envoy; None for one without a usable stats logger."""
    found = _VERSION.match(version)
    number = tuple(map(int, found.groups())) if found else ()
    if number < _KNOWN_SINCE:
        return None
    return MetricSource(names, number >= _LIMITED_SINCE)


def workload_names(
    namespace: str, labels: Mapping[str, str], workload: str, account: str, cluster_id: str = ""
) -> Names:
    """The names of a workload that are known.

    One without its own name has that of its canonical service, else that of its service account.
    """
    service = first_label(labels, CANONICAL_SERVICE)
    name = workload or service or account.rpartition("/")[2]
    service = service or name
    values = (
        name,
        namespace,
        labels.get("app", ""),
        labels.get("version", ""),
        service,
        first_label(labels, CANONICAL_REVISION) or "latest",
        cluster_id,
    )
    return tuple((name, value[:MAX_NAME]) for name, value in zip(WORKLOAD_NAMES, values, strict=True) if value)


def endpoint_names(endpoint: Endpoint, namespace: str) -> Names:
    """The names of the workload of an endpoint; ``namespace`` is that of its service."""
    where = endpoint.namespace or namespace
    return workload_names(where, endpoint.labels, endpoint.workload, endpoint.service_account, endpoint.cluster_id)


@derived
def metrics_anywhere(view: View) -> bool:
    """True if some proxy of the mesh may have metrics of requests."""
    return any(provider.lower() in _usable(view) for provider in _named(view, None))


@derived
def metrics_in(view: View, namespace: str) -> bool:
    """True if some proxy of a namespace may have them."""
    return any(provider.lower() in _usable(view) for provider in _named(view, namespace))


@derived
def _usable(view: View) -> frozenset[str]:
    """The names of the providers of metrics, in lower case."""
    return frozenset(p.name.lower() for p in view.mesh().extension_providers if p.prometheus is not None)


def _named(view: View, namespace: str | None) -> Iterator[str]:
    """The providers of metrics that the mesh config and the Telemetry objects for a namespace name; None: for any."""
    yield from _defaults(view)
    levels = dict.fromkeys((view.root_namespace, namespace))
    configs = (
        view.all_configs("Telemetry")
        if namespace is None
        else (config for level in levels if level is not None for config in view.configs("Telemetry", level))
    )
    for config in configs:
        for entry in config.spec.metrics:
            yield from (provider.name for provider in entry.providers)


@derived
def _defaults(view: View) -> tuple[str, ...]:
    defaults = view.mesh().default_providers
    return tuple(defaults.metrics if defaults else ())


def first_label(labels: Mapping[str, str], keys: tuple[str, ...]) -> str:
    """The first of these labels that a workload has."""
    return next((labels[key] for key in keys if labels.get(key)), "")
