"""Rules for the `extensionProviders` of the MeshConfig; all warnings, because a provider may never be used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from mesh_pilot.api.google.protobuf import Struct
from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshConfigAccessLogEncoding
from mesh_pilot.istio.rules.context import error, warning
from mesh_pilot.istio.rules.names import fqdn_or_ip_reason, port_reason, scoped_host_reason, small_number
from mesh_pilot.istio.rules.substitution import log_format_reason
from mesh_pilot.istio.rules.values import changed_header_reason, header_value_reason
from mesh_pilot.model.config import Problem

Provider = mesh_api.MeshConfigExtensionProvider
Header = mesh_api.MeshConfigExtensionProviderHttpHeader
HttpProvider = mesh_api.MeshConfigExtensionProviderEnvoyExternalAuthorizationHttpProvider
GrpcProvider = mesh_api.MeshConfigExtensionProviderEnvoyExternalAuthorizationGrpcProvider

_HEADER_NAME = re.compile(r"[0-9A-Za-z!#$%&'*+.^_|~`-]{1,16384}")
_TIMEOUT_LIMIT = timedelta(seconds=1 << 32)

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
    """Unique names, one kind each, services that can be reached."""
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
    # Most kinds have a service and a port; what else one has is checked by its own function below.
    if hasattr(settings, "service") and hasattr(settings, "port"):
        yield from _warn(f"{path}.{name}.service", service_reason(settings.service))
        yield from _warn(f"{path}.{name}.port", port_reason(settings.port))
    if provider.lightstep is not None and not provider.lightstep.access_token:
        yield warning(f"{path}.lightstep.accessToken", "is missing")
    otel = provider.opentelemetry
    if otel is not None and otel.http is not None and otel.grpc is not None:
        yield warning(f"{path}.opentelemetry.grpc", "http and grpc exclude each other")
    yield from _check_tracers(path, provider)
    yield from _check_logs(path, provider)
    for authz in (provider.envoy_ext_authz_http, provider.envoy_ext_authz_grpc):
        if authz is not None and authz.status_on_error and not _is_status(authz.status_on_error):
            yield warning(f"{path}.{name}.statusOnError", f'"{authz.status_on_error}" is not an HTTP status')
        for field, reason in authorizer_reasons(authz) if authz is not None else ():
            yield warning(f"{path}.{name}.{field}", f"{reason}: all that it should be asked about is denied")


def authorizer_reasons(settings: HttpProvider | GrpcProvider) -> Iterator[tuple[str, str]]:
    """(Field, reason) for each field with which Envoy refuses to ask a provider for authorization."""
    if settings.timeout is not None and not is_call_timeout(settings.timeout):
        yield "timeout", "is not between 0s and 136 years"
    body = settings.include_request_body_in_check
    if body is not None and not body.max_request_bytes:
        yield "includeRequestBodyInCheck.maxRequestBytes", "is missing or 0"
    if isinstance(settings, GrpcProvider):
        return
    if settings.path_prefix and not settings.path_prefix.startswith("/"):
        yield "pathPrefix", f'"{settings.path_prefix}" does not start with "/"'
    for name, value in settings.include_additional_headers_in_check.items():
        if reason := changed_header_reason(name) or header_value_reason(value):
            yield f"includeAdditionalHeadersInCheck[{name}]", reason


def _check_tracers(path: str, provider: Provider) -> Iterator[Problem]:
    """Timeouts and headers of calls to trace collectors."""
    zipkin, otel = provider.zipkin, provider.opentelemetry
    if zipkin is not None:
        yield from _check_call(f"{path}.zipkin", zipkin.timeout, "headers", zipkin.headers)
    if otel is not None and otel.http is not None:
        yield from _check_call(f"{path}.opentelemetry.http", otel.http.timeout, "headers", otel.http.headers)
    if otel is not None and otel.grpc is not None:
        metadata = otel.grpc.initial_metadata
        yield from _check_call(f"{path}.opentelemetry.grpc", otel.grpc.timeout, "initialMetadata", metadata)
    sampler = otel.dynatrace_sampler.http_service if otel is not None and otel.dynatrace_sampler is not None else None
    if sampler is not None:
        here = f"{path}.opentelemetry.dynatraceSampler.httpService"
        yield from _warn(f"{here}.service", service_reason(sampler.service))
        yield from _warn(f"{here}.port", port_reason(sampler.port))
        if sampler.http is None:
            yield warning(f"{here}.http", "is missing: nothing is traced")
        else:
            yield from _check_call(f"{here}.http", sampler.http.timeout, "headers", sampler.http.headers)


def _check_logs(path: str, provider: Provider) -> Iterator[Problem]:
    """Files and formats of access logs."""
    file, otel = provider.envoy_file_access_log, provider.envoy_otel_als
    if file is not None and file.log_format is not None:
        yield from _check_format(f"{path}.envoyFileAccessLog.logFormat", file.log_format.text, file.log_format.labels)
    if otel is not None and otel.log_format is not None:
        yield from _check_format(f"{path}.envoyOtelAls.logFormat", otel.log_format.text, otel.log_format.labels)


def _check_format(path: str, text: str | None, labels: Struct | None) -> Iterator[Problem]:
    if reason := log_format_reason(text or ""):
        yield warning(f"{path}.text", f"{reason}; the default is used")
    for name, reason in field_reasons(labels.to_dict()).items() if labels is not None else ():
        yield warning(f"{path}.labels.{name}", f"is left out: {reason}")


def _check_call(path: str, timeout: timedelta | None, name: str, headers: Sequence[Header]) -> Iterator[Problem]:
    if timeout is not None and not is_call_timeout(timeout):
        yield warning(f"{path}.timeout", "is not between 0s and 136 years: the default is used")
    for index, header in enumerate(headers):
        reason = call_header_reason(header)
        if reason:
            yield warning(f"{path}.{name}[{index}]", f"is left out: {reason}")


def is_call_timeout(value: timedelta) -> bool:
    """True if Envoy accepts it as the timeout of a call."""
    return timedelta(0) <= value < _TIMEOUT_LIMIT


def call_header_reason(header: Header) -> str:
    """The reason why Envoy refuses a header of a provider's calls; empty if it is valid or has no fixed value."""
    if not _HEADER_NAME.fullmatch(header.name):
        return f"{header.name[:40]!r} is not a header name"
    return header_value_reason(header.value or "")


