"""Rules for GatewayClass, Gateway and ListenerSet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.rules.context import Context, check, check_parts, error
from mesh_pilot.istio.rules.gateway_references import (
    check_count,
    check_distinct,
    check_group,
    check_kind,
    check_name,
    check_one_of,
    check_options,
    check_port,
    check_reference,
    check_selector,
    hostname_reason,
    subdomain_reason,
)
from mesh_pilot.istio.rules.names import check_labels
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import is_ip

_CONTROLLER = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/._~%!$&'()*+,;=:-]+")
_PROTOCOL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]+")


def validate_class(spec: api.GatewayClassSpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a GatewayClass."""
    name = spec.controller_name
    if not name:
        yield error("spec.controllerName", "is missing")
    elif len(name) > 253 or not _CONTROLLER.fullmatch(name):
        yield error("spec.controllerName", f'"{name[:80]}" is not of the form domain/path')
    if len(spec.description) > 64:
        yield error("spec.description", "is longer than 64 characters")
    if spec.parameters_ref is not None:
        yield from check_reference("spec.parametersRef", spec.parameters_ref, required=True)


def validate_gateway(spec: api.GatewaySpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a Gateway of the Gateway API."""
    yield from check_name("spec.gatewayClassName", spec.gateway_class_name)
    # The listeners may all be those of ListenerSets.
    yield from check_listeners("spec.listeners", spec.listeners, least=0 if spec.allowed_listeners is not None else 1)
    yield from _check_addresses("spec.addresses", spec.addresses)
    yield from check_parts("spec", spec, _check_infrastructure, "infrastructure")
    if spec.allowed_listeners is not None and spec.allowed_listeners.namespaces is not None:
        path, namespaces = "spec.allowedListeners.namespaces", spec.allowed_listeners.namespaces
        yield from _check_namespaces(path, namespaces, ("All", "Selector", "Same", "None"))
    yield from check_parts("spec", spec, _check_gateway_tls, "tls")
    if spec.default_scope:
        yield from check_one_of("spec.defaultScope", spec.default_scope, ("All", "None"))


def validate_listener_set(spec: api.ListenerSetSpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a ListenerSet."""
    if spec.parent_ref is None:
        yield error("spec.parentRef", "is missing")
    else:
        yield from check_reference("spec.parentRef", spec.parent_ref)
        for name, known in (("group", "gateway.networking.k8s.io"), ("kind", "Gateway")):
            if getattr(spec.parent_ref, name) not in (None, known):
                yield error(f"spec.parentRef.{name}", f"can only be {known}")
    yield from check_listeners("spec.listeners", spec.listeners, least=0)


def check_listeners(path: str, listeners: Sequence[api.Listener], *, least: int) -> Iterator[Problem]:
    """The listeners of a Gateway or ListenerSet."""
    yield from check_count(path, listeners, 64, least=least)
    for index, listener in enumerate(listeners):
        yield from _check_listener(f"{path}[{index}]", listener)
    yield from check_distinct(path, (listener.name or None for listener in listeners), "has the same name as")
    # Host names are compared as written: an empty one differs from an absent one.
    keys = ((each.port, each.protocol, each.hostname) for each in listeners)
    yield from check_distinct(path, keys, "has the same port, protocol and hostname as")


def _check_listener(path: str, listener: api.Listener) -> Iterator[Problem]:
    yield from check(f"{path}.name", subdomain_reason(listener.name))
    yield from check_port(f"{path}.port", listener.port)
    protocol, tls = listener.protocol, listener.tls
    if not protocol:
        yield error(f"{path}.protocol", "is missing")
    elif len(protocol) > 255 or not _PROTOCOL.fullmatch(protocol):
        yield error(f"{path}.protocol", f'"{protocol[:80]}" is not a protocol; HTTP, HTTPS, TLS, TCP, UDP')
    if listener.hostname is not None:
        if protocol in ("TCP", "UDP") and listener.hostname:
            yield error(f"{path}.hostname", f"can't be set with protocol {protocol}")
        elif not is_ip(listener.hostname):  # refused in the status of the Gateway
            yield from check(f"{path}.hostname", hostname_reason(listener.hostname, wildcard=True))
    if tls is not None:
        yield from _check_listener_tls(f"{path}.tls", tls, protocol)
    elif protocol == "TLS":
        yield error(f"{path}.tls", "is missing: protocol TLS needs its mode")
    yield from check_parts(path, listener, _check_allowed_routes, "allowed_routes")


def _check_listener_tls(path: str, tls: api.ListenerTlsConfig, protocol: str) -> Iterator[Problem]:
    if protocol in ("HTTP", "TCP", "UDP"):
        yield error(path, f"can't be set with protocol {protocol}")
    yield from check_one_of(f"{path}.mode", tls.mode, ("Terminate", "Passthrough"))
    if protocol == "HTTPS" and tls.mode == "Passthrough":
        yield error(f"{path}.mode", "protocol HTTPS terminates TLS; use protocol TLS")
    if tls.mode in (None, "Terminate") and not tls.certificate_refs and not tls.options:
        yield error(f"{path}.certificateRefs", "is missing: mode Terminate needs it, or options")
    yield from check_count(f"{path}.certificateRefs", tls.certificate_refs, 64)
    yield from check_parts(path, tls, check_reference, "certificate_refs")
    yield from check_options(f"{path}.options", tls.options)
    yield from check_parts(path, tls, _check_frontend, "frontend_validation")


def _check_allowed_routes(path: str, allowed: api.AllowedRoutes) -> Iterator[Problem]:
    if allowed.namespaces is not None:
        yield from _check_namespaces(f"{path}.namespaces", allowed.namespaces, ("All", "Selector", "Same"))
    yield from check_count(f"{path}.kinds", allowed.kinds, 8)
    for index, kind in enumerate(allowed.kinds):
        yield from check_group(f"{path}.kinds[{index}].group", kind.group)
        yield from check_kind(f"{path}.kinds[{index}].kind", kind.kind, required=True)


def _check_namespaces(
    path: str, namespaces: api.RouteNamespaces | api.ListenerNamespaces, allowed: tuple[str, ...]
) -> Iterator[Problem]:
    yield from check_one_of(f"{path}.from", namespaces.from_, allowed)
    yield from check_parts(path, namespaces, check_selector, "selector")


def _check_addresses(path: str, addresses: Sequence[api.GatewaySpecAddress]) -> Iterator[Problem]:
    yield from check_count(path, addresses, 16)
    for index, address in enumerate(addresses):
        here, type = f"{path}[{index}]", address.type or "IPAddress"
        if type not in ("IPAddress", "Hostname", "NamedAddress") and "/" not in type:
            yield error(f"{here}.type", f'unknown value "{type[:80]}"; IPAddress, Hostname, or domain/name')
        if type == "IPAddress" and address.value and not is_ip(address.value):
            yield error(f"{here}.value", f'"{address.value[:80]}" is not an IP address')
        elif type == "Hostname" and address.value:
            yield from check(f"{here}.value", hostname_reason(address.value, wildcard=True))
    keys = ((a.type or "IPAddress", a.value) if a.value else None for a in addresses)
    yield from check_distinct(path, keys, "has the same value as")


def _check_infrastructure(path: str, infrastructure: api.GatewayInfrastructure) -> Iterator[Problem]:
    yield from check_count(f"{path}.labels", infrastructure.labels, 8)
    yield from check_labels(f"{path}.labels", infrastructure.labels)
    yield from check_options(f"{path}.annotations", infrastructure.annotations)
    if infrastructure.parameters_ref is not None:
        yield from check_reference(f"{path}.parametersRef", infrastructure.parameters_ref, required=True)


def _check_gateway_tls(path: str, tls: api.GatewayTlsConfig) -> Iterator[Problem]:
    if tls.backend is not None and tls.backend.client_certificate_ref is not None:
        yield from check_reference(f"{path}.backend.clientCertificateRef", tls.backend.client_certificate_ref)
    frontend = tls.frontend
    if frontend is None:
        return
    here = f"{path}.frontend"
    if frontend.default is None:
        yield error(f"{here}.default", "is missing")
    elif frontend.default.validation is not None:
        yield from _check_frontend(f"{here}.default.validation", frontend.default.validation)
    yield from check_count(f"{here}.perPort", frontend.per_port, 64)
    for index, entry in enumerate(frontend.per_port):
        yield from check_port(f"{here}.perPort[{index}].port", entry.port)
        if entry.tls is None:
            yield error(f"{here}.perPort[{index}].tls", "is missing")
        elif entry.tls.validation is not None:
            yield from _check_frontend(f"{here}.perPort[{index}].tls.validation", entry.tls.validation)
    yield from check_distinct(f"{here}.perPort", (entry.port for entry in frontend.per_port), "has the same port as")


def _check_frontend(path: str, validation: api.FrontendTlsValidation) -> Iterator[Problem]:
    yield from check_count(f"{path}.caCertificateRefs", validation.ca_certificate_refs, 16, least=1)
    for index, reference in enumerate(validation.ca_certificate_refs):
        yield from check_reference(f"{path}.caCertificateRefs[{index}]", reference, required=True)
    if validation.mode:
        yield from check_one_of(f"{path}.mode", validation.mode, ("AllowValidOnly", "AllowInsecureFallback"))
