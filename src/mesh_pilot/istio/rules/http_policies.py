"""Rules for CORS, faults and retries of a route."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.istio.rules.context import check, error, warning
from mesh_pilot.istio.rules.names import small_number
from mesh_pilot.istio.rules.values import (
    duration_reason,
    percent_reason,
    percentage_reason,
    string_match_reason,
    token_reason,
)
from mesh_pilot.model.config import Problem

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE")

RETRY_ON = (
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "envoy-ratelimited",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "http3-post-connect-failure",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
)
"""Envoy's `x-envoy-retry-on` and `x-envoy-retry-grpc-on` conditions."""

GRPC_STATUSES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""gRPC's status names; the index is the code."""


def check_cors(path: str, policy: api.CorsPolicy | None) -> Iterator[Problem]:
    if policy is None:
        return
    for index, origin in enumerate(policy.allow_origins):
        here = f"{path}.allowOrigins[{index}]"
        if origin.exact is None and origin.prefix is None and origin.regex is None:
            yield error(here, "needs one of exact, prefix and regex")
        elif origin.exact == "":
            yield error(here, "exact must not be empty")
        else:
            yield from check(here, string_match_reason(origin))
    # Browsers read "*" in the lists below as every method or header, so it passes next to real names.
    for index, method in enumerate(policy.allow_methods):
        if method not in METHODS and method != "*":
            yield error(f"{path}.allowMethods[{index}]", f'"{method}" is not one of {", ".join(METHODS)}')
    for name, headers in (("allowHeaders", policy.allow_headers), ("exposeHeaders", policy.expose_headers)):
        for index, header in enumerate(headers):
            if header != "*":
                yield from check(f"{path}.{name}[{index}]", token_reason(header))
    if policy.max_age is not None:
        reason = duration_reason(policy.max_age)
        if not reason and policy.max_age % timedelta(seconds=1):
            reason = "must be in whole seconds"
        yield from check(f"{path}.maxAge", reason)


def check_fault(path: str, fault: api.HttpFaultInjection | None) -> Iterator[Problem]:
    if fault is None:
        return
    if fault.abort is None and fault.delay is None:
        yield error(path, "needs abort, delay, or both")
    if fault.abort is not None:
        yield from _check_abort(f"{path}.abort", fault.abort)
    if fault.delay is not None:
        yield from _check_delay(f"{path}.delay", fault.delay)


def _check_abort(path: str, abort: api.HttpFaultInjectionAbort) -> Iterator[Problem]:
    if abort.percentage is not None:
        yield from check(f"{path}.percentage.value", percentage_reason(abort.percentage))
    else:
        yield warning(path, "has no effect: without percentage no request is aborted")
    if abort.http_status is not None:
        if not 200 <= abort.http_status <= 599:
            yield error(f"{path}.httpStatus", f"{abort.http_status} is not a status, allowed are 200 to 599")
    elif abort.grpc_status is not None:
        if abort.grpc_status not in GRPC_STATUSES:
            known = ", ".join(GRPC_STATUSES)
            yield error(f"{path}.grpcStatus", f'"{abort.grpc_status}" is not a gRPC status; known: {known}')
    elif abort.http2_error is not None:
        yield error(f"{path}.http2Error", "is not supported; use httpStatus or grpcStatus")
    else:
        yield warning(path, "has no effect: needs httpStatus or grpcStatus")


def _check_delay(path: str, delay: api.HttpFaultInjectionDelay) -> Iterator[Problem]:
    if delay.percentage is not None:
        yield from check(f"{path}.percentage.value", percentage_reason(delay.percentage))
    elif not delay.percent:
        yield warning(path, "has no effect: without percentage no request is delayed")
    yield from check(f"{path}.percent", percent_reason(delay.percent))
    if delay.fixed_delay is not None:
        yield from check(f"{path}.fixedDelay", duration_reason(delay.fixed_delay))
    elif delay.exponential_delay is not None:
        yield error(f"{path}.exponentialDelay", "is not supported; use fixedDelay")
    else:
        yield warning(path, "has no effect: needs fixedDelay")


def check_retries(path: str, retries: api.HttpRetry | None) -> Iterator[Problem]:
    if retries is None:
        return
    if retries.attempts < 0:
        yield error(f"{path}.attempts", f"{retries.attempts} is negative")
    if retries.attempts == 0:
        others = (
            retries.per_try_timeout,
            retries.retry_on or None,
            retries.retry_remote_localities,
            retries.retry_ignore_previous_hosts,
            retries.backoff,
        )
        if any(other is not None for other in others):
            yield error(path, "attempts is 0, which switches retries off, yet other fields are set")
    for name, value in (("perTryTimeout", retries.per_try_timeout), ("backoff", retries.backoff)):
        if value is not None:
            yield from check(f"{path}.{name}", duration_reason(value))
    if retries.retry_on:
        for condition in retries.retry_on.split(","):
            if condition.strip() not in RETRY_ON and not _is_status(condition.strip()):
                known = ", ".join(RETRY_ON)
                yield error(f"{path}.retryOn", f'"{condition}" is not a status code or one of {known}')


def _is_status(text: str) -> bool:
    return 100 <= (small_number(text) or 0) <= 599
