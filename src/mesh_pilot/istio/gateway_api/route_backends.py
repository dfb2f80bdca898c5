"""Backends of routes: which host and port of the mesh a reference means, and what is wrong with it."""

from __future__ import annotations

import attrs

from mesh_pilot.api.istio.networking.v1alpha3 import Destination, PortSelector
from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.gateway_api.conditions import Fault
from mesh_pilot.istio.gateway_api.values import Objects
from mesh_pilot.model.config import Config

SERVICE = ("", "Service")
HOSTNAME = ("networking.istio.io", "Hostname")
SERVICE_IMPORT = ("multicluster.x-k8s.io", "ServiceImport")
_UNSUPPORTED = {
    ("inference.networking.k8s.io", "InferencePool"): "InferencePool is not supported; refer to a Service",
    ("gateway.networking.x-k8s.io", "XBackend"): "XBackend is not supported; refer to the host of a ServiceEntry, kind "
    "Hostname of group networking.istio.io",
}

INVALID_DESTINATION = "InvalidDestination"
NOT_PERMITTED = "RefNotPermitted"
INVALID_KIND = "InvalidKind"
NOT_FOUND = "BackendNotFound"
UNSUPPORTED_PROTOCOL = "UnsupportedProtocol"


BackendReference = api.HttpBackendRef | api.GrpcBackendRef | api.BackendRef | api.BackendObjectReference


class RuleError(Exception):
    """A fault of a route because of which none of its rules is in force."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(reason, message)


def kind_of(reference: BackendReference) -> tuple[str, str]:
    """Group and kind of a backend."""
    return reference.group or "", "Service" if reference.kind is None else reference.kind


@attrs.frozen
class BackendResolver:
    """The backends that a route may name."""

    route: Config
    kind: str
    """The kind of the route."""
    objects: Objects
    needs_grants: bool
    """True for routes of Gateways: a ReferenceGrant permits backends of other namespaces."""

    def destination(self, reference: BackendReference) -> tuple[Destination, Fault | None]:
        """The destination that a reference means. One with a fault gets requests all the same, and answers them with
        an error if there is no such host. Raises RuleError."""
        if fault := self._forbidden(reference):
            return Destination(), fault
        kind = kind_of(reference)
        if kind in _UNSUPPORTED:
            return Destination(), Fault(INVALID_KIND, _UNSUPPORTED[kind])
        if kind not in (SERVICE, HOSTNAME, SERVICE_IMPORT):
            group, name = reference.group or "", reference.kind or ""
            message = f'referencing unsupported backendRef: group "{group}" kind "{name}"'
            return Destination(), Fault(INVALID_KIND, message)
        host = self._host(reference, kind)
        namespace = reference.namespace or self.route.namespace
        fault = None
        if self.objects.service(host, namespace) is None:
            fault = Fault(NOT_FOUND, f"backend({host}) not found")
        if reference.port is None:
            raise RuleError(INVALID_DESTINATION, "port is required in backendRef")
        return Destination(host=host, port=PortSelector(number=reference.port)), fault

    def call_fault(self, destination: Destination, *, http2: bool) -> Fault | None:
        """The fault of a destination, which is there, for calls that a proxy makes itself; ``http2``: by gRPC."""
        number = destination.port.number if destination.port is not None else 0
        service = self.objects.service(destination.host, self.route.namespace)
        port = service.port(number) if service is not None else None
        if port is None:
            return Fault(NOT_FOUND, f"backend({destination.host}) has no port {number}")
        if http2 and not port.protocol.is_http2:
            text = (
                f"protocol GRPC needs HTTP/2, and port {number} of {destination.host} is {port.protocol}: "
                'begin the name of the port with "grpc", or set its appProtocol'
            )
            return Fault(UNSUPPORTED_PROTOCOL, text)
        return None

    def _forbidden(self, reference: BackendReference) -> Fault | None:
        to = reference.namespace
        if not self.needs_grants or to is None or to == self.route.namespace:
            return None
        kind = kind_of(reference)[1]
        if self.objects.is_granted(self.kind, self.route.namespace, kind, to, reference.name):
            return None
        message = (
            f"backendRef {reference.name}/{to} not accessible to a {self.kind} in namespace "
            f'"{self.route.namespace}" (missing a ReferenceGrant?)'
        )
        return Fault(NOT_PERMITTED, message)

    def _host(self, reference: BackendReference, kind: tuple[str, str]) -> str:
        namespace = reference.namespace or self.route.namespace
        if kind == HOSTNAME:
            if reference.namespace is not None:
                raise RuleError(INVALID_DESTINATION, "namespace may not be set with Hostname type")
            return reference.name
        if kind == SERVICE_IMPORT:
            host = f"{reference.name}.{namespace}.svc.clusterset.local"
            if self.objects.service(host, namespace) is not None:
                return host
        elif "." in reference.name:
            reason = "service name invalid; the name of the Service must be used, not the hostname."
            raise RuleError(INVALID_DESTINATION, reason)
        return self.objects.service_host(reference.name, namespace)
