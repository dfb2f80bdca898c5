"""Providers that Telemetry and the mesh config name and that can't be used: for the debug page and the log.

Validation sees one object at a time; whether there is such a provider, and its service, depends on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.envoy.telemetry import loggers as log_providers
from mesh_pilot.envoy.telemetry import tracers as trace_providers
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.extension_providers import Provider, extension_provider, provider_cluster
from mesh_pilot.model.config import ConfigKey, Problem, Severity
from mesh_pilot.world.view import View

KIND = "Telemetry"


@derived
def telemetry_problems(view: View, key: ConfigKey) -> tuple[Problem, ...]:
    """Warnings about the providers that a Telemetry names, by their paths in it."""
    config = view.config(key)
    if config is None:
        return ()
    spec: api.Telemetry = config.spec
    found: list[Problem] = []
    for index, tracing in enumerate(spec.tracing):
        names = [p.name for p in tracing.providers[:1]]
        found += _traces(view, key.namespace, names, f"spec.tracing[{index}].providers[{{}}].name")
    for index, logging in enumerate(spec.access_logging):
        names = [p.name for p in logging.providers]
        found += _logs(view, key.namespace, names, f"spec.accessLogging[{index}].providers[{{}}].name")
    return tuple(found)


@derived
def default_provider_problems(view: View) -> tuple[Problem, ...]:
    """Warnings about the mesh config's default providers, by their paths in it."""
    defaults = view.mesh().default_providers
    if defaults is None:
        return ()
    root = view.root_namespace
    return (
        *_traces(view, root, defaults.tracing[:1], "defaultProviders.tracing[{}]"),
        *_logs(view, root, defaults.access_logging, "defaultProviders.accessLogging[{}]"),
    )


def _traces(view: View, namespace: str, names: Sequence[str], path: str) -> Iterator[Problem]:
    for index, name in enumerate(names):
        reason = _reason(view, namespace, name, trace_providers.KINDS, "traces")
        if reason:
            yield Problem(path.format(index), f"{reason}: nothing is traced", severity=Severity.WARNING)


def _logs(view: View, namespace: str, names: Sequence[str], path: str) -> Iterator[Problem]:
    for index, name in enumerate(names):
        reason = _reason(view, namespace, name, log_providers.KINDS, "access logs")
        if reason:
            yield Problem(path.format(index), f"{reason}: nothing is logged to it", severity=Severity.WARNING)


def _reason(view: View, namespace: str, name: str, kinds: Sequence[str], purpose: str) -> str:
    """Why a provider can't be used by proxies of a namespace; empty if it can."""
    provider = extension_provider(view, name)
    if provider is None:
        return f"the mesh config has no extension provider {name}"
    kind = next((kind for kind in kinds if getattr(provider, kind) is not None), None)
    if kind is None:
        return f"extension provider {name} is not one for {purpose}"
    return _unreachable(view, namespace, provider, kind)


def _unreachable(view: View, namespace: str, provider: Provider, kind: str) -> str:
    settings = getattr(provider, kind)
    service, port = getattr(settings, "service", ""), getattr(settings, "port", 0)
    if not service or provider_cluster(view, namespace, service, port) is not None:
        return ""
    return f"extension provider {provider.name}: namespace {namespace} sees no service {service} with port {port}"
