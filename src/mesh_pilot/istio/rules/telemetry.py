"""Rules for Telemetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mesh_pilot.api.istio.mesh.v1alpha1 import TracingCustomTag as MeshTag
from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.istio.rules.cel import cel_reason
from mesh_pilot.istio.rules.common import check_match_labels, check_targets, warn_of_waypoints
from mesh_pilot.istio.rules.context import Context, check, check_parts, check_values, error, warning
from mesh_pilot.istio.rules.substitution import format_reason
from mesh_pilot.istio.rules.values import duration_reason, header_name_reason, percent_reason
from mesh_pilot.model.config import Problem

_MESH_TAGS = "literal, header and environment"


def validate(spec: api.Telemetry, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a Telemetry."""
    yield from check_match_labels(spec.selector)
    yield from check_targets(spec.selector is not None, spec.target_ref, spec.target_refs, context)
    yield from warn_of_waypoints(spec.target_ref, spec.target_refs)
    yield from check_parts("spec", spec, _check_tracing, "tracing")
    yield from check_parts("spec", spec, _check_metrics, "metrics")
    yield from check_parts("spec", spec, _check_logging, "access_logging")


def _check_providers(path: str, providers: Sequence[api.ProviderRef]) -> Iterator[Problem]:
    for index, provider in enumerate(providers):
        if not provider.name:
            yield error(f"{path}.providers[{index}].name", "is missing")


def _check_tracing(path: str, tracing: api.Tracing) -> Iterator[Problem]:
    yield from _check_providers(path, tracing.providers)
    if len(tracing.providers) > 1:
        yield warning(f"{path}.providers", "has several entries; the first is used")
    yield from check_values(path, tracing, percent_reason, "random_sampling_percentage")
    yield from check_custom_tags(f"{path}.customTags", tracing.custom_tags)


def check_custom_tags(path: str, tags: Mapping[str, api.TracingCustomTag | MeshTag]) -> Iterator[Problem]:
    """The tags of spans, by name."""
    for name, tag in tags.items():
        if not name:
            yield error(f"{path}[{name}]", "a tag must have a name")
        yield from _check_tag(f"{path}[{name}]", tag)


def _check_tag(path: str, tag: api.TracingCustomTag | MeshTag) -> Iterator[Problem]:
    if tag.literal is not None:
        if not tag.literal.value:
            yield error(f"{path}.literal.value", "is missing")
    elif tag.header is not None:
        yield from check(
            f"{path}.header.name", header_name_reason(tag.header.name) if tag.header.name else "is missing"
        )
    elif tag.environment is not None:
        if not tag.environment.name:
            yield error(f"{path}.environment.name", "is missing")
    elif not isinstance(tag, api.TracingCustomTag) or tag.formatter is None:
        known = "literal, header, environment and formatter" if isinstance(tag, api.TracingCustomTag) else _MESH_TAGS
        yield warning(path, f"has no effect: needs one of {known}")
    else:
        reason = format_reason(tag.formatter.value) if tag.formatter.value else "is missing"
        yield from check(f"{path}.formatter.value", reason)


def _check_metrics(path: str, metrics: api.Metrics) -> Iterator[Problem]:
    yield from _check_providers(path, metrics.providers)
    yield from check_values(path, metrics, duration_reason, "reporting_interval")
    for index, override in enumerate(metrics.overrides):
        here = f"{path}.overrides[{index}]"
        if override.match is not None and override.match.custom_metric == "":
            yield error(f"{here}.match.customMetric", "must not be empty")
        for name, tag in override.tag_overrides.items():
            where = f"{here}.tagOverrides[{name}]"
            if not name:
                yield error(where, "a tag must have a name")
            if tag.operation == api.MetricsOverridesTagOverrideOperation.UPSERT:
                if not tag.value:
                    yield error(f"{where}.value", "is missing: operation UPSERT needs it")
            elif tag.value:
                yield error(f"{where}.value", "goes with operation UPSERT only")


def _check_logging(path: str, logging: api.AccessLogging) -> Iterator[Problem]:
    yield from _check_providers(path, logging.providers)
    if logging.filter is not None:
        if not logging.filter.expression.strip():
            yield warning(f"{path}.filter.expression", "is empty: everything is logged")
        else:
            yield from check(f"{path}.filter.expression", cel_reason(logging.filter.expression))
