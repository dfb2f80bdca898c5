"""Metrics of requests and connections: which of Istio's a proxy has, and how Telemetry changes their labels.

Rules: Istio's Telemetry reference and its page "Istio Standard Metrics". Providers that Telemetry objects of several
levels name add up; the narrower object's overrides win.
"""

from __future__ import annotations

from enum import Enum

import attrs

from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.policies.telemetry import extension_provider, provider_names, telemetry_for
from mesh_pilot.world.view import View

METRIC_PROVIDER_FIELDS = ("prometheus",)
"""The fields of an extension provider of which one is set if it takes metrics."""

_Selected = api.MetricSelectorIstioMetric
Mode = api.WorkloadMode


class Metric(Enum):
    """A metric of Istio's, by the name that Prometheus has it under.

    Those of gRPC messages are missing: a stock Envoy's loggers cannot read its counts of messages as numbers.
    """

    REQUEST_COUNT = "istio_requests_total"
    REQUEST_DURATION = "istio_request_duration_milliseconds"
    REQUEST_SIZE = "istio_request_bytes"
    RESPONSE_SIZE = "istio_response_bytes"
    TCP_OPENED_CONNECTIONS = "istio_tcp_connections_opened_total"
    TCP_CLOSED_CONNECTIONS = "istio_tcp_connections_closed_total"
    TCP_SENT_BYTES = "istio_tcp_sent_bytes_total"
    TCP_RECEIVED_BYTES = "istio_tcp_received_bytes_total"


@attrs.frozen
class MetricSettings:
    """A metric that a proxy has."""

    metric: Metric
    tags: tuple[tuple[str, str | None], ...] = ()
    """Labels that Telemetry adds or changes, with an expression of their value; None removes one."""


@attrs.define
class _Override:
    disabled: bool = False
    tags: dict[str, str | None] = attrs.field(factory=dict)


@derived
def metric_settings(view: View, context: PolicyContext) -> tuple[MetricSettings, ...]:
    """The metrics of a context; none where no provider of metrics is in force."""
    if context.spans.metrics is None:
        return ()
    mode = Mode.SERVER if context.side is TrafficSide.INBOUND else Mode.CLIENT
    overrides = {metric: _Override() for metric in Metric}
    entries = [e for spec in telemetry_for(view, context.namespace, context.labels) for e in spec.metrics]
    defaults = view.mesh().default_providers
    inherited = tuple(defaults.metrics if defaults else ())
    # An entry without providers has those of the wider level, and overrides nothing if these take no metrics.
    for entry in entries:
        inherited = provider_names(entry.providers) or inherited
        if not _has_metrics(view, inherited):
            continue
        for override in entry.overrides:
            if override.match is None or override.match.mode in (Mode.CLIENT_AND_SERVER, mode):
                _apply(override, overrides)
    if not _has_metrics(view, inherited):
        return ()
    return tuple(
        MetricSettings(metric, tuple(sorted(override.tags.items())))
        for metric, override in overrides.items()
        if not override.disabled
    )


def selected_metrics(match: api.MetricSelector | None) -> tuple[Metric, ...]:
    """The metrics that a match selects; none if no proxy has it."""
    if match is None:
        return tuple(Metric)
    if match.custom_metric is not None:
        name = match.custom_metric.removeprefix("istio_")
        return tuple(metric for metric in Metric if metric.value.removeprefix("istio_") == name)
    if match.metric is None or match.metric is _Selected.ALL_METRICS:
        return tuple(Metric)
    return tuple(metric for metric in Metric if metric.name == match.metric.name)


def _apply(override: api.MetricsOverrides, overrides: dict[Metric, _Override]) -> None:
    for metric in selected_metrics(override.match):
        target = overrides[metric]
        if override.disabled is not None:
            target.disabled = override.disabled
        for name, tag in override.tag_overrides.items():
            target.tags[name] = None if tag.operation is api.MetricsOverridesTagOverrideOperation.REMOVE else tag.value


def _has_metrics(view: View, providers: tuple[str, ...]) -> bool:
    found = (extension_provider(view, name) for name in providers)
    return any(provider is not None and provider.prometheus is not None for provider in found)
