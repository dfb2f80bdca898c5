"""Rules for HTTPRoute, GRPCRoute, TLSRoute, TCPRoute and UDPRoute."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.rules.context import Context, check, check_parts, error
from mesh_pilot.istio.rules.gateway_filters import PATH, check_filters, check_header_name, check_weighted
from mesh_pilot.istio.rules.gateway_policies import check_session
from mesh_pilot.istio.rules.gateway_references import (
    check_count,
    check_distinct,
    check_duration,
    check_hostnames,
    check_one_of,
    check_reference,
    check_section,
    seconds_of,
)
from mesh_pilot.istio.rules.regex import regex_reason
from mesh_pilot.model.config import Problem

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
_PATH_TYPES = ("Exact", "PathPrefix", "RegularExpression")
_VALUE_TYPES = ("Exact", "RegularExpression")
_GRPC_SERVICE = re.compile(r"(?i:\.?[a-z_][a-z_0-9]*(\.[a-z_][a-z_0-9]*)*)")
_GRPC_METHOD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_MAX_MATCHES = 128


def validate_http(spec: api.HttpRouteSpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with an HTTPRoute."""
    yield from _check_parents(spec.parent_refs, spec.use_default_gateways)
    yield from check_hostnames("spec.hostnames", spec.hostnames, 16)
    yield from _check_rules(spec.rules)
    yield from check_parts("spec", spec, _check_http_rule, "rules")


