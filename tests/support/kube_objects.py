"""Kubernetes objects as YAML, into a World: as a Galley would send them, mapped by the code that reads a Galley's."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, TypeVar

import yaml

from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.model.events import Synced, Upsert
from mesh_pilot.sources.mcp.cluster import Cluster
from mesh_pilot.sources.mcp.here import Here
from mesh_pilot.sources.mcp.kubernetes import Body, KubernetesValue, read_kubernetes
from mesh_pilot.sources.mcp.messages import Resource
from mesh_pilot.world import World

SOURCE = "kubernetes"
LOADER = yaml.CSafeLoader

B = TypeVar("B", core.ServiceSpec, core.Pod, core.Endpoints)


def add_kubernetes(world: World, text: str, domain: str = "cluster.local") -> None:
    """Put the Services, Endpoints, Pods and Nodes of a YAML text into the World, as one revision."""
    values: dict[str, dict[str, KubernetesValue]] = {"Node": {}, "Pod": {}, "Endpoints": {}, "Service": {}}
    for document in yaml.load_all(text, LOADER):
        meta = document["metadata"]
        name = "/".join(filter(None, (meta.get("namespace", ""), meta["name"])))
        resource = Resource(
            name,
            created=datetime.fromisoformat(meta["creationTimestamp"]),
            labels=meta.get("labels") or {},
            annotations=meta.get("annotations") or {},
        )
        values[document["kind"]][name] = read_kubernetes(_body(document), resource, domain)
    cluster = Cluster(Here())
    for of_kind in values.values():
        for _ in cluster.change(of_kind, {}):
            pass
    world.expect(SOURCE)
    world.apply([*(Upsert(SOURCE, item) for item in cluster.items), Synced(SOURCE)])


def _body(document: dict[str, Any]) -> Body:
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