def service_reason(service: str) -> str:
    """The fault in a provider's service: a host name, an IP address, or `namespace/host`."""
    if not service:
        return "is missing"
    return scoped_host_reason(service, gateway=False) if "/" in service else fqdn_or_ip_reason(service)


def _is_status(text: str) -> bool:
    return 100 <= (small_number(text) or 0) <= 599


def _warn(path: str, reason: str) -> Iterator[Problem]:
    if reason:
        yield warning(path, reason)


# -- rules for the formats of access logs: a line, or a JSON object with a format in each text


def check_mesh_log(mesh: MeshConfig) -> Iterator[Problem]:
    """The format of the mesh's own log file; if there is none, of the provider ``envoy``, which may never be used."""
    text = mesh.access_log_format
    tell = error if mesh.access_log_file else warning
    if text and mesh.access_log_encoding != MeshConfigAccessLogEncoding.JSON:
        if reason := log_format_reason(text):
            yield tell("accessLogFormat", reason)
    elif text:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return  # the default is used, with a warning
        for name, reason in field_reasons(fields).items() if isinstance(fields, Mapping) else ():
            yield tell("accessLogFormat", f"field {name}: {reason}")


def field_reasons(fields: Mapping[str, object]) -> dict[str, str]:
    """The fields of a JSON format that Envoy refuses, with the reasons."""
    found = ((name, next(_reasons(value), "")) for name, value in fields.items())
    return {name: reason for name, reason in found if reason}


def _reasons(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if reason := log_format_reason(value):
            yield reason
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _reasons(item)
