"""Rules for the filters and backends of HTTPRoutes and GRPCRoutes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.rules.context import check, check_parts, error
from mesh_pilot.istio.rules.gateway_references import (
    Reference,
    check_backend,
    check_count,
    check_distinct,
    check_one_of,
    check_port,
    check_reference,
    hostname_reason,
)
from mesh_pilot.istio.rules.values import TOKEN, changed_header_reason, header_text_reason
from mesh_pilot.model.config import Problem

_ORIGIN = re.compile(r"\*|https?://(((\*\.)?([a-zA-Z0-9-]+\.)*[a-zA-Z0-9-]+|\*)(:[0-9]{1,5})?)")
_CORS_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*")
_STATUS_CODES = (301, 302, 303, 307, 308)
_FIELDS = {
    "RequestHeaderModifier": ("request_header_modifier", "requestHeaderModifier"),
    "ResponseHeaderModifier": ("response_header_modifier", "responseHeaderModifier"),
    "RequestMirror": ("request_mirror", "requestMirror"),
    "RequestRedirect": ("request_redirect", "requestRedirect"),
    "URLRewrite": ("url_rewrite", "urlRewrite"),
    "CORS": ("cors", "cors"),
    "ExternalAuth": ("external_auth", "externalAuth"),
    "ExtensionRef": ("extension_ref", "extensionRef"),
}
"""The field of each type of filter: its Python name and its own."""

_MAX_BODY = 65535

PATH = re.compile(r"(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})+")
"""A path as the Gateway API has it, whole."""

_GRPC_TYPES = ("RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror", "ExtensionRef")
_REPEATABLE = ("RequestMirror", "ExtensionRef", "ExternalAuth")


class Weighted(Reference, Protocol):
    """A backend with a weight."""

    @property
    def weight(self) -> int | None: ...


def check_weighted(path: str, backends: Sequence[Weighted]) -> Iterator[Problem]:
    """The backends of a rule."""
    yield from check_count(path, backends, 16)
    for index, backend in enumerate(backends):
        here = f"{path}[{index}]"
        yield from check_backend(here, backend)
        if backend.weight is not None and not 0 <= backend.weight <= 1_000_000:
            yield error(f"{here}.weight", f"{backend.weight} is out of range; 0 to 1000000")


def check_filters(
    path: str, filters: Sequence[api.HttpRouteFilter | api.GrpcRouteFilter], *, has_one_prefix: bool = True
) -> Iterator[Problem]:
    """The filters of a rule or a backend; `has_one_prefix`: its only match is one of a path's prefix."""
    yield from check_count(path, filters, 16)
    for index, each in enumerate(filters):
        yield from _check_filter(f"{path}[{index}]", each)
        yield from _check_prefix_rewrites(f"{path}[{index}]", each, has_one_prefix)
    types = [each.type for each in filters]
    yield from check_distinct(path, (t if t not in _REPEATABLE else None for t in types), "has the same type as")
    if "RequestRedirect" in types and "URLRewrite" in types:
        yield error(path, "only one of RequestRedirect and URLRewrite may be used")


def _check_filter(path: str, each: api.HttpRouteFilter | api.GrpcRouteFilter) -> Iterator[Problem]:
    allowed = tuple(_FIELDS) if isinstance(each, api.HttpRouteFilter) else _GRPC_TYPES
    yield from check_one_of(f"{path}.type", each.type, allowed, required=True)
    for type in allowed:
        field, name = _FIELDS[type]
        there = getattr(each, field) is not None
        if there and each.type != type and each.type in allowed:
            yield error(f"{path}.{name}", f"can't be set with type {each.type}; it is for {type}")
        elif not there and each.type == type:
            yield error(f"{path}.{name}", f"is missing: type {type} needs it")
    if each.request_header_modifier is not None:
        yield from _check_headers(f"{path}.requestHeaderModifier", each.request_header_modifier, request=True)
    if each.response_header_modifier is not None:
        yield from _check_headers(f"{path}.responseHeaderModifier", each.response_header_modifier, request=False)
    yield from check_parts(path, each, _check_mirror, "request_mirror")
    if each.extension_ref is not None:
        yield from check_reference(f"{path}.extensionRef", each.extension_ref, required=True)
    if isinstance(each, api.HttpRouteFilter):
        yield from _check_http_filter(path, each)


