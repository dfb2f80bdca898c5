"""Rules for LocalRateLimit, our own kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from mesh_pilot.api.istio.networking.v1alpha3 import StringMatch
from mesh_pilot.api.meshpilot.policy.v1alpha1 import (
    GlobalRateLimit,
    HttpRateLimits,
    LocalRateLimit,
    Rate,
    RequestLimit,
    RequestMatch,
)
from mesh_pilot.istio.rules.common import check_match_labels, check_targets
from mesh_pilot.istio.rules.context import Context, check, check_parts, check_values, error
from mesh_pilot.istio.rules.names import port_reason
from mesh_pilot.istio.rules.values import (
    changed_header_reason,
    duration_reason,
    header_name_reason,
    header_value_reason,
    percent_reason,
    string_match_reason,
)
from mesh_pilot.model.config import Problem

SHORTEST_INTERVAL = timedelta(milliseconds=50)
"""Envoy's shortest time between two fills of a token bucket."""

STATUSES = frozenset((*range(400, 418), *range(421, 425), 426, 428, 429, 431, *range(500, 509), 510, 511))
"""The statuses of errors that Envoy knows; it refuses others."""

GATEWAY = ("gateway.networking.k8s.io", "Gateway")


def validate(spec: LocalRateLimit, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a LocalRateLimit."""
    yield from check_match_labels(spec.selector)
    yield from check_gateways(spec, context)
    if spec.http is None and not spec.connections:
        yield error("spec", "limits nothing: it needs http or connections")
    if spec.http is not None:
        yield from _check_http(spec.http)
    ports: set[int] = set()
    for index, limit in enumerate(spec.connections):
        path = f"spec.connections[{index}]"
        yield from check_port(path, limit.port)
        if limit.port in ports:
            yield error(path, "has the port of another limit" if limit.port else "is a second limit without a port")
        ports.add(limit.port)
        yield from _check_rate(path, limit.rate)


def _check_http(http: HttpRateLimits) -> Iterator[Problem]:
    if not http.limits:
        yield error("spec.http.limits", "is missing")
    for index, limit in enumerate(http.limits):
        path = f"spec.http.limits[{index}]"
        yield from check_port(path, limit.port)
        yield from check_parts(path, limit, check_match, "match")
        yield from _check_rate(path, limit.rate)
        if limit.otherwise:
            yield from _check_otherwise(path, limit, http.limits[:index], http.limits)
    yield from check_refusal("spec.http", http)


def check_gateways(spec: LocalRateLimit | GlobalRateLimit, context: Context) -> Iterator[Problem]:
    """Targets: Gateways of the Gateway API, and only without a selector."""
    yield from check_targets(spec.selector is not None, None, spec.target_refs, context)
    for index, target in enumerate(spec.target_refs):
        if target.kind and (target.group, target.kind) != GATEWAY:
            reason = f"{target.group or 'core'}/{target.kind} can't be limited: only {'/'.join(GATEWAY)}; use selector"
            yield error(f"spec.targetRefs[{index}]", reason)


def check_refusal(path: str, limits: HttpRateLimits | GlobalRateLimit) -> Iterator[Problem]:
    """The answer to a request beyond its limit, and how many get it."""
    if limits.status and limits.status not in STATUSES:
        yield error(f"{path}.status", f"{limits.status} is not the status of an error that Envoy knows")
    for name, value in limits.response_headers.items():
        here = f"{path}.responseHeaders[{name}]"
        yield from check(here, changed_header_reason(name))
        yield from check(here, header_value_reason(value))
    yield from check_values(path, limits, percent_reason, "enforced_percent")


def _check_otherwise(
    path: str, limit: RequestLimit, before: Sequence[RequestLimit], every: Sequence[RequestLimit]
) -> Iterator[Problem]:
    if limit.match is not None:
        yield error(f"{path}.otherwise", "is in place of match; leave one of them out")
    if any(other.otherwise and other.port == limit.port for other in before):
        yield error(path, "is a second limit for the rest of the requests")
    if any(not other.otherwise and other.match is None and other.port in (0, limit.port) for other in every):
        yield error(f"{path}.otherwise", "leaves no request: another limit is for every one")


def check_match(path: str, match: RequestMatch) -> Iterator[Problem]:
    """Which requests a limit is for."""
    if not (match.uri or match.method or match.authority or match.headers or match.without_headers):
        yield error(path, "matches on nothing; leave it out to limit every request")
    for name, value in (("uri", match.uri), ("method", match.method), ("authority", match.authority)):
        if value is not None:
            yield from _check_text(f"{path}.{name}", value, empty=False)
    yield from _check_headers(f"{path}.headers", match.headers)
    yield from _check_headers(f"{path}.withoutHeaders", match.without_headers)


def _check_headers(path: str, headers: Mapping[str, StringMatch]) -> Iterator[Problem]:
    for name, value in headers.items():
        here = f"{path}[{name}]"
        yield from check(here, header_name_reason(name))
        if name.startswith(":"):
            yield error(here, "match on it with uri, method or authority")
        yield from _check_text(here, value, empty=True)


def _check_text(path: str, match: StringMatch, *, empty: bool) -> Iterator[Problem]:
    """Problems of a string to compare with; ``empty``: without a form, only the presence of a header is asked for."""
    if match.exact is None and match.prefix is None and match.regex is None:
        if not empty:
            yield error(path, "needs one of exact, prefix and regex")
    elif match.exact == "" and not empty:
        yield error(path, "exact must not be empty")
    else:
        yield from check(path, string_match_reason(match))


def check_port(path: str, port: int) -> Iterator[Problem]:
    """The workload's port, if a limit is for one."""
    if port:
        yield from check(f"{path}.port", port_reason(port))


def _check_rate(path: str, rate: Rate | None) -> Iterator[Problem]:
    if rate is None:
        yield error(f"{path}.rate", "is missing")
        return
    if not rate.count:
        yield error(f"{path}.rate.count", "must be at least 1; use an AuthorizationPolicy to let nothing in")
    if rate.burst and rate.burst < rate.count:
        yield error(f"{path}.rate.burst", f"{rate.burst} is less than count, {rate.count}")
    if rate.interval is not None:
        reason = duration_reason(rate.interval)
        if not reason and rate.interval < SHORTEST_INTERVAL:
            reason = "must be at least 50ms"
        yield from check(f"{path}.rate.interval", reason)
