"""A document of Kuma as a resource: of the universal form, or of the one that Kubernetes has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs

from mesh_pilot.base.reading import as_string_map
from mesh_pilot.migration.base.fields import ForeignFields
from mesh_pilot.migration.base.left import reasons
from mesh_pilot.migration.base.reading import ForeignObject
from mesh_pilot.migration.base.record import MigrationRecord

_HEAD = ("type", "mesh", "name", "labels", "creationTime", "modificationTime", "status", "kri", "spec")
_KUBERNETES_HEAD = ("apiVersion", "kind", "metadata", "mesh", "status", "spec")
SERVICE_TAG, PROTOCOL_TAG, ZONE_TAG = "kuma.io/service", "kuma.io/protocol", "kuma.io/zone"
MESH_LABEL = "kuma.io/mesh"
DEFAULT_MESH = "default"


@attrs.frozen(eq=False)
class KumaResource:
    """A resource. ``fields`` are those of its ``spec``, or its own where it has none."""

    type: str
    mesh: str
    name: str
    labels: Mapping[str, str]
    fields: ForeignFields
    found: ForeignObject

    @property
    def where(self) -> str:
        return self.found.where

    @property
    def object(self) -> str:
        return self.found.name


def read_resource(found: ForeignObject, record: MigrationRecord) -> KumaResource | None:
    """The resource of a document; None if the document is not one, which is listed."""
    data = found.data
    metadata = data.get("metadata")
    # The universal form has its name at the top, the form of Kubernetes in the metadata; older resources of both have
    # no spec, and their own fields next to the head.
    is_kubernetes = "apiVersion" in data and isinstance(metadata, Mapping)
    head = metadata if is_kubernetes and isinstance(metadata, Mapping) else data
    type, name = data.get("kind") if is_kubernetes else data.get("type"), head.get("name")
    labels = as_string_map(head, "labels")
    if not isinstance(type, str) or not isinstance(name, str) or not type or not name:
        record.leave_object(found, "has no type and name: it is not a resource of Kuma")
        return None
    mesh = data.get("mesh") or labels.get(MESH_LABEL) or DEFAULT_MESH
    if type == "Mesh":
        mesh = name
    if not isinstance(mesh, str):
        record.leave_object(found, "expected a string", path="mesh")
        return None
    leave = partial(_leave, record, found)
    spec = data.get("spec")
    if spec is not None:
        fields = ForeignFields(spec, leave, "spec")
        known = _KUBERNETES_HEAD if is_kubernetes else _HEAD
        for other in data.keys() - set(known):
            record.leave_object(found, "is not a field of a resource", path=str(other))
    else:
        fields = ForeignFields(data, leave)
        fields.pass_over(*(_KUBERNETES_HEAD if is_kubernetes else _HEAD))
    return KumaResource(type, mesh, name, labels, fields, found)


def _leave(record: MigrationRecord, found: ForeignObject, path: str, reason: str, do: str) -> None:
    record.leave_object(found, reason, do, path=path)


# -- types of Kuma's resources: what is taken, and why others are not


TAKEN_TYPES: Mapping[str, str] = {
    "Mesh": "a namespace, with a PeerAuthentication",
    "Dataplane": "a WorkloadEntry, and a ServiceEntry for each service",
    "ExternalService": "a ServiceEntry, and for TLS a DestinationRule",
    "MeshExternalService": "a ServiceEntry, and for TLS a DestinationRule",
    "MeshService": "a ServiceEntry that selects WorkloadEntries",
    "TrafficRoute": "a VirtualService, and subsets of a DestinationRule",
    "MeshHTTPRoute": "a VirtualService, and subsets of a DestinationRule",
    "MeshTCPRoute": "a VirtualService, and subsets of a DestinationRule",
    "TrafficPermission": "AuthorizationPolicies",
    "MeshTrafficPermission": "AuthorizationPolicies",
    "Timeout": "connectionPool of a DestinationRule, timeout of a VirtualService",
    "MeshTimeout": "connectionPool of a DestinationRule, timeout of a VirtualService",
    "Retry": "retries of a VirtualService",
    "MeshRetry": "retries of a VirtualService",
    "CircuitBreaker": "outlierDetection and connectionPool of a DestinationRule",
    "MeshCircuitBreaker": "outlierDetection and connectionPool of a DestinationRule",
    "MeshLoadBalancingStrategy": "loadBalancer of a DestinationRule",
    "FaultInjection": "fault of a VirtualService",
    "MeshFaultInjection": "fault of a VirtualService",
    "HealthCheck": "a HealthCheck",
    "MeshHealthCheck": "a HealthCheck",
    "RateLimit": "a LocalRateLimit",
    "MeshRateLimit": "a LocalRateLimit",
}
"""The types that are taken, each with what it becomes."""

LEFT_TYPES = reasons("kuma_types")
"""Other types, each with the reason and what to do."""

NEWER: Mapping[str, str] = {
    "TrafficRoute": "MeshHTTPRoute",
    "TrafficPermission": "MeshTrafficPermission",
    "Timeout": "MeshTimeout",
    "Retry": "MeshRetry",
    "CircuitBreaker": "MeshCircuitBreaker",
    "FaultInjection": "MeshFaultInjection",
    "HealthCheck": "MeshHealthCheck",
    "RateLimit": "MeshRateLimit",
}
"""Types of the old form, each with the type that takes its place where a mesh has one."""