def _check_http_filter(path: str, each: api.HttpRouteFilter) -> Iterator[Problem]:
    yield from check_parts(path, each, _check_redirect, "request_redirect")
    yield from check_parts(path, each, _check_rewrite, "url_rewrite")
    yield from check_parts(path, each, _check_cors, "cors")
    yield from check_parts(path, each, _check_external_auth, "external_auth")


def _check_prefix_rewrites(
    path: str, each: api.HttpRouteFilter | api.GrpcRouteFilter, has_one_prefix: bool
) -> Iterator[Problem]:
    if isinstance(each, api.GrpcRouteFilter) or has_one_prefix:
        return
    for name, settings in (("requestRedirect", each.request_redirect), ("urlRewrite", each.url_rewrite)):
        if settings is not None and settings.path is not None and settings.path.type == "ReplacePrefixMatch":
            yield error(f"{path}.{name}.path", "ReplacePrefixMatch needs exactly one match, of type PathPrefix")


def check_header_name(path: str, name: str) -> Iterator[Problem]:
    """The name of a header or a query parameter."""
    if not name:
        yield error(path, "is missing")
    elif len(name) > 256 or not TOKEN.fullmatch(name):
        yield error(path, f'"{name[:80]}" is not a name: letters, digits and !#$%&\'*+-.^_`|~, at most 256')


def _check_headers(path: str, headers: api.HttpHeaderFilter, *, request: bool) -> Iterator[Problem]:
    lists: tuple[tuple[str, list[api.HttpHeader]], ...] = (("set", headers.set), ("add", headers.add))
    for name, entries in lists:
        here = f"{path}.{name}"
        yield from check_count(here, entries, 16)
        for index, header in enumerate(entries):
            yield from check_header_name(f"{here}[{index}].name", header.name)
            yield from check(f"{here}[{index}].name", changed_header_reason(header.name, authority=request))
            if not header.value:
                yield error(f"{here}[{index}].value", "is missing")
            elif len(header.value) > 4096:
                yield error(f"{here}[{index}].value", "is longer than 4096 characters")
            else:
                yield from check(f"{here}[{index}].value", header_text_reason(header.value))
        yield from check_distinct(here, (header.name or None for header in entries), "has the same name as")
    yield from check_count(f"{path}.remove", headers.remove, 16)
    for index, name in enumerate(headers.remove):
        yield from check_header_name(f"{path}.remove[{index}]", name)
        yield from check(f"{path}.remove[{index}]", changed_header_reason(name))
    yield from check_distinct(f"{path}.remove", headers.remove, "is the same as")


def _check_mirror(path: str, mirror: api.HttpRequestMirrorFilter) -> Iterator[Problem]:
    yield from check_parts(path, mirror, check_backend, "backend_ref", required=True)
    if mirror.percent is not None and mirror.fraction is not None:
        yield error(path, "only one of percent and fraction may be set")
    if mirror.percent is not None and not 0 <= mirror.percent <= 100:
        yield error(f"{path}.percent", f"{mirror.percent} is not a percentage; 0 to 100")
    if (fraction := mirror.fraction) is not None:
        denominator = 100 if fraction.denominator is None else fraction.denominator
        if denominator < 1:
            yield error(f"{path}.fraction.denominator", f"{denominator} is less than 1")
        elif not 0 <= fraction.numerator <= denominator:
            yield error(f"{path}.fraction.numerator", f"{fraction.numerator} is out of range; 0 to {denominator}")


def _check_redirect(path: str, redirect: api.HttpRequestRedirectFilter) -> Iterator[Problem]:
    yield from check_one_of(f"{path}.scheme", redirect.scheme, ("http", "https"))
    if redirect.hostname is not None:
        yield from check(f"{path}.hostname", hostname_reason(redirect.hostname, wildcard=False))
    yield from check_port(f"{path}.port", redirect.port)
    if redirect.status_code is not None and redirect.status_code not in _STATUS_CODES:
        known = ", ".join(map(str, _STATUS_CODES))
        yield error(f"{path}.statusCode", f"{redirect.status_code} is not allowed; {known}")
    yield from check_parts(path, redirect, _check_path_modifier, "path")


def _check_rewrite(path: str, rewrite: api.HttpUrlRewriteFilter) -> Iterator[Problem]:
    if rewrite.hostname is not None:
        yield from check(f"{path}.hostname", hostname_reason(rewrite.hostname, wildcard=False))
    yield from check_parts(path, rewrite, _check_path_modifier, "path")


