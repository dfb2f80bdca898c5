"""Rules for ServiceEntry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mesh_pilot.api.istio.networking.v1alpha3 import ServiceEntry, ServiceEntryLocation, ServicePort, WorkloadEntry
from mesh_pilot.api.istio.networking.v1alpha3 import ServiceEntryResolution as Resolution
from mesh_pilot.istio.rules.common import check_export_to, check_workload_selector
from mesh_pilot.istio.rules.context import Context, check, error, warning
from mesh_pilot.istio.rules.names import (
    dns_label_reason,
    fqdn_reason,
    port_reason,
    subnet_reason,
    wildcard_host_reason,
)
from mesh_pilot.istio.rules.values import protocol_reason
from mesh_pilot.istio.rules.workloads import check_address, check_details
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import UNIX_PREFIX, is_ip
from mesh_pilot.model.service import Protocol

_DNS = (Resolution.DNS, Resolution.DNS_ROUND_ROBIN)


def validate(spec: ServiceEntry, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a ServiceEntry."""
    yield from check_workload_selector(spec.workload_selector)
    if spec.workload_selector is not None and spec.endpoints:
        yield error("spec.endpoints", "workloadSelector and endpoints exclude each other")
    yield from _check_hosts(spec)
    yield from _check_addresses(spec)
    yield from _check_ports(spec)
    yield from _check_endpoints(spec)
    yield from _check_resolution(spec)
    yield from _check_told_apart(spec)
    yield from check_export_to(spec.export_to, context, service=True)


def _check_hosts(spec: ServiceEntry) -> Iterator[Problem]:
    if not spec.hosts:
        yield error("spec.hosts", "is missing: at least one host is required")
    for index, host in enumerate(spec.hosts):
        path = f"spec.hosts[{index}]"
        if host == "*":
            yield error(path, '"*" can\'t be a service; write a domain, such as *.example.com')
        else:
            yield from check(path, wildcard_host_reason(host))


def _check_addresses(spec: ServiceEntry) -> Iterator[Problem]:
    for index, address in enumerate(spec.addresses):
        path = f"spec.addresses[{index}]"
        reason = subnet_reason(address)
        yield from check(path, reason)
        if not reason and "/" in address and spec.resolution not in (Resolution.NONE, Resolution.STATIC):
            yield error(path, f"CIDR blocks need resolution NONE or STATIC, not {spec.resolution.name}")


def _check_ports(spec: ServiceEntry) -> Iterator[Problem]:
    names: set[str] = set()
    numbers: set[int] = set()
    for index, port in enumerate(spec.ports):
        path = f"spec.ports[{index}]"
        yield from _check_port(path, port)
        if port.name and port.name in names:
            yield error(f"{path}.name", f'"{port.name}" is given twice')
        if port.number and port.number in numbers:
            yield error(f"{path}.number", f"{port.number} is given twice")
        names.add(port.name)
        numbers.add(port.number)


def _check_port(path: str, port: ServicePort) -> Iterator[Problem]:
    yield from check(f"{path}.number", port_reason(port.number))
    yield from check(f"{path}.name", dns_label_reason(port.name) if port.name else "is missing")
    yield from check(f"{path}.protocol", protocol_reason(port.protocol, empty=True))
    if port.target_port:
        yield from check(f"{path}.targetPort", port_reason(port.target_port))


def _check_endpoints(spec: ServiceEntry) -> Iterator[Problem]:
    """The rules for endpoints under any resolution."""
    defined = {port.name for port in spec.ports}
    unix = False
    good: Mapping[str, str] | None = None  # labels that have been checked: endpoints mostly share one object
    for index, endpoint in enumerate(spec.endpoints):
        is_unix = endpoint.address.startswith(UNIX_PREFIX)
        unix = unix or is_unix
        if endpoint.labels is good and not endpoint.ports and not endpoint.locality:
            continue
        path = f"spec.endpoints[{index}]"
        problems = [*check_details(path, endpoint)]
        good = None if problems else endpoint.labels
        yield from problems
        for name in endpoint.ports:
            if name not in defined and not is_unix:
                known = ", ".join(sorted(defined)) or "none"
                yield error(f"{path}.ports[{name}]", f'"{name}" is not a port of the service; its ports: {known}')
    if unix and len(spec.ports) != 1:
        yield error("spec.ports", "a service with a Unix socket as endpoint must have exactly one port")


