"""Rules of routes as those of VirtualServices, with the fault that their references have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from mesh_pilot.api.istio.networking.v1alpha3 import (
    Destination,
    HttpDirectResponse,
    HttpMatchRequest,
    HttpRetry,
    HttpRoute,
    HttpRouteDestination,
    PortSelector,
    RouteDestination,
    TcpRoute,
    TlsMatchAttributes,
    TlsRoute,
)
from mesh_pilot.api.k8s.io.gateway_api.v1 import (
    BackendRef,
    GrpcBackendRef,
    GrpcRouteRule,
    HttpBackendRef,
    HttpRouteRetry,
    HttpRouteRule,
    HttpRouteTimeouts,
    StreamRouteRule,
)
from mesh_pilot.istio.gateway_api.conditions import Fault
from mesh_pilot.istio.gateway_api.route_backends import BackendResolver
from mesh_pilot.istio.gateway_api.route_filters import (
    cors_of,
    external_auth_of,
    headers_of,
    mirror_of,
    redirect_of,
    refuse_other_filters,
    rewrite_of,
)
from mesh_pilot.istio.gateway_api.route_matches import grpc_match, http_match
from mesh_pilot.istio.gateway_api.sessions import session_of
from mesh_pilot.istio.meaning.durations import read_duration

_HEADER_FILTERS = ("RequestHeaderModifier", "ResponseHeaderModifier")
_LONE_BACKEND_FILTERS = (*_HEADER_FILTERS, "RequestRedirect", "URLRewrite")
"""The filters that the only backend of a rule may have."""
_GRPC_FILTERS = (*_HEADER_FILTERS, "RequestMirror")
_HTTP_FILTERS = (*_GRPC_FILTERS, "RequestRedirect", "URLRewrite", "CORS", "ExternalAuth")
_RETRY_ON = ("connect-failure", "refused-stream", "unavailable", "cancelled")
_DEFAULT_ATTEMPTS = 2
_NOWHERE = Destination(host="internal.cluster.local", subset="zero-weight", port=PortSelector(number=65535))
"""A destination of no cluster: connections are reset."""


W = TypeVar("W", HttpBackendRef, GrpcBackendRef, BackendRef)
"""A backend of a rule."""


Faults = list[Fault | None]
"""The faults of a route's rules, of which the last counts."""


def http_routes(rules: Sequence[HttpRouteRule], backends: BackendResolver, faults: Faults) -> Iterator[HttpRoute]:
    """The rules of an HTTPRoute, one for each match. Raises RuleError."""
    for index, rule in enumerate(rules or [HttpRouteRule()]):
        for match in map(http_match, rule.matches) if rule.matches else (None,):
            yield _named(_http_route(rule, backends, faults), rule, match, backends, index)


def grpc_routes(rules: Sequence[GrpcRouteRule], backends: BackendResolver, faults: Faults) -> Iterator[HttpRoute]:
    """The rules of a GRPCRoute, one for each match. Raises RuleError."""
    for index, rule in enumerate(rules or [GrpcRouteRule()]):
        for match in map(grpc_match, rule.matches) if rule.matches else (None,):
            yield _named(_grpc_route(rule, backends, faults), rule, match, backends, index)


def _named(
    made: HttpRoute,
    rule: HttpRouteRule | GrpcRouteRule,
    match: HttpMatchRequest | None,
    backends: BackendResolver,
    index: int,
) -> HttpRoute:
    route = backends.route
    own_name = f"{route.namespace}.{route.name}.{index}"
    made.name = own_name if rule.name is None else rule.name
    made.session = session_of(rule.session_persistence, f"{route.key.kind}/{own_name}") if made.route else None
    made.match = [match] if match is not None else []
    return made


