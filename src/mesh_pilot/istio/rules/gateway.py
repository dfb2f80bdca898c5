"""Rules for Gateway."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking.v1alpha3 import Gateway, Server, ServerTlsSettings
from mesh_pilot.istio.rules.context import Context, check, check_parts, error, warning
from mesh_pilot.istio.rules.names import (
    check_bind,
    check_labels,
    dns_label_reason,
    name_part_reason,
    scoped_host_reason,
)
from mesh_pilot.istio.rules.tls import PASSING, check_server_tls
from mesh_pilot.istio.rules.values import protocol_reason
from mesh_pilot.model.config import Problem
from mesh_pilot.model.service import Protocol


def validate(spec: Gateway, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a Gateway."""
    yield from check("metadata.name", dns_label_reason(context.name))
    yield from check_labels("spec.selector", spec.selector)
    if not spec.servers:
        yield error("spec.servers", "is missing: at least one server is required")
    names: set[str] = set()
    for index, server in enumerate(spec.servers):
        path = f"spec.servers[{index}]"
        yield from _check_server(path, server)
        name = server.port.name if server.port is not None else ""
        if name and name in names:
            yield error(f"{path}.port.name", f'"{name}" is given twice; the names of ports must differ')
        names.add(name)


def _check_server(path: str, server: Server) -> Iterator[Problem]:
    if not server.hosts:
        yield error(f"{path}.hosts", "is missing: at least one host is required")
    for index, host in enumerate(server.hosts):
        yield from check(f"{path}.hosts[{index}]", scoped_host_reason(host, gateway=True))
    yield from check_parts(path, server, check_server_tls, "tls")
    if server.port is None:
        yield error(f"{path}.port", "is missing")
        return
    yield from check_bind(path, server.port.number, server.bind, bound=True)
    yield from check(f"{path}.port.name", name_part_reason(server.port.name) if server.port.name else "is missing")
    reason = protocol_reason(server.port.protocol, empty=False)
    yield from check(f"{path}.port.protocol", reason)
    if not reason:
        yield from _check_protocol(path, Protocol.parse(server.port.protocol), server.tls)


def _check_protocol(path: str, protocol: Protocol, tls: ServerTlsSettings | None) -> Iterator[Problem]:
    """TLS settings go with TLS ports; HTTP ports can only redirect."""
    if tls is None:
        if protocol.is_tls:
            yield error(f"{path}.tls", f"is missing: protocol {protocol} needs it")
        return
    if protocol.is_tls:
        if tls.https_redirect:
            yield warning(f"{path}.tls.httpsRedirect", f"has no effect with protocol {protocol}; it is for HTTP")
    elif not protocol.is_http:
        yield error(f"{path}.tls", f"can't be set with protocol {protocol}; use TLS")
    elif tls.mode not in PASSING or tls.ca_certificates or tls.private_key or tls.server_certificate:
        yield error(f"{path}.tls", f"protocol {protocol} is plain text: only httpsRedirect can be set; use HTTPS")