def _check_resolution(spec: ServiceEntry) -> Iterator[Problem]:
    """The demands of a resolution on hosts and endpoints."""
    if spec.resolution == Resolution.NONE:
        if spec.endpoints:
            yield error("spec.endpoints", "can't be set with resolution NONE; use STATIC or DNS")
    elif spec.resolution == Resolution.STATIC:
        for index, endpoint in enumerate(spec.endpoints):
            if not is_ip(endpoint.address):  # nearly all are
                yield from _check_static(f"spec.endpoints[{index}]", endpoint)
    elif spec.resolution in _DNS:
        yield from _check_dns(spec)
    else:
        yield from _check_dynamic_dns(spec)


def _check_static(path: str, endpoint: WorkloadEntry) -> Iterator[Problem]:
    """The rules for an endpoint whose address is not an IP address."""
    address = endpoint.address
    yield from check_address(path, endpoint)
    if address and not address.startswith(UNIX_PREFIX) and not fqdn_reason(address):
        yield error(f"{path}.address", f'"{address}" is not an IP address; host names need resolution DNS')


def _check_dns(spec: ServiceEntry) -> Iterator[Problem]:
    mode = spec.resolution.name
    # Names are resolved for the endpoints; without any, for the hosts, of which a wildcard has no address.
    if not spec.endpoints and spec.workload_selector is None:
        for index, host in enumerate(spec.hosts):
            if host.startswith("*") and host != "*":
                yield error(f"spec.hosts[{index}]", f'"{host}" can\'t be resolved: with {mode}, list endpoints')
    if spec.resolution == Resolution.DNS_ROUND_ROBIN and len(spec.endpoints) > 1:
        yield error("spec.endpoints", "there can be one endpoint at most with DNS_ROUND_ROBIN")
    for index, endpoint in enumerate(spec.endpoints):
        path = f"spec.endpoints[{index}]"
        if endpoint.address.startswith(UNIX_PREFIX):
            yield error(f"{path}.address", f"Unix sockets need resolution STATIC, not {mode}")
        else:
            yield from check_address(path, endpoint)
    if spec.addresses and len(spec.hosts) > 1 and any(Protocol.parse(port.protocol).is_tcp for port in spec.ports):
        yield warning("spec.hosts", "several hosts share the addresses, and TCP ports can't tell them apart")


def _check_dynamic_dns(spec: ServiceEntry) -> Iterator[Problem]:
    if spec.location == ServiceEntryLocation.MESH_INTERNAL:
        yield error("spec.location", "DYNAMIC_DNS is for hosts outside of the mesh; set MESH_EXTERNAL")
    for index, host in enumerate(spec.hosts):
        if not host.startswith("*"):
            yield error(
                f"spec.hosts[{index}]", f'"{host}" is not a wildcard; DYNAMIC_DNS is for wildcard hosts, use DNS'
            )
    for name, value in (
        ("endpoints", spec.endpoints),
        ("workloadSelector", spec.workload_selector),
        ("addresses", spec.addresses),
    ):
        if value:
            yield error(f"spec.{name}", "can't be set with DYNAMIC_DNS, which resolves what each request asks for")
    for index, port in enumerate(spec.ports):
        protocol = Protocol.parse(port.protocol)
        if not protocol.is_http and not protocol.is_tls:
            reason = "DYNAMIC_DNS needs HTTP or TLS, whose requests say which host they want"
            yield error(f"spec.ports[{index}].protocol", reason)


def _check_told_apart(spec: ServiceEntry) -> Iterator[Problem]:
    """With several hosts on one service, the protocol must carry the host name."""
    if spec.resolution == Resolution.NONE or len(spec.hosts) < 2:
        return
    for index, port in enumerate(spec.ports):
        protocol = Protocol.parse(port.protocol)
        if not protocol.is_http and not protocol.is_tls:
            reason = f"several hosts need ports of HTTP or TLS to be told apart, not {port.protocol or 'no protocol'}"
            yield error(f"spec.ports[{index}].protocol", reason)
