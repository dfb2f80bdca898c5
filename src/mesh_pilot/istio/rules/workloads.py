"""Rules for WorkloadEntry, and for endpoints, which are written alike."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mesh_pilot.api.istio.networking.v1alpha3 import HttpHealthCheckConfig, ReadinessProbe, WorkloadEntry, WorkloadGroup
from mesh_pilot.istio.rules.context import Context, check, check_parts, check_values, error
from mesh_pilot.istio.rules.names import (
    check_labels,
    dns_label_reason,
    fqdn_or_ip_reason,
    negative_reason,
    port_reason,
    unix_path_reason,
)
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import UNIX_PREFIX


def validate_workload_entry(spec: WorkloadEntry, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a WorkloadEntry."""
    yield from check_address("spec", spec)
    yield from check_details("spec", spec)


def check_address(path: str, entry: WorkloadEntry) -> Iterator[Problem]:
    """The address: an IP address, a host name, `unix://` with a path, or empty in a network with a gateway."""
    if not entry.address:
        if not entry.network:
            yield error(f"{path}.address", "is missing; only an entry with a network can do without")
    elif entry.address.startswith(UNIX_PREFIX):
        yield from check(f"{path}.address", unix_path_reason(entry.address.removeprefix(UNIX_PREFIX)))
        if entry.ports:
            yield error(f"{path}.ports", "a Unix socket has no ports")
    else:
        yield from check(f"{path}.address", fqdn_or_ip_reason(entry.address))


def check_details(path: str, entry: WorkloadEntry) -> Iterator[Problem]:
    """All fields but the address, which a WorkloadGroup's template lacks."""
    for name, number in entry.ports.items():
        yield from check(f"{path}.ports[{name}]", dns_label_reason(name) or port_reason(number))
    yield from check_labels(f"{path}.labels", entry.labels)
    if entry.locality.count("/") > 2:
        yield error(f"{path}.locality", f'"{entry.locality}" is not of the form region/zone/subzone')


_HEADER = re.compile(r"[-A-Za-z0-9]+")


def validate_workload_group(spec: WorkloadGroup, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a WorkloadGroup."""
    yield from check_parts("spec", spec, check_details, "template", required=True)
    if spec.metadata is not None:
        yield from check_labels("spec.metadata.labels", spec.metadata.labels)
    yield from check_parts("spec", spec, _check_probe, "probe")


def _check_probe(path: str, probe: ReadinessProbe) -> Iterator[Problem]:
    times = ("initial_delay_seconds", "timeout_seconds", "period_seconds")
    yield from check_values(path, probe, negative_reason, *times, "success_threshold", "failure_threshold")
    if probe.http_get is not None:
        yield from _check_http(f"{path}.httpGet", probe.http_get)
    elif probe.tcp_socket is not None:
        yield from check(f"{path}.tcpSocket.port", port_reason(probe.tcp_socket.port))
    elif probe.grpc is not None:
        yield from check(f"{path}.grpc.port", port_reason(probe.grpc.port))
    elif probe.exec is None:
        yield error(path, "needs one of httpGet, tcpSocket, exec and grpc")
    elif not probe.exec.command:
        yield error(f"{path}.exec.command", "is missing")


def _check_http(path: str, probe: HttpHealthCheckConfig) -> Iterator[Problem]:
    yield from check(f"{path}.port", port_reason(probe.port))
    if probe.scheme not in ("", "http", "https", "HTTP", "HTTPS"):
        yield error(f"{path}.scheme", f'"{probe.scheme}" is not allowed; http or https')
    for index, header in enumerate(probe.http_headers):
        if not _HEADER.fullmatch(header.name):
            reason = f'"{header.name}" is not a header name: letters, digits and "-"' if header.name else "is missing"
            yield error(f"{path}.httpHeaders[{index}].name", reason)