def _check_path_modifier(path: str, modifier: api.HttpPathModifier) -> Iterator[Problem]:
    yield from check_one_of(f"{path}.type", modifier.type, ("ReplaceFullPath", "ReplacePrefixMatch"), required=True)
    for type, name, value in (
        ("ReplaceFullPath", "replaceFullPath", modifier.replace_full_path),
        ("ReplacePrefixMatch", "replacePrefixMatch", modifier.replace_prefix_match),
    ):
        if modifier.type == type and value is None:
            yield error(f"{path}.{name}", f"is missing: type {type} needs it")
        elif modifier.type != type and value is not None:
            yield error(f"{path}.{name}", f"can't be set with type {modifier.type}")
        elif value is not None and len(value) > 1024:
            yield error(f"{path}.{name}", "is longer than 1024 characters")
        elif value is not None:
            yield from check(f"{path}.{name}", header_text_reason(value))


def _check_cors(path: str, cors: api.HttpCorsFilter) -> Iterator[Problem]:
    for name, values, most in (
        ("allowOrigins", cors.allow_origins, 64),
        ("allowMethods", cors.allow_methods, 9),
        ("allowHeaders", cors.allow_headers, 64),
        ("exposeHeaders", cors.expose_headers, 64),
    ):
        yield from check_count(f"{path}.{name}", values, most)
        yield from check_distinct(f"{path}.{name}", values, "is the same as")
        if "*" in values and len(values) > 1 and name != "exposeHeaders":
            yield error(f"{path}.{name}", '"*" can\'t be combined with other entries')
    for index, origin in enumerate(cors.allow_origins):
        if len(origin) > 253 or not _ORIGIN.fullmatch(origin):
            reason = f'"{origin[:80]}" is not an origin, such as https://example.com, https://*.example.com or *'
            yield error(f"{path}.allowOrigins[{index}]", reason)
    for index, method in enumerate(cors.allow_methods):
        yield from check_one_of(f"{path}.allowMethods[{index}]", method, _CORS_METHODS)
    yield from check_parts(path, cors, check_header_name, "allow_headers", "expose_headers")
    if cors.max_age is not None and cors.max_age < 1:
        yield error(f"{path}.maxAge", f"{cors.max_age} is less than 1")


def _check_external_auth(path: str, auth: api.HttpExternalAuthFilter) -> Iterator[Problem]:
    yield from check_one_of(f"{path}.protocol", auth.protocol, ("HTTP", "GRPC"), required=True)
    yield from check_parts(path, auth, check_backend, "backend_ref", required=True)
    for protocol, name, settings in (("GRPC", "grpc", auth.grpc), ("HTTP", "http", auth.http)):
        if auth.protocol == protocol and settings is None:
            yield error(f"{path}.{name}", f"is missing: protocol {protocol} needs it")
        elif auth.protocol != protocol and settings is not None:
            yield error(f"{path}.{name}", f"can't be set with protocol {auth.protocol}")
    yield from check_parts(path, auth, _check_asked_over_grpc, "grpc")
    yield from check_parts(path, auth, _check_asked_over_http, "http")
    if auth.forward_body is not None and auth.forward_body.max_size > _MAX_BODY:
        yield error(f"{path}.forwardBody.maxSize", f"{auth.forward_body.max_size} is more than {_MAX_BODY} bytes")


def _check_asked_over_grpc(path: str, settings: api.GrpcAuthConfig) -> Iterator[Problem]:
    yield from _check_header_names(f"{path}.allowedHeaders", settings.allowed_headers)


def _check_asked_over_http(path: str, settings: api.HttpAuthConfig) -> Iterator[Problem]:
    yield from _check_header_names(f"{path}.allowedHeaders", settings.allowed_headers)
    yield from _check_header_names(f"{path}.allowedResponseHeaders", settings.allowed_response_headers)
    prefix = settings.path or ""
    if len(prefix) > 1024 or (prefix and not PATH.fullmatch(prefix)):
        yield error(f"{path}.path", f'"{prefix[:80]}" is not a path of at most 1024 characters')


def _check_header_names(path: str, names: Sequence[str]) -> Iterator[Problem]:
    yield from check_count(path, names, 64)
    for index, name in enumerate(names):
        yield from check_header_name(f"{path}[{index}]", name)
    yield from check_distinct(path, (name.lower() for name in names), "is the same as")
