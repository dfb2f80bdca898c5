"""Extension providers: those that policies name, and their services."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mesh_pilot.api.istio.security import v1beta1 as security
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import MeshConfigValue


def policies(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """CUSTOM policies whose provider is not in the mesh config, or whose provider's service does not exist."""
    known = {p.name: p for p in survey.mesh.extension_providers}
    for config in survey.of("AuthorizationPolicy"):
        spec: security.AuthorizationPolicy = config.spec
        if spec.action is not security.AuthorizationPolicyAction.CUSTOM or spec.provider is None:
            continue
        name = spec.provider.name
        if name not in known:
            names = f"there are {', '.join(known)}" if known else "none exists"
            reason = f"the mesh config has no extensionProvider {name}: {names}"
            yield found(codes.UNKNOWN_PROVIDER, config, "spec.provider.name", reason)
            continue
        for _, reason in _missing(survey, known[name], config.namespace):
            detail = f"extensionProvider {name}: {reason}; what the policy matches is denied"
            yield found(codes.UNKNOWN_PROVIDER, config, "spec.provider.name", detail)


def services(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Providers of the mesh config, of all kinds, whose service or port does not exist."""
    settings = next((s for s in survey.picture.settings if isinstance(s, MeshConfigValue)), None)
    if settings is None:
        return
    config = Config(ConfigKey("MeshConfig", "", ""), None, origin=settings.origin)
    for provider in survey.mesh.extension_providers:
        for field, reason in _missing(survey, provider, survey.root_namespace):
            path = f"extensionProviders[{provider.name}].{field}"
            yield found(codes.UNUSABLE_REFERENCE, config, path, reason)


def _missing(survey: AnalysisContext, provider: Any, namespace: str) -> Iterator[tuple[str, str]]:
    """The fields of a provider that name a service or port that does not exist, and the reasons."""
    for path, settings in _callees(provider):
        named, port = settings.service, settings.port
        place, _, host = named.rpartition("/")
        full = survey.full_host(host, place or namespace)
        declared = [k for k in survey.hosts.named(full) if place in ("", k.namespace)]
        wildcard = survey.hosts.find(host, place or namespace)
        # A wildcard service has the host as well, with its own ports. Hosts of registries that are not read may exist.
        if not declared and wildcard is not None and wildcard.host.startswith("*"):
            declared = [wildcard]
        if not declared:
            if not survey.hosts.may_be_elsewhere(full):
                near = survey.hosts.meant(host, place or namespace)
                yield f"{path}.service", f"no service {named} is known" + (f"; did you mean {near}?" if near else "")
        elif not any(each.number == port for host_ in declared for each in host_.ports):
            ports = ", ".join(str(each.number) for each in declared[0].ports) or "none"
            yield f"{path}.port", f"{named} has no port {port}; its ports are {ports}"


def _callees(provider: Any) -> Iterator[tuple[str, Any]]:
    """The settings of a provider that name a service and a port, with their paths."""
    for name in _KINDS:
        settings = getattr(provider, name, None)
        if settings is None:
            continue
        path = _camel(name)
        if getattr(settings, "service", "") and getattr(settings, "port", 0):
            yield path, settings
        sampler = getattr(settings, "dynatrace_sampler", None)
        called = sampler.http_service if sampler is not None else None
        if called is not None and called.service:
            yield f"{path}.dynatraceSampler.httpService", called


_KINDS = (
    "envoy_ext_authz_http", "envoy_ext_authz_grpc", "zipkin", "lightstep", "datadog", "opencensus", "skywalking",
    "opentelemetry", "envoy_http_als", "envoy_tcp_als", "envoy_otel_als",
)  # fmt: skip


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)