def _http_route(rule: HttpRouteRule, backends: BackendResolver, faults: Faults) -> HttpRoute:
    route = HttpRoute(headers=headers_of(rule.filters))
    refuse_other_filters(rule.filters, _HTTP_FILTERS)
    mirror_fault: Fault | None = None
    for each in rule.filters:
        if each.request_redirect is not None:
            route.redirect = redirect_of(each.request_redirect)
        elif each.url_rewrite is not None:
            route.rewrite = rewrite_of(each.url_rewrite)
        elif each.cors is not None:
            route.cors_policy = cors_of(each.cors)
        elif each.request_mirror is not None:
            mirror, fault = mirror_of(each.request_mirror, backends)
            mirror_fault = fault or mirror_fault
            if mirror is not None:
                route.mirrors.append(mirror)
        elif each.external_auth is not None:
            auth, fault = external_auth_of(each.external_auth, backends)
            if fault is not None:
                # Whatever else the rule says: nobody can be asked whether a request may pass.
                faults.append(fault)
                return HttpRoute(direct_response=HttpDirectResponse(status=500))
            if auth is not None:
                route.external_auth.append(auth)
    if rule.retry is not None:
        route.retries = _retries(rule.retry)
    if rule.timeouts is not None:
        _set_timeouts(route, rule.timeouts)
    weighted = _weighted(rule.backend_refs)
    if len(weighted) == 1:
        # All requests of the rule go to this backend: its filters can be those of the rule.
        refuse_other_filters(weighted[0][0].filters, _LONE_BACKEND_FILTERS)
        for each in weighted[0][0].filters:
            if each.request_redirect is not None and route.redirect is None and route.rewrite is None:
                route.redirect = redirect_of(each.request_redirect)
            elif each.url_rewrite is not None and route.redirect is None and route.rewrite is None:
                route.rewrite = rewrite_of(each.url_rewrite)
    if route.redirect is not None:
        faults.append(mirror_fault)
        return route
    if not weighted:
        route.direct_response = HttpDirectResponse(status=500)
        faults.append(mirror_fault)
        return route
    backend_fault: Fault | None = None
    known = _LONE_BACKEND_FILTERS if len(weighted) == 1 else _HEADER_FILTERS
    for backend, weight in weighted:
        destination, fault = backends.destination(backend)
        backend_fault = fault or backend_fault
        refuse_other_filters(backend.filters, known)
        headers = headers_of(backend.filters)
        route.route.append(HttpRouteDestination(destination=destination, weight=weight, headers=headers))
    faults.append(backend_fault.and_(mirror_fault) if backend_fault is not None else mirror_fault)
    return route


def _grpc_route(rule: GrpcRouteRule, backends: BackendResolver, faults: Faults) -> HttpRoute:
    route = HttpRoute(headers=headers_of(rule.filters))
    refuse_other_filters(rule.filters, _GRPC_FILTERS)
    for each in rule.filters:
        if each.request_mirror is not None:
            mirror, fault = mirror_of(each.request_mirror, backends)
            faults.append(fault)
            if mirror is not None:
                route.mirrors.append(mirror)
    if not _weight(rule.backend_refs):
        route.direct_response = HttpDirectResponse(status=500)
        return route
    for backend, weight in _weighted(rule.backend_refs):
        destination, fault = backends.destination(backend)
        faults.append(fault)
        refuse_other_filters(backend.filters, _HEADER_FILTERS)
        headers = headers_of(backend.filters)
        route.route.append(HttpRouteDestination(destination=destination, weight=weight, headers=headers))
    return route


def _retries(retry: HttpRouteRetry) -> HttpRetry:
    attempts = _DEFAULT_ATTEMPTS if retry.attempts is None else retry.attempts
    retry_on = ",".join((*_RETRY_ON, *map(str, retry.codes))) if attempts else ""
    backoff = read_duration(retry.backoff) if retry.backoff is not None else None
    return HttpRetry(attempts=attempts, retry_on=retry_on, backoff=backoff)


def _set_timeouts(route: HttpRoute, timeouts: HttpRouteTimeouts) -> None:
    """Zero means no timeout. One of the backend alone is that of the request: there is one try."""
    if timeouts.request is not None:
        route.timeout = read_duration(timeouts.request) or None
    if timeouts.backend_request is not None and (timeout := read_duration(timeouts.backend_request)):
        if route.retries is not None:
            route.retries.per_try_timeout = timeout
        else:
            route.timeout = timeout


def tcp_routes(rules: Sequence[StreamRouteRule], backends: BackendResolver, faults: Faults) -> list[TcpRoute]:
    """The rules of a TCPRoute or UDPRoute. Raises RuleError."""
    return [TcpRoute(route=_stream_destinations(rule, backends, faults)) for rule in rules]


def tls_routes(
    rules: Sequence[StreamRouteRule], hostnames: Sequence[str], backends: BackendResolver, faults: Faults
) -> list[TlsRoute]:
    """The rules of a TLSRoute. Raises RuleError."""
    found = []
    for rule in rules:
        match = [TlsMatchAttributes(sni_hosts=list(hostnames) or ["*"])] if _weight(rule.backend_refs) else []
        found.append(TlsRoute(match=match, route=_stream_destinations(rule, backends, faults)))
    return found


def _stream_destinations(rule: StreamRouteRule, backends: BackendResolver, faults: Faults) -> list[RouteDestination]:
    if not _weight(rule.backend_refs):
        return [RouteDestination(destination=_NOWHERE)]
    found = []
    for backend, weight in _weighted(rule.backend_refs):
        destination, fault = backends.destination(backend)
        faults.append(fault)
        found.append(RouteDestination(destination=destination, weight=weight))
    return found


def _weight(backends: Iterable[HttpBackendRef | GrpcBackendRef | BackendRef]) -> int:
    return sum(1 if backend.weight is None else backend.weight for backend in backends)


def _weighted(backends: Iterable[W]) -> list[tuple[W, int]]:
    """The backends with a weight. The only one gets everything, and none is written."""
    found = [(backend, 1 if backend.weight is None else backend.weight) for backend in backends]
    found = [(backend, weight) for backend, weight in found if weight]
    return [(found[0][0], 0)] if len(found) == 1 else found
