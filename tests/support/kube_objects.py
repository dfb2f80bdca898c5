"""Kubernetes objects as YAML, into a World: as a Galley would send them, mapped by the code that reads a Galley's."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, TypeVar

import yaml

from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.config.decode import Metadata
from mesh_pilot.kubernetes.objects import KubernetesBody, KubernetesObject, read_object
from mesh_pilot.kubernetes.services import KubernetesServices
from mesh_pilot.model.events import Synced, Upsert
from mesh_pilot.world import World

SOURCE = "kubernetes"
LOADER = yaml.CSafeLoader

B = TypeVar("B", core.ServiceSpec, core.Pod, core.Endpoints)


def add_kubernetes(world: World, text: str, domain: str = "cluster.local") -> None:
    """Put the Services, Endpoints, Pods and Nodes of a YAML text into the World, as one revision."""
    values: dict[str, dict[str, KubernetesObject]] = {"Node": {}, "Pod": {}, "Endpoints": {}, "Service": {}}
    for document in yaml.load_all(text, LOADER):
        meta = document["metadata"]
        name = "/".join(filter(None, (meta.get("namespace", ""), meta["name"])))
        metadata = Metadata(
            meta["name"],
            meta.get("namespace", ""),
            created=datetime.fromisoformat(meta["creationTimestamp"]),
            labels=meta.get("labels") or {},
            annotations=meta.get("annotations") or {},
        )
        values[document["kind"]][name] = read_object(body_of(document), metadata, domain)
    services = KubernetesServices()
    for of_kind in values.values():
        services.apply(of_kind, {})
    items = (item for name in values["Service"] for item in services.items(name))
    world.expect(SOURCE)
    world.apply([*(Upsert(SOURCE, item) for item in items), Synced(SOURCE)])


def body_of(document: dict[str, Any]) -> KubernetesBody:
    """What a Galley sends of an object: the spec of Services and Nodes, the whole of the others."""
    match document["kind"]:
        case "Service":
            return _read(core.ServiceSpec, document["spec"])
        case "Node":
            return core.NodeSpec()
        case "Pod":
            return _read(core.Pod, {"spec": document["spec"], "status": document["status"]})
        case _:
            return _read(core.Endpoints, {"subsets": document["subsets"]})


def _read(message: type[B], value: dict[str, Any]) -> B:
    return message.from_dict(_renamed(value), ignore_unknown_fields=True)


def _renamed(value: Any, key: str = "") -> Any:
    """With what Kubernetes' JSON spells differently from its protobuf: IntOrString, and initialisms (``podIP``)."""
    if key == "targetPort":
        return {"type": 0, "intVal": value} if isinstance(value, int) else {"type": 1, "strVal": value}
    if isinstance(value, dict):
        return {re.sub(r"IP(s?)$", r"Ip\1", k): _renamed(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_renamed(v) for v in value]
    return value
