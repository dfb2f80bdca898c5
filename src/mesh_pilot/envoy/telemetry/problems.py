"""Problems of providers that Telemetry and the mesh config name and that cannot be used.

Validation checks one object at a time; whether a provider and its service exist depends on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.telemetry.loggers import LOG_PROVIDER_FIELDS
from mesh_pilot.envoy.telemetry.metrics import tag_reason
from mesh_pilot.envoy.telemetry.tracing import TRACING_PROVIDER_FIELDS, Header, OpenTelemetry, header_value
from mesh_pilot.mesh.policies.metrics import METRIC_PROVIDER_FIELDS, Metric, selected_metrics
from mesh_pilot.mesh.policies.telemetry import BUILT_IN, Provider, extension_provider, provider_cluster
from mesh_pilot.model.config import ConfigKey, Problem, Severity
from mesh_pilot.world.view import View

NO_TRACER = ("lightstep", "opencensus", "stackdriver")
"""Kinds of providers whose tracers Envoy has no more."""
NAMES_SHOWN = 10


@derived
def telemetry_problems(view: View, key: ConfigKey) -> tuple[Problem, ...]:
    """Problems of the providers that a Telemetry names, with their paths in it."""
    config = view.config(key)
    if config is None:
        return ()
    spec: api.Telemetry = config.spec
    problems: list[Problem] = []
    space = key.namespace
    for index, tracing in enumerate(spec.tracing):
        names = [p.name for p in tracing.providers[:1]]
        problems += _problems(view, space, names, f"spec.tracing[{index}].providers[{{}}].name", _TRACES)
    for index, logging in enumerate(spec.access_logging):
        names = [p.name for p in logging.providers]
        problems += _problems(view, space, names, f"spec.accessLogging[{index}].providers[{{}}].name", _LOGS)
    for index, metrics in enumerate(spec.metrics):
        path = f"spec.metrics[{index}]"
        names = [p.name for p in metrics.providers]
        problems += _problems(view, space, names, f"{path}.providers[{{}}].name", _METRICS)
        for number, override in enumerate(metrics.overrides):
            problems += _override_problems(override, f"{path}.overrides[{number}]")
        if not names and not _default_metrics(view):
            reason = "no provider of metrics: name one here or in defaultProviders of the mesh config"
            problems.append(Problem(path, f"{reason}; it applies only where another Telemetry does", Severity.WARNING))
    return tuple(problems)


@derived
def default_provider_problems(view: View) -> tuple[Problem, ...]:
    """Problems of the mesh config's default providers, and of providers' headers, with their paths in it."""
    headers = _header_problems(view)
    defaults = view.mesh().default_providers
    if defaults is None:
        return headers
    root = view.root_namespace
    return (
        *_problems(view, root, defaults.tracing[:1], "defaultProviders.tracing[{}]", _TRACES),
        *_problems(view, root, defaults.access_logging, "defaultProviders.accessLogging[{}]", _LOGS),
        *_problems(view, root, defaults.metrics, "defaultProviders.metrics[{}]", _METRICS),
        *headers,
    )


@attrs.frozen
class _Purpose:
    """A use of providers."""

    name: str
    fields: tuple[str, ...]
    """The kinds of providers that serve it, by the field of a provider."""
    effect: str
    """The consequence of a provider that cannot be used."""


_TRACES = _Purpose("traces", TRACING_PROVIDER_FIELDS, "nothing is traced")
_LOGS = _Purpose("access logs", LOG_PROVIDER_FIELDS, "nothing is logged to it")
_METRICS = _Purpose("metrics", METRIC_PROVIDER_FIELDS, "it is given no metrics")


def _problems(view: View, namespace: str, names: Sequence[str], path: str, purpose: _Purpose) -> Iterator[Problem]:
    """An error for a provider that is nowhere in the mesh, a warning for one that cannot be reached."""
    for index, name in enumerate(names):
        if reason := _never_reason(view, name, purpose):
            yield Problem(path.format(index), f"{reason}: {purpose.effect}", Severity.ERROR)
        elif reason := _unreachable(view, namespace, name, purpose):
            yield Problem(path.format(index), f"{reason}: {purpose.effect}", Severity.WARNING)


@derived
def _header_problems(view: View) -> tuple[Problem, ...]:
    """Warnings about headers of providers whose values the environment of the control plane does not have."""
    found = []
    for provider in view.mesh().extension_providers:
        for path, headers in _headers(provider):
            for number, header in enumerate(headers):
                if header.env_name is not None and header_value(header) is None:
                    reason = f"the environment of the control plane has no variable {header.env_name} that can be sent"
                    where = f"extensionProviders[{provider.name}].{path}[{number}].envName"
                    found.append(Problem(where, f"{reason}: the header is left out", Severity.WARNING))
    return tuple(found)


def _headers(provider: Provider) -> Iterator[tuple[str, Sequence[Header]]]:
    """The headers of a provider's calls, with their paths in it."""
    if provider.zipkin is not None:
        yield "zipkin.headers", provider.zipkin.headers
    otel = provider.opentelemetry
    if otel is None:
        return
    if otel.http is not None:
        yield "opentelemetry.http.headers", otel.http.headers
    if otel.grpc is not None:
        yield "opentelemetry.grpc.initialMetadata", otel.grpc.initial_metadata
    sampler = otel.dynatrace_sampler
    if sampler is not None and sampler.http_service is not None and sampler.http_service.http is not None:
        yield "opentelemetry.dynatraceSampler.httpService.http.headers", sampler.http_service.http.headers


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


def _never_reason(view: View, name: str, purpose: _Purpose) -> str:
    """The reason why no proxy can use a provider; empty if some may."""
    provider = extension_provider(view, name)
    if provider is not None and _field(provider, purpose):
        return ""
    gone = next((kind for kind in NO_TRACER if provider is not None and getattr(provider, kind) is not None), "")
    if gone:
        return f"extension provider {name} is one of kind {gone}, for which Envoy has no tracer; use opentelemetry"
    missing = f"the mesh config has no extension provider {name}" if provider is None else ""
    given = f"extension provider {name} is not one for {purpose.name}"
    return f"{missing or given}; {_known(view, purpose)}"


def _known(view: View, purpose: _Purpose) -> str:
    """The providers that could be named instead."""
    providers = [*view.mesh().extension_providers, *BUILT_IN.values()]
    names = list(dict.fromkeys(provider.name for provider in providers if _field(provider, purpose)))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    shown = ", ".join(names[:NAMES_SHOWN])
    return f"there {'is' if len(names) == 1 else 'are'} {shown}{more}" if names else f"there is none for {purpose.name}"


def _field(provider: Provider, purpose: _Purpose) -> str:
    return next((field for field in purpose.fields if getattr(provider, field) is not None), "")


def _unreachable(view: View, namespace: str, name: str, purpose: _Purpose) -> str:
    provider = extension_provider(view, name)
    settings = getattr(provider, _field(provider, purpose)) if provider is not None else None
    otel = settings if isinstance(settings, OpenTelemetry) else None
    sampler = otel.dynatrace_sampler if otel is not None else None
    if otel is not None and sampler is not None and sampler.http_service is None and otel.http is None:
        return f"extension provider {name}: its dynatraceSampler needs an httpService, or http of the provider"
    for reached in (settings, sampler.http_service if sampler is not None else None):
        service, port = getattr(reached, "service", ""), getattr(reached, "port", 0)
        if service and provider_cluster(view, namespace, service, port) is None:
            return f"extension provider {name}: namespace {namespace} sees no service {service} with port {port}"
    return ""
