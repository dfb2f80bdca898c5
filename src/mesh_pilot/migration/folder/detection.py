"""Which mesh a foreign object is of."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from mesh_pilot.migration.base.reading import ForeignObject
from mesh_pilot.migration.consul.entries import CRD_GROUP, LEFT_KINDS, TAKEN_KINDS


class MeshSystem(StrEnum):
    """A mesh that configuration is taken from."""

    KUBERNETES = "kubernetes"
    CONSUL = "consul"
    KUMA = "kuma"


def system_of(found: ForeignObject) -> MeshSystem | None:
    """The mesh that an object is of for certain; None if that cannot be known."""
    data = found.data
    api_version, kind = data.get("apiVersion"), data.get("kind")
    # From the surest sign to the weakest: Consul's dumps have no type, only fields that others do not have.
    if isinstance(api_version, str) and isinstance(kind, str):
        group = api_version.rpartition("/")[0]
        if group == "kuma.io":
            return MeshSystem.KUMA
        return MeshSystem.CONSUL if group == CRD_GROUP else MeshSystem.KUBERNETES
    if isinstance(data.get("type"), str) and isinstance(data.get("name"), str):
        return MeshSystem.KUMA
    if data.get("Kind", kind) in (*TAKEN_KINDS, *LEFT_KINDS):
        return MeshSystem.CONSUL
    if "SourceName" in data and "DestinationName" in data:
        return MeshSystem.CONSUL
    if "ServiceName" in data and "ServiceID" in data:
        return MeshSystem.CONSUL
    if "Node" in data and "Service" in data:
        return MeshSystem.CONSUL
    if data.keys() <= {"service", "services"}:
        return MeshSystem.CONSUL
    return None


def systems_of(found: Iterable[ForeignObject]) -> dict[MeshSystem, ForeignObject]:
    """The meshes of objects, each with the first object of it."""
    systems: dict[MeshSystem, ForeignObject] = {}
    for each in found:
        if (system := system_of(each)) is not None:
            systems.setdefault(system, each)
    return systems