def validate_grpc(spec: api.GrpcRouteSpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a GRPCRoute."""
    yield from _check_parents(spec.parent_refs, spec.use_default_gateways)
    yield from check_hostnames("spec.hostnames", spec.hostnames, 16)
    yield from _check_rules(spec.rules)
    for index, rule in enumerate(spec.rules):
        path = f"spec.rules[{index}]"
        for number, match in enumerate(rule.matches):
            here = f"{path}.matches[{number}]"
            yield from check_parts(here, match, _check_grpc_method, "method")
            yield from _check_values(f"{here}.headers", match.headers, 4096)
        yield from check_filters(f"{path}.filters", rule.filters)
        yield from check_weighted(f"{path}.backendRefs", rule.backend_refs)
        for number, backend in enumerate(rule.backend_refs):
            yield from check_filters(f"{path}.backendRefs[{number}].filters", backend.filters)
        yield from check_parts(path, rule, check_session, "session_persistence")


def validate_tls(spec: api.TlsRouteSpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a TLSRoute."""
    yield from check_hostnames("spec.hostnames", spec.hostnames, 1024)
    yield from validate_stream(spec, context)


def validate_stream(
    spec: api.TlsRouteSpec | api.TcpRouteSpec | api.UdpRouteSpec, context: Context
) -> Iterator[Problem]:
    """Everything that is wrong with a TCPRoute or UDPRoute."""
    yield from _check_parents(spec.parent_refs, spec.use_default_gateways)
    yield from check_count("spec.rules", spec.rules, 16, least=1)
    yield from check_distinct("spec.rules", (rule.name for rule in spec.rules), "has the same name as")
    for index, rule in enumerate(spec.rules):
        path = f"spec.rules[{index}]"
        yield from check_section(f"{path}.name", rule.name)
        yield from check_count(f"{path}.backendRefs", rule.backend_refs, 16, least=1)
        yield from check_weighted(f"{path}.backendRefs", rule.backend_refs)


def _check_parents(parents: Sequence[api.ParentReference], default_gateways: str) -> Iterator[Problem]:
    path = "spec.parentRefs"
    yield from check_count(path, parents, 32)
    for index, parent in enumerate(parents):
        yield from check_reference(f"{path}[{index}]", parent)
    keys = [_parent_key(parent) for parent in parents]
    yield from check_distinct(path, keys, "has the same parent, sectionName and port as")
    for index, (*parent_of, section, port) in enumerate(keys):
        for *other_of, other_section, other_port in keys[:index]:
            if parent_of == other_of and (bool(section), bool(port)) != (bool(other_section), bool(other_port)):
                yield error(f"{path}[{index}]", "another entry has the same parent: both need sectionName or port")
                break
    if default_gateways:
        yield from check_one_of("spec.useDefaultGateways", default_gateways, ("All", "None"))


def _parent_key(parent: api.ParentReference) -> tuple[str | int, ...]:
    group = "gateway.networking.k8s.io" if parent.group is None else parent.group
    kind, section, port = parent.kind or "Gateway", parent.section_name or "", parent.port or 0
    return group, kind, parent.namespace or "", parent.name, section, port


def _check_rules(
    rules: Sequence[api.HttpRouteRule | api.GrpcRouteRule],
) -> Iterator[Problem]:
    yield from check_count("spec.rules", rules, 16)
    yield from check_distinct("spec.rules", (rule.name for rule in rules), "has the same name as")
    matches = 0
    for index, rule in enumerate(rules):
        yield from check_section(f"spec.rules[{index}].name", rule.name)
        yield from check_count(f"spec.rules[{index}].matches", rule.matches, 64)
        matches += len(rule.matches)
    if matches > _MAX_MATCHES:
        yield error("spec.rules", f"have {matches} matches together; at most {_MAX_MATCHES} are allowed")


def _check_http_rule(path: str, rule: api.HttpRouteRule) -> Iterator[Problem]:
    yield from check_parts(path, rule, _check_http_match, "matches")
    has_one_prefix = len(rule.matches) <= 1 and all(_is_prefix(match) for match in rule.matches)
    yield from check_filters(f"{path}.filters", rule.filters, has_one_prefix=has_one_prefix)
    yield from check_weighted(f"{path}.backendRefs", rule.backend_refs)
    for index, backend in enumerate(rule.backend_refs):
        filters = backend.filters
        yield from check_filters(f"{path}.backendRefs[{index}].filters", filters, has_one_prefix=has_one_prefix)
    if rule.backend_refs and any(each.request_redirect is not None for each in rule.filters):
        yield error(f"{path}.backendRefs", "can't be set with a filter RequestRedirect")
    yield from check_parts(path, rule, _check_timeouts, "timeouts")
    yield from check_parts(path, rule, _check_retry, "retry")
    yield from check_parts(path, rule, check_session, "session_persistence")


def _is_prefix(match: api.HttpRouteMatch) -> bool:
    return match.path is None or match.path.type in (None, "PathPrefix")


def _check_http_match(path: str, match: api.HttpRouteMatch) -> Iterator[Problem]:
    yield from check_parts(path, match, _check_path, "path")
    yield from _check_values(f"{path}.headers", match.headers, 4096)
    yield from _check_values(f"{path}.queryParams", match.query_params, 1024)
    yield from check_one_of(f"{path}.method", match.method, METHODS)


def _check_path(path: str, match: api.HttpPathMatch) -> Iterator[Problem]:
    yield from check_one_of(f"{path}.type", match.type, _PATH_TYPES)
    value = "/" if match.value is None else match.value
    if len(value) > 1024:
        yield error(f"{path}.value", "is longer than 1024 characters")
    elif match.type == "RegularExpression":
        yield from check(f"{path}.value", regex_reason(value))
    elif not value.startswith("/"):
        yield error(f"{path}.value", "must be an absolute path: it starts with /")
    elif bad := next((part for part in ("//", "/./", "/../", "%2f", "%2F", "#") if part in value), ""):
        yield error(f"{path}.value", f'must not contain "{bad}"')
    elif value.endswith(("/..", "/.")):
        yield error(f"{path}.value", 'must not end with "/." or "/.."')
    elif not PATH.fullmatch(value):
        yield error(f"{path}.value", f'"{value[:80]}" has characters that a path can only have as %XX')


def _check_values(
    path: str, matches: Sequence[api.HttpHeaderMatch | api.HttpQueryParamMatch], longest: int
) -> Iterator[Problem]:
    """Matches of headers or query parameters."""
    yield from check_count(path, matches, 16)
    for index, match in enumerate(matches):
        here = f"{path}[{index}]"
        yield from check_one_of(f"{here}.type", match.type, _VALUE_TYPES)
        yield from check_header_name(f"{here}.name", match.name)
        if not match.value:
            yield error(f"{here}.value", "is missing")
        elif len(match.value) > longest:
            yield error(f"{here}.value", f"is longer than {longest} characters")
        elif match.type == "RegularExpression":
            yield from check(f"{here}.value", regex_reason(match.value))
    # Other spellings of a name are not error: only the first counts.
    yield from check_distinct(path, (match.name or None for match in matches), "has the same name as")


def _check_grpc_method(path: str, match: api.GrpcMethodMatch) -> Iterator[Problem]:
    yield from check_one_of(f"{path}.type", match.type, _VALUE_TYPES)
    if not match.service and not match.method:
        yield error(path, "needs service or method")
    for name, value, pattern in (("service", match.service, _GRPC_SERVICE), ("method", match.method, _GRPC_METHOD)):
        if value and len(value) > 1024:
            yield error(f"{path}.{name}", "is longer than 1024 characters")
        elif value and match.type == "RegularExpression":
            yield from check(f"{path}.{name}", regex_reason(value))
        elif value and not pattern.fullmatch(value):
            yield error(f"{path}.{name}", f'"{value[:80]}" is not the name of a gRPC {name}')


def _check_timeouts(path: str, timeouts: api.HttpRouteTimeouts) -> Iterator[Problem]:
    yield from check_duration(f"{path}.request", timeouts.request)
    yield from check_duration(f"{path}.backendRequest", timeouts.backend_request)
    request, backend = seconds_of(timeouts.request), seconds_of(timeouts.backend_request)
    if request and backend is not None and backend > request:
        reason = f"{timeouts.backend_request} is longer than request, {timeouts.request}"
        yield error(f"{path}.backendRequest", reason)


def _check_retry(path: str, retry: api.HttpRouteRetry) -> Iterator[Problem]:
    for index, code in enumerate(retry.codes):
        if not 400 <= code <= 599:
            yield error(f"{path}.codes[{index}]", f"{code} is not a status of an error; 400 to 599")
    yield from check_distinct(f"{path}.codes", retry.codes, "is the same as")
    yield from check_duration(f"{path}.backoff", retry.backoff)
    if retry.attempts is not None and retry.attempts < 0:
        yield error(f"{path}.attempts", f"{retry.attempts} is negative")
