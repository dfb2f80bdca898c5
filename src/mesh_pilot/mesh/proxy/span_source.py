"""Span sources: what the spans and the metrics of a proxy tell about their origin.

A part that differs between workloads prevents their proxies from sharing HTTP listeners. It is therefore omitted unless
a tracer or ``enableIstioTags`` for the namespace needs it. Rules: what Pilot sets; Istio's page "Canonical Service".
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.base.reading import as_string
from mesh_pilot.engine import derived
from mesh_pilot.mesh.proxy.metric_source import (
    CANONICAL_REVISION,
    CANONICAL_SERVICE,
    WORKLOAD_NAME,
    MetricSource,
    first_label,
)
from mesh_pilot.mesh.proxy.proxy_config import proxy_settings
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.world.view import View

Enrichment = mesh_api.MeshConfigExtensionProviderServiceAttributeEnrichment

Tags = tuple[tuple[str, str], ...]
"""Tag names and their values, in order of name."""


@attrs.frozen(cache_hash=True)
class SpanSource:
    """The origin of a proxy's spans, without parts that no tracer needs."""

    service: str = ""
    """The node's cluster (``web.shop``): the service name for tracers that send one; empty if none does."""
    semantic_service: str = ""
    """The same by OpenTelemetry's conventions (see ``semantic_service_name``); empty if no provider asks for it."""
    tags: Tags = ()
    """Istio's tags of the workload; empty if they are disabled."""
    metrics: MetricSource | None = None
    """The workload in the metrics of its requests; None if it has none."""

    @property
    def for_connections(self) -> SpanSource:
        """The parts that listeners of plain connections need: these send no spans."""
        return SpanSource(metrics=self.metrics) if self.metrics is not None else NO_SOURCE


SERVICE_ANNOTATION = "resource.opentelemetry.io/service.name"
SERVICE_LABELS = ("app.kubernetes.io/instance", "app.kubernetes.io/name")

NO_SOURCE = SpanSource()
"""No part is needed."""


@attrs.frozen
class SpanNeeds:
    """Which parts of a span source are needed."""

    service: bool
    semantic_service: bool
    tags: bool


@derived
def span_needs(view: View, namespace: str, own: str) -> SpanNeeds:
    """The parts that any tracer may need of proxies in a namespace with this ProxyConfig."""
    mesh = view.mesh()
    providers = mesh.extension_providers
    semantic = {p.name.lower() for p in providers if p.opentelemetry is not None and _is_semantic(p.opentelemetry)}
    by_cluster = {p.name.lower() for p in providers if p.opentelemetry is not None or p.datadog is not None} - semantic
    named = {name.lower() for name in (mesh.default_providers.tracing[:1] if mesh.default_providers else ())}
    settings = proxy_settings(view, own).tracing
    tags = bool(settings and settings.enable_istio_tags)
    for entry in _entries(view, namespace):
        named.update(p.name.lower() for p in entry.providers[:1])
        tags = tags or bool(entry.enable_istio_tags)
    return SpanNeeds(not named.isdisjoint(by_cluster), not named.isdisjoint(semantic), tags)


def _is_semantic(provider: mesh_api.MeshConfigExtensionProviderOpenTelemetryTracingProvider) -> bool:
    return provider.service_attribute_enrichment is Enrichment.OTEL_SEMANTIC_CONVENTIONS


def semantic_service_name(proxy: Proxy) -> str:
    """The name of a proxy's service by OpenTelemetry's conventions for Kubernetes, in Istio's order."""
    containers = proxy.text("APP_CONTAINERS")
    found = (
        as_string(proxy.metadata, "ANNOTATIONS", SERVICE_ANNOTATION),
        *(proxy.labels.get(key, "") for key in SERVICE_LABELS),
        proxy.text(WORKLOAD_NAME),
        proxy.name.partition(".")[0],
        "" if "," in containers else containers,
    )
    return next(filter(None, found), "unknown_service")


def workload_tags(namespace: str, labels: frozenset[tuple[str, str]], mesh_id: str, cluster_id: str) -> Tags:
    """Istio's tags of a workload."""
    by_key = dict(labels)
    return (
        ("istio.canonical_revision", first_label(by_key, CANONICAL_REVISION) or "latest"),
        ("istio.canonical_service", first_label(by_key, CANONICAL_SERVICE) or "unknown"),
        ("istio.cluster_id", cluster_id or "unknown"),
        ("istio.mesh_id", mesh_id or "unknown"),
        ("istio.namespace", namespace or "default"),
    )


def _entries(view: View, namespace: str) -> Iterator[api.Tracing]:
    """The tracing entries of all Telemetry objects that may apply to proxies of a namespace."""
    for level in dict.fromkeys((view.root_namespace, namespace)):
        for config in view.configs("Telemetry", level):
            spec: api.Telemetry = config.spec
            yield from spec.tracing
