"""Filters of HTTPRoutes and GRPCRoutes as settings of a VirtualService's route."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from mesh_pilot.api.istio.networking.v1alpha3 import (
    CorsPolicy,
    CorsPolicyUnmatchedPreflights,
    ExternalAuth,
    Headers,
    HeadersHeaderOperations,
    HttpMirrorPolicy,
    HttpRedirect,
    HttpRedirectRedirectPortSelection,
    HttpRewrite,
    Percent,
    RegexRewrite,
    StringMatch,
)
from mesh_pilot.api.k8s.io.gateway_api.v1 import (
    GrpcRouteFilter,
    HttpCorsFilter,
    HttpExternalAuthFilter,
    HttpHeader,
    HttpHeaderFilter,
    HttpRequestMirrorFilter,
    HttpRequestRedirectFilter,
    HttpRouteFilter,
    HttpUrlRewriteFilter,
)
from mesh_pilot.istio.gateway_api.conditions import Fault
from mesh_pilot.istio.gateway_api.route_backends import BackendResolver, RuleError
from mesh_pilot.istio.rules.regex import quoted
from mesh_pilot.istio.rules.substitution import header_format_reason

INVALID_FILTER = "InvalidFilter"
_ANY_ORIGIN = r"^[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s?#]+$"
_REPLACE_FULL_PATH, _REPLACE_PREFIX = "ReplaceFullPath", "ReplacePrefixMatch"


RouteFilter = HttpRouteFilter | GrpcRouteFilter


def headers_of(filters: Iterable[RouteFilter]) -> Headers | None:
    """The changes of headers that filters make."""
    request = response = None
    for each in filters:
        if each.type == "RequestHeaderModifier":
            request = _operations(each.request_header_modifier)
        elif each.type == "ResponseHeaderModifier":
            response = _operations(each.response_header_modifier)
    return None if request is None and response is None else Headers(request=request, response=response)


def refuse_other_filters(filters: Iterable[RouteFilter], known: Sequence[str]) -> None:
    """Raise RuleError for a filter of another type."""
    for each in filters:
        if each.type not in known:
            raise RuleError(INVALID_FILTER, f'unsupported filter type "{each.type}"')


def _operations(headers: HttpHeaderFilter | None) -> HeadersHeaderOperations | None:
    if headers is None:
        return None
    for header in (*headers.set, *headers.add):
        if any((ord(character) < 0x20 and character != "\t") or character == "\x7f" for character in header.value):
            raise RuleError(INVALID_FILTER, f'header "{header.name}" value contains invalid characters')
    return HeadersHeaderOperations(add=_by_name(headers.add), set=_by_name(headers.set), remove=list(headers.remove))


def _by_name(headers: Iterable[HttpHeader]) -> dict[str, str]:
    """Values by name in lower case; of several, the first counts."""
    found: dict[str, str] = {}
    for header in headers:
        # Envoy's commands, such as %DOWNSTREAM_REMOTE_ADDRESS%, work as in a VirtualService; other percent signs are
        # meant literally.
        value = header.value.replace("%", "%%") if header_format_reason(header.value) else header.value
        found.setdefault(header.name.lower(), value)
    return found


def rewrite_of(rewrite: HttpUrlRewriteFilter) -> HttpRewrite | None:
    """The rewrite of a URLRewrite; None if it changes nothing."""
    made = HttpRewrite(authority=rewrite.hostname or "")
    if (path := rewrite.path) is not None:
        if path.type == _REPLACE_PREFIX:
            made.uri = (path.replace_prefix_match or "").removesuffix("/") or "/"  # "/": the prefix is removed
        elif path.type == _REPLACE_FULL_PATH:
            made.uri_regex_rewrite = RegexRewrite(
                match="/.*", rewrite=(path.replace_full_path or "/").replace("\\", "\\\\")
            )
    return made if made.uri or made.authority or made.uri_regex_rewrite is not None else None


def redirect_of(redirect: HttpRequestRedirectFilter) -> HttpRedirect:
    """The redirect of a RequestRedirect. Without a port it keeps that of the request, unless the scheme changes."""
    made = HttpRedirect(
        authority=redirect.hostname or "", scheme=redirect.scheme or "", redirect_code=redirect.status_code or 0
    )
    if redirect.port is not None:
        made.port = redirect.port
    elif redirect.scheme is not None:
        made.derive_port = HttpRedirectRedirectPortSelection.FROM_PROTOCOL_DEFAULT
    else:
        made.derive_port = HttpRedirectRedirectPortSelection.FROM_REQUEST_PORT
    if (path := redirect.path) is not None:
        if path.type == _REPLACE_FULL_PATH:
            made.uri = path.replace_full_path or "/"
        elif path.type == _REPLACE_PREFIX:
            made.prefix_rewrite = path.replace_prefix_match or "/"
    return made


def cors_of(cors: HttpCorsFilter) -> CorsPolicy:
    """The CORS policy of a filter; preflights of other origins are answered without reaching a backend."""
    return CorsPolicy(
        allow_origins=[_origin(origin) for origin in cors.allow_origins if origin],
        allow_credentials=True if cors.allow_credentials else None,
        allow_methods=list(cors.allow_methods),
        allow_headers=list(cors.allow_headers),
        expose_headers=list(cors.expose_headers),
        max_age=timedelta(seconds=cors.max_age) if cors.max_age else None,
        unmatched_preflights=CorsPolicyUnmatchedPreflights.IGNORE,
    )


def _origin(origin: str) -> StringMatch:
    if origin == "*":
        return StringMatch(regex=_ANY_ORIGIN)
    if "*" not in origin:
        return StringMatch(exact=origin)
    if origin.count("*") == 1 and origin.endswith("*"):
        return StringMatch(prefix=origin.removesuffix("*"))
    return StringMatch(regex=f"^{'.*'.join(map(quoted, origin.split('*')))}$")


def mirror_of(
    mirror: HttpRequestMirrorFilter, backends: BackendResolver
) -> tuple[HttpMirrorPolicy | None, Fault | None]:
    """The mirror of a RequestMirror; none where its backend has a fault. Raises RuleError."""
    if mirror.backend_ref is None:
        return None, None
    destination, fault = backends.destination(mirror.backend_ref)
    if fault is not None:
        return None, fault
    percentage = None
    if mirror.fraction is not None:
        denominator = 100 if mirror.fraction.denominator is None else mirror.fraction.denominator
        percentage = Percent(value=100 * mirror.fraction.numerator / denominator)
    elif mirror.percent is not None:
        percentage = Percent(value=float(mirror.percent))
    return HttpMirrorPolicy(destination=destination, percentage=percentage), None


def external_auth_of(
    auth: HttpExternalAuthFilter, backends: BackendResolver
) -> tuple[ExternalAuth | None, Fault | None]:
    """The server that an ExternalAuth asks; none where it has a fault: then no request may pass. Raises RuleError."""
    if auth.backend_ref is None:
        return None, None
    grpc = auth.protocol == "GRPC"
    destination, fault = backends.destination(auth.backend_ref)
    fault = fault or backends.call_fault(destination, http2=grpc)
    if fault is not None:
        return None, fault
    path = auth.http.path if auth.http is not None and auth.http.path else ""
    headers = auth.grpc.allowed_headers if auth.grpc is not None else []
    made = ExternalAuth(
        destination=destination,
        grpc=grpc,
        path_prefix=f"/{path.strip('/')}".removesuffix("/"),
        allowed_headers=list(auth.http.allowed_headers if auth.http is not None else headers),
        allowed_response_headers=list(auth.http.allowed_response_headers) if auth.http is not None else [],
        max_body=auth.forward_body.max_size if auth.forward_body is not None else 0,
    )
    return made, None
