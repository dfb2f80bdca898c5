"""Worlds for tests: YAML in, a World out, and proxies to look at it with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from mesh_pilot.istio.reading import yaml
from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.istio.reading.mesh import decode_mesh, decode_networks
from mesh_pilot.model.config import Config, ConfigError, Origin
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue, Synced, Upsert
from mesh_pilot.model.proxy import Proxy, parse_proxy
from mesh_pilot.model.service import Locality
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.world import World

SOURCE = "test"


def configs(text: str, *, namespace: str = "default", name: str = "test.yaml") -> list[Config]:
    """The configs of a YAML text; anything wrong with it raises."""
    found = []
    for document in yaml.load(text, Origin(SOURCE, name)):
        if isinstance(document, ConfigError):
            raise document
        found.append(decode_document(document, origin=Origin(SOURCE, name), default_namespace=namespace))
    return found


def world_of(text: str = "", *, mesh: str = "", networks: str = "", namespace: str = "default") -> World:
    """A synced World that holds the configs of a YAML text."""
    world = World()
    world.expect(SOURCE)
    events: list[Any] = []
    if mesh:
        events.append(Upsert(SOURCE, MeshConfigValue(decode_mesh(plain(mesh), origin=Origin(SOURCE, "mesh.yaml")))))
    if networks:
        value = decode_networks(plain(networks), origin=Origin(SOURCE, "networks.yaml"))
        events.append(Upsert(SOURCE, MeshNetworksValue(value)))
    events += (Upsert(SOURCE, c) for c in configs(text, namespace=namespace))
    events.append(Synced(SOURCE))
    world.apply(events)
    return world


def update(world: World, text: str, *, namespace: str = "default") -> None:
    """Apply the configs of a YAML text as one revision."""
    world.apply([Upsert(SOURCE, c) for c in configs(text, namespace=namespace)])


def sidecar(
    ip: str = "10.1.1.1",
    *,
    name: str = "client",
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    node_type: str = "sidecar",
    locality: str = "",
    certified: bool = True,
    **metadata: Any,
) -> Proxy:
    """A proxy as a well-behaved agent presents it, its identity proven; further keywords are node metadata."""
    given = {"NAMESPACE": namespace, "INSTANCE_IPS": ip, "LABELS": dict(labels or {}), **metadata}
    proxy = parse_proxy(
        f"{node_type}~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local",
        {k: v for k, v in given.items() if v is not None},
        locality=Locality.parse(locality),
    )
    return attrs.evolve(proxy, identity=str(Identity("cluster.local", namespace, "default")) if certified else "")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def plain(text: str) -> object:
    """The data of a YAML document, without its places."""
    documents = list(yaml.load(text, Origin(SOURCE)))
    if not documents:
        return None
    if isinstance(documents[0], ConfigError):
        raise documents[0]
    return documents[0].data
