"""Rules for Ingress, IngressClass and Namespace."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mesh_pilot.api.k8s.io.api.core.v1 import NamespaceSpec
from mesh_pilot.api.k8s.io.api.networking.v1 import HttpIngressPath, IngressBackend, IngressClassSpec, IngressSpec
from mesh_pilot.istio.rules.context import Context, check, check_parts, check_values, error, warning
from mesh_pilot.istio.rules.gateway_references import check_one_of, hostname_reason, subdomain_reason
from mesh_pilot.istio.rules.names import label_value_reason
from mesh_pilot.model.config import Problem

_CONTROLLER = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9/._~%!$&'()*+,;=:-]+)?")
_PATH_TYPES = ("Exact", "Prefix", "ImplementationSpecific")


def validate_ingress(spec: IngressSpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with an Ingress."""
    yield from check_values("spec", spec, subdomain_reason, "ingress_class_name")
    if not spec.rules and spec.default_backend is None:
        yield error("spec", "needs rules or a defaultBackend")
    if spec.default_backend is not None:
        yield from _check_backend("spec.defaultBackend", spec.default_backend)
        yield warning("spec.defaultBackend", "has no effect, as in Istio; write a rule without host and path")
    for index, tls in enumerate(spec.tls):
        for number, host in enumerate(tls.hosts):
            yield from check(f"spec.tls[{index}].hosts[{number}]", hostname_reason(host, wildcard=True))
        if tls.secret_name:
            yield from check(f"spec.tls[{index}].secretName", subdomain_reason(tls.secret_name))
        else:
            yield warning(f"spec.tls[{index}].secretName", "is missing: there is no HTTPS for these hosts")
    for index, rule in enumerate(spec.rules):
        path = f"spec.rules[{index}]"
        if rule.host:
            yield from check(f"{path}.host", hostname_reason(rule.host, wildcard=True))
        if rule.http is not None:
            if not rule.http.paths:
                yield error(f"{path}.http.paths", "is missing: at least one is required")
            yield from check_parts(f"{path}.http", rule.http, _check_path, "paths")


def _check_path(path: str, http: HttpIngressPath) -> Iterator[Problem]:
    if http.path_type is None:
        yield warning(
            f"{path}.pathType", "is missing; it is taken for ImplementationSpecific, which Kubernetes would not"
        )
    yield from check_one_of(f"{path}.pathType", http.path_type, _PATH_TYPES)
    if http.path_type in ("Exact", "Prefix"):
        if not http.path.startswith("/"):
            yield error(f"{path}.path", "must be an absolute path: it starts with /")
        elif bad := next((part for part in ("//", "/./", "/../", "%2f", "%2F") if part in http.path), ""):
            yield error(f"{path}.path", f'must not contain "{bad}"')
        elif http.path.endswith(("/..", "/.")):
            yield error(f"{path}.path", 'must not end with "/." or "/.."')
    elif http.path and not http.path.startswith("/"):
        yield error(f"{path}.path", "must be an absolute path: it starts with /")
    yield from check_parts(path, http, _check_backend, "backend", required=True)


def _check_backend(path: str, backend: IngressBackend) -> Iterator[Problem]:
    service, resource = backend.service, backend.resource
    if (service is None) == (resource is None):
        yield error(path, "needs either service or resource")
    if service is not None:
        yield from check(f"{path}.service.name", subdomain_reason(service.name))
        port = service.port
        if port is None or bool(port.name) == bool(port.number):
            yield error(f"{path}.service.port", "needs either name or number")
        elif port.number > 65535:
            yield error(f"{path}.service.port.number", f"{port.number} is not a port; 1 to 65535")
    if resource is not None:
        yield warning(f"{path}.resource", "has no effect; name a service")
        for name, value in (("kind", resource.kind), ("name", resource.name)):
            if not value:
                yield error(f"{path}.resource.{name}", "is missing")


def validate_class(spec: IngressClassSpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with an IngressClass."""
    if spec.controller and (len(spec.controller) > 250 or not _CONTROLLER.fullmatch(spec.controller)):
        yield error(
            "spec.controller", f'"{spec.controller[:80]}" is not a controller, such as istio.io/ingress-controller'
        )


def validate_namespace(spec: NamespaceSpec, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a Namespace: its labels are what counts."""
    for key, value in context.labels.items():
        yield from check(f"metadata.labels[{key}]", label_value_reason(value))
