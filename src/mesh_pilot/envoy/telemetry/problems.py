"""Warnings about providers that Telemetry and the mesh config name and that cannot be used.

Validation checks one object at a time; whether a provider and its service exist depends on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.envoy.telemetry.loggers import LOG_PROVIDER_FIELDS
from mesh_pilot.envoy.telemetry.metric_tags import tag_reason
from mesh_pilot.envoy.telemetry.tracers import TRACING_PROVIDER_FIELDS
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.metrics import METRIC_PROVIDER_FIELDS, Metric, selected_metrics
from mesh_pilot.mesh.telemetry import Provider, extension_provider, provider_cluster
from mesh_pilot.model.config import ConfigKey, Problem, Severity
from mesh_pilot.world.view import View


@derived
def telemetry_problems(view: View, key: ConfigKey) -> tuple[Problem, ...]:
    """Warnings about the providers that a Telemetry names, with their paths in it."""
    config = view.config(key)
    if config is None:
        return ()
    spec: api.Telemetry = config.spec
    problems: list[Problem] = []
    for index, tracing in enumerate(spec.tracing):
        names = [p.name for p in tracing.providers[:1]]
        problems += _tracing_problems(view, key.namespace, names, f"spec.tracing[{index}].providers[{{}}].name")
    for index, logging in enumerate(spec.access_logging):
        names = [p.name for p in logging.providers]
        problems += _logging_problems(view, key.namespace, names, f"spec.accessLogging[{index}].providers[{{}}].name")
    for index, metrics in enumerate(spec.metrics):
        path = f"spec.metrics[{index}]"
        names = [p.name for p in metrics.providers]
        problems += _metric_problems(view, key.namespace, names, f"{path}.providers[{{}}].name")
        for number, override in enumerate(metrics.overrides):
            problems += _override_problems(override, f"{path}.overrides[{number}]")
        if not names and not _default_metrics(view):
            reason = "no provider of metrics: name one here or in defaultProviders of the mesh config"
            problems.append(Problem(path, f"{reason}; it applies only where another Telemetry does", Severity.WARNING))
    return tuple(problems)


@derived
def default_provider_problems(view: View) -> tuple[Problem, ...]:
    """Warnings about the mesh config's default providers, with their paths in it."""
    defaults = view.mesh().default_providers
    if defaults is None:
        return ()
    root = view.root_namespace
    return (
        *_tracing_problems(view, root, defaults.tracing[:1], "defaultProviders.tracing[{}]"),
        *_logging_problems(view, root, defaults.access_logging, "defaultProviders.accessLogging[{}]"),
        *_metric_problems(view, root, defaults.metrics, "defaultProviders.metrics[{}]"),
    )


def _tracing_problems(view: View, namespace: str, names: Sequence[str], path: str) -> Iterator[Problem]:
    for index, name in enumerate(names):
        reason = _reason(view, namespace, name, TRACING_PROVIDER_FIELDS, "traces")
        if reason:
            yield Problem(path.format(index), f"{reason}: nothing is traced", severity=Severity.WARNING)


def _logging_problems(view: View, namespace: str, names: Sequence[str], path: str) -> Iterator[Problem]:
    for index, name in enumerate(names):
        reason = _reason(view, namespace, name, LOG_PROVIDER_FIELDS, "access logs")
        if reason:
            yield Problem(path.format(index), f"{reason}: nothing is logged to it", severity=Severity.WARNING)


def _metric_problems(view: View, namespace: str, names: Sequence[str], path: str) -> Iterator[Problem]:
    for index, name in enumerate(names):
        reason = _reason(view, namespace, name, METRIC_PROVIDER_FIELDS, "metrics")
        if reason:
            yield Problem(path.format(index), f"{reason}: it is given no metrics", severity=Severity.WARNING)


def _override_problems(override: api.MetricsOverrides, path: str) -> Iterator[Problem]:
    match = override.match
    if match is not None and not selected_metrics(match):
        field = "metric" if match.custom_metric is None else "customMetric"
        known = ", ".join(metric.value for metric in Metric)
        reason = f"no proxy has this metric, so the override has no effect; there are {known}"
        yield Problem(f"{path}.match.{field}", reason, severity=Severity.WARNING)
    for name, tag in override.tag_overrides.items():
        removed = tag.operation is api.MetricsOverridesTagOverrideOperation.REMOVE
        if not removed and (reason := tag_reason(tag.value)):
            where = f"{path}.tagOverrides[{name}].value"
            yield Problem(where, f"{reason}: the label stays as it is", severity=Severity.WARNING)


@derived
def _default_metrics(view: View) -> bool:
    defaults = view.mesh().default_providers
    return defaults is not None and bool(defaults.metrics)


def _reason(view: View, namespace: str, name: str, fields: Sequence[str], purpose: str) -> str:
    """The reason why proxies of a namespace cannot use a provider; empty if they can."""
    provider = extension_provider(view, name)
    if provider is None:
        return f"the mesh config has no extension provider {name}"
    field = next((field for field in fields if getattr(provider, field) is not None), None)
    if field is None:
        return f"extension provider {name} is not one for {purpose}"
    return _unreachable(view, namespace, provider, field)


def _unreachable(view: View, namespace: str, provider: Provider, field: str) -> str:
    settings = getattr(provider, field)
    service, port = getattr(settings, "service", ""), getattr(settings, "port", 0)
    if not service or provider_cluster(view, namespace, service, port) is not None:
        return ""
    return f"extension provider {provider.name}: namespace {namespace} sees no service {service} with port {port}"
