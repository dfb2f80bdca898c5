"""Matches of HTTPRoutes and GRPCRoutes as those of VirtualServices, and the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mesh_pilot.api.istio.networking.v1alpha3 import HttpMatchRequest, HttpRoute, StringMatch
from mesh_pilot.api.k8s.io.gateway_api.v1 import GrpcMethodMatch, GrpcRouteMatch, HttpHeaderMatch, HttpRouteMatch

_REGULAR_EXPRESSION = "RegularExpression"


def http_match(match: HttpRouteMatch) -> HttpMatchRequest:
    """The match of an HTTPRoute's rule."""
    return HttpMatchRequest(
        uri=_path(match),
        method=StringMatch(exact=match.method) if match.method else None,
        headers=_headers(match.headers),
        query_params={each.name: _value(each.type, each.value) for each in reversed(match.query_params)},
    )


def grpc_match(match: GrpcRouteMatch) -> HttpMatchRequest:
    """The match of a GRPCRoute's rule: a call's path is its service and method."""
    uri = _grpc_path(match.method) if match.method is not None else None
    return HttpMatchRequest(uri=uri, headers=_headers(match.headers))


def _path(match: HttpRouteMatch) -> StringMatch:
    type, value = (match.path.type, match.path.value) if match.path is not None else (None, None)
    path = "/" if value is None else value
    if type == "Exact":
        return StringMatch(exact=path)
    if type == _REGULAR_EXPRESSION:
        return StringMatch(regex=path)
    return StringMatch(prefix=path if path == "/" else path.removesuffix("/"))


def _grpc_path(match: GrpcMethodMatch) -> StringMatch:
    is_regex = match.type == _REGULAR_EXPRESSION
    if not match.method:
        return StringMatch(regex=f"/{match.service}/.+") if is_regex else StringMatch(prefix=f"/{match.service}/")
    if not match.service:
        return StringMatch(regex=f"/[^/]+/{match.method}")
    path = f"/{match.service}/{match.method}"
    return StringMatch(regex=path) if is_regex else StringMatch(exact=path)


def _headers(matches: Sequence[HttpHeaderMatch]) -> dict[str, StringMatch]:
    """The matches by header name; of several spellings of a name, the first counts."""
    found: dict[str, StringMatch] = {}
    seen = set()
    for match in matches:
        if match.name.lower() not in seen:
            seen.add(match.name.lower())
            found[match.name] = _value(match.type, match.value)
    return found


def _value(type: str | None, value: str) -> StringMatch:
    return StringMatch(regex=value) if type == _REGULAR_EXPRESSION else StringMatch(exact=value)


def in_order(routes: Iterable[HttpRoute]) -> list[HttpRoute]:
    """Routes with at most one match each, those that must be tried first in front: by path (exact, prefix, regular
    expression; the longer before), method, number of headers and of query parameters; equals stay in their order."""
    return sorted(routes, key=_rank)


def _rank(route: HttpRoute) -> tuple[int, ...]:
    if not route.match:
        return (1,)
    match = route.match[0]
    kind, text = 0, ""
    if match.uri is not None:
        for rank, value in ((4, match.uri.exact), (3, match.uri.prefix), (2, match.uri.regex)):
            if value is not None:
                kind, text = rank, value
    return 0, -kind, -len(text), match.method is None, -len(match.headers), -len(match.query_params)
