"""Rules for HealthCheck, our own kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from mesh_pilot.api.meshpilot.policy.v1alpha1 import HealthCheck, HttpCheck
from mesh_pilot.istio.rules.common import check_export_to
from mesh_pilot.istio.rules.context import Context, check, check_values, error
from mesh_pilot.istio.rules.http_policies import METHODS
from mesh_pilot.istio.rules.names import fqdn_reason, port_reason
from mesh_pilot.istio.rules.values import (
    changed_header_reason,
    duration_reason,
    header_size_reason,
    header_text_reason,
    header_value_reason,
    percent_reason,
)
from mesh_pilot.model.config import Problem

DEFAULT_INTERVAL = timedelta(seconds=10)
DEFAULT_TIMEOUT = timedelta(seconds=1)
FORBIDDEN_METHODS = ("CONNECT",)

_STATUSES = re.compile(r"([1-5][0-9][0-9])(?:-([1-5][0-9][0-9]))?")


def validate(spec: HealthCheck, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a HealthCheck."""
    if spec.host.startswith("*"):
        yield error("spec.host", "can't have a wildcard: a check is for one service")
    else:
        yield from check("spec.host", fqdn_reason(spec.host))
    yield from check_export_to(spec.export_to, context)
    for index, port in enumerate(spec.ports):
        yield from check(f"spec.ports[{index}]", port_reason(port))
        if port in spec.ports[:index]:
            yield error(f"spec.ports[{index}]", f"{port} is given twice")
    if spec.http is None and spec.grpc is None and spec.tcp is None:
        yield error("spec", "needs http, grpc or tcp")
    if spec.http is not None:
        yield from _check_http(spec.http)
    if spec.grpc is not None and spec.grpc.authority:
        yield from check("spec.grpc.authority", header_text_reason(spec.grpc.authority))
    yield from _check_times(spec)
    yield from check_values("spec", spec, percent_reason, "min_health_percent")
    if spec.always_log_failures and not spec.log_events:
        yield error("spec.alwaysLogFailures", "needs logEvents")


def status_range(text: str) -> tuple[int, int] | None:
    """The first and the last status of ``200`` or ``200-299``; None for any other text."""
    found = _STATUSES.fullmatch(text)
    if found is None:
        return None
    first = int(found[1])
    last = int(found[2] or first)
    return (first, last) if first <= last else None


def _check_http(http: HttpCheck) -> Iterator[Problem]:
    if not http.path.startswith("/"):
        yield error("spec.http.path", f'"{http.path}" must start with "/"' if http.path else "is missing")
    yield from check("spec.http.path", header_text_reason(http.path) or header_size_reason(http.path))
    if http.host:
        yield from check("spec.http.host", header_text_reason(http.host))
    if http.method and (http.method not in METHODS or http.method in FORBIDDEN_METHODS):
        known = ", ".join(method for method in METHODS if method not in FORBIDDEN_METHODS)
        yield error("spec.http.method", f'"{http.method}" is not a method of a check; known: {known}')
    for name, value in http.headers.items():
        path = f"spec.http.headers[{name}]"
        yield from check(path, changed_header_reason(name))
        yield from check(path, header_value_reason(value))
    for index, text in enumerate(http.expected_statuses):
        if status_range(text) is None:
            reason = f'"{text}" is not a status such as 200, or a range such as 200-299, within 100 to 599'
            yield error(f"spec.http.expectedStatuses[{index}]", reason)


def _check_times(spec: HealthCheck) -> Iterator[Problem]:
    yield from check_values(
        "spec", spec, duration_reason, "interval", "interval_jitter", "timeout", "no_traffic_interval"
    )
