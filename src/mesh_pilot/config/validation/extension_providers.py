"""Rules for the `extensionProviders` of the MeshConfig; all warnings, because a provider may never be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigExtensionProvider as Provider
from mesh_pilot.config.validation.context import warning
from mesh_pilot.config.validation.hosts import scoped_host_reason
from mesh_pilot.config.validation.names import fqdn_or_ip_reason, port_reason, small_number
from mesh_pilot.model.config import Problem

_KINDS = {
    "envoyExtAuthzHttp": "envoy_ext_authz_http",
    "envoyExtAuthzGrpc": "envoy_ext_authz_grpc",
    "zipkin": "zipkin",
    "lightstep": "lightstep",
    "datadog": "datadog",
    "stackdriver": "stackdriver",
    "opencensus": "opencensus",
    "skywalking": "skywalking",
    "opentelemetry": "opentelemetry",
    "prometheus": "prometheus",
    "envoyFileAccessLog": "envoy_file_access_log",
    "envoyHttpAls": "envoy_http_als",
    "envoyTcpAls": "envoy_tcp_als",
    "envoyOtelAls": "envoy_otel_als",
    "sds": "sds",
}


def check_providers(path: str, providers: Sequence[Provider]) -> Iterator[Problem]:
    """Names that differ, one kind each, services that can be reached."""
    seen: set[str] = set()
    for index, provider in enumerate(providers):
        here = f"{path}[{index}]"
        if not provider.name:
            yield warning(f"{here}.name", "is missing")
        elif provider.name in seen:
            yield warning(f"{here}.name", f'"{provider.name}" is given twice')
        seen.add(provider.name)
        yield from _check_provider(here, provider)


def _check_provider(path: str, provider: Provider) -> Iterator[Problem]:
    name = next((kind for kind, field in _KINDS.items() if getattr(provider, field) is not None), None)
    if name is None:
        yield warning(path, f"needs one of {', '.join(_KINDS)}")
        return
    settings = getattr(provider, _KINDS[name])
    if hasattr(settings, "service") and hasattr(settings, "port"):
        yield from _warn(f"{path}.{name}.service", service_reason(settings.service))
        yield from _warn(f"{path}.{name}.port", port_reason(settings.port))
    if provider.lightstep is not None and not provider.lightstep.access_token:
        yield warning(f"{path}.lightstep.accessToken", "is missing")
    otel = provider.opentelemetry
    if otel is not None and otel.http is not None and otel.grpc is not None:
        yield warning(f"{path}.opentelemetry.grpc", "http and grpc exclude each other")
    for authz in (provider.envoy_ext_authz_http, provider.envoy_ext_authz_grpc):
        if authz is not None and authz.status_on_error and not _is_status(authz.status_on_error):
            yield warning(f"{path}.{name}.statusOnError", f'"{authz.status_on_error}" is not an HTTP status')
    http = provider.envoy_ext_authz_http
    if http is not None and http.path_prefix and not http.path_prefix.startswith("/"):
        yield warning(f"{path}.{name}.pathPrefix", f'"{http.path_prefix}" does not start with "/"')


def service_reason(service: str) -> str:
    """For a provider's service: a host name, an IP address, or `namespace/host`."""
    if not service:
        return "is missing"
    return scoped_host_reason(service, gateway=False) if "/" in service else fqdn_or_ip_reason(service)


def _is_status(text: str) -> bool:
    return 100 <= (small_number(text) or 0) <= 599


def _warn(path: str, reason: str) -> Iterator[Problem]:
    if reason:
        yield warning(path, reason)
