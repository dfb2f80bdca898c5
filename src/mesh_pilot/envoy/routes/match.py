"""Route matches: an HTTPMatchRequest as Envoy's RouteMatch, without the conditions that the control plane evaluates."""

from __future__ import annotations

from collections.abc import Iterator

from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.type.matcher.v3 import regex_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import boolean, string_match
from mesh_pilot.mesh.virtual_services.rules import ANY_VALUE


def route_match(match: api.HttpMatchRequest | None) -> rc.RouteMatch:
    """The conditions that the proxy evaluates; without any, all requests match."""
    if match is None:
        return rc.RouteMatch(prefix="/")
    result = _path(match.uri)
    result.case_sensitive.CopyFrom(boolean(not match.ignore_uri_case))
    result.headers.extend(_headers(match))
    result.query_parameters.extend(_query(name, value) for name, value in sorted(match.query_params.items()))
    return result


def _path(uri: api.StringMatch | None) -> rc.RouteMatch:
    if uri is None or uri.regex == ANY_VALUE:
        return rc.RouteMatch(prefix="/")
    if uri.exact is not None:
        return rc.RouteMatch(path=uri.exact)
    if uri.regex is not None:
        return rc.RouteMatch(safe_regex=regex_pb2.RegexMatcher(regex=uri.regex))
    return rc.RouteMatch(prefix=uri.prefix if uri.prefix is not None else "/")


def _headers(match: api.HttpMatchRequest) -> Iterator[rc.HeaderMatcher]:
    named = [_header(name, value) for name, value in match.headers.items()]
    named += [_absent(name, value) for name, value in match.without_headers.items()]
    yield from sorted(named, key=lambda matcher: str(matcher.name))
    for name, value in ((":method", match.method), (":authority", match.authority), (":scheme", match.scheme)):
        if value is not None:
            yield _header(name, value)


def _header(name: str, value: api.StringMatch) -> rc.HeaderMatcher:
    compared = string_match(value)
    if compared is None:
        return rc.HeaderMatcher(name=name, present_match=True)
    return rc.HeaderMatcher(name=name, string_match=compared)


def _absent(name: str, value: api.StringMatch) -> rc.HeaderMatcher:
    """A header that must not have a value; requests without the header match."""
    matcher = _header(name, value)
    matcher.invert_match = True
    matcher.treat_missing_header_as_empty = matcher.HasField("string_match")
    return matcher


def _query(name: str, value: api.StringMatch) -> rc.QueryParameterMatcher:
    compared = string_match(value)
    if compared is None:
        return rc.QueryParameterMatcher(name=name)
    return rc.QueryParameterMatcher(name=name, string_match=compared)
