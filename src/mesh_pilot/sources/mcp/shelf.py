"""What the World holds, as collections of MCP: made when somebody first asks for one, and from then on brought up to
date with every revision, at the cost of what changed.

Served are the configs of every kind, the settings of the mesh, and as synthetic service entries the services that
registries gave, with their endpoints; but not those whose host a ServiceEntry can't have, such as one with an
underscore. Never served are secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import attrs

from mesh_pilot.config.encode import encode
from mesh_pilot.config.validation.names import wildcard_host_reason
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.sources.mcp.collections import (
    BY_KIND,
    MESH_CONFIG,
    MESH_NETWORKS,
    SYNTHETIC,
    XDS_COLLECTIONS,
    Collection,
)
from mesh_pilot.sources.mcp.here import PLANES, marked
from mesh_pilot.sources.mcp.items import SYNTHETIC_SUFFIX
from mesh_pilot.sources.mcp.messages import Resource
from mesh_pilot.sources.mcp.synthetic import synthetic_entry
from mesh_pilot.world.world import Revision, World

Key = tuple[str, ...]

_SETTINGS: frozenset[Key] = frozenset((("mesh",), ("networks",)))
_EMPTY: Mapping[str, Resource] = MappingProxyType({})


@attrs.define
class _Held:
    resources: dict[str, Resource] = attrs.field(factory=dict)
    revision: int = 0
    changed: dict[str, int] = attrs.field(factory=dict)
    """The revision at which each name last changed, the latest last; also of names that are gone."""

    def put(self, name: str, resource: Resource | None) -> bool:
        if self.resources.get(name) == resource:
            return False
        if resource is None:
            del self.resources[name]
        else:
            self.resources[name] = resource
        self.revision += 1
        self.changed.pop(name, None)
        self.changed[name] = self.revision
        return True


class WorldShelf:
    """The shelf that a World fills; give ``published`` the revisions.

    State: the resources of every collection with when they changed, and who is to be woken. Until anybody has asked
    there are none, for encoding a large World takes seconds that most planes need not spend.
    """

    def __init__(self, world: World, plane: str = "") -> None:
        """``plane``: our mark on everything, by which we know it again should we read it."""
        self._world = world
        self._plane = plane
        self._held: dict[str, _Held] = {}
        self._watchers: dict[object, Callable[[], None]] = {}
        self._encoded = 0
        self._is_asked = False
        self._settings: set[Key] = set()
        """Which of the mesh's settings a source gave before anybody asked."""

    def __repr__(self) -> str:
        return f"<WorldShelf {sum(len(h.resources) for h in self._held.values())} resources>"

    @property
    def encoded(self) -> int:
        """Resources encoded since the start."""
        return self._encoded

    def revision(self, collection: str) -> int:
        held = self._find(collection)
        return held.revision if held else 0

    def resources(self, collection: str) -> Mapping[str, Resource]:
        held = self._find(collection)
        return held.resources if held else _EMPTY

    def changed_since(self, collection: str, revision: int) -> tuple[str, ...]:
        held = self._find(collection)
        names: list[str] = []
        for name, at in reversed(held.changed.items()) if held else ():
            if at <= revision:
                break
            names.append(name)
        return tuple(names)

    def _find(self, collection: str) -> _Held | None:
        """A collection by any of its names."""
        if not self._is_asked:
            self._is_asked = True
            self.update(self._all_keys())
        found = XDS_COLLECTIONS.get(collection)
        return self._held.get(found.xds_name if found else collection)

    def watch(self, who: object, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever anything changed, until ``unwatch``."""
        self._watchers[who] = wake

    def unwatch(self, who: object) -> None:
        self._watchers.pop(who, None)

    def published(self, revision: Revision) -> None:
        """Take in what changed in the World."""
        if not self._is_asked:
            self._settings |= revision.changed & _SETTINGS
        elif self.update(revision.changed):
            for wake in self._watchers.values():
                wake()

    def update(self, keys: Iterable[Key]) -> bool:
        """Look at items of the World again; whether any resource changed."""
        changed = False
        for key in sorted(keys):
            match key:
                case ("config", kind, namespace, name) if kind in BY_KIND:
                    changed |= self._config(ConfigKey(kind, namespace, name))
                case ("service" | "endpoints", host, namespace):
                    changed |= self._service(ServiceKey(host, namespace))
                case ("mesh",):
                    passed = self._passed(MeshConfigValue)
                    changed |= self._put(MESH_CONFIG, "mesh", encode(self._world.mesh.peek(())), passed=passed)
                case ("networks",):
                    passed = self._passed(MeshNetworksValue)
                    changed |= self._put(
                        MESH_NETWORKS, "networks", encode(self._world.networks.peek(())), passed=passed
                    )
        return changed

    def _all_keys(self) -> Iterator[Key]:
        world = self._world
        yield from (("config", *key) for key in world.config)
        yield from (("service", *key) for key in world.services)
        yield from self._settings

    def _passed(self, kind: type[MeshConfigValue | MeshNetworksValue]) -> tuple[str, ...]:
        """The control planes that the mesh's settings came through."""
        return next((value.passed for value in self._world.mesh_settings() if isinstance(value, kind)), ())

    def _config(self, key: ConfigKey) -> bool:
        config = self._world.config.peek(key)
        if key.name.endswith(SYNTHETIC_SUFFIX) and key.kind == "ServiceEntry":
            name = full_name(key.namespace, key.name.removesuffix(SYNTHETIC_SUFFIX))
            return self._put(SYNTHETIC, name, encode(config.spec) if config else None, config)
        name = full_name(key.namespace, key.name)
        return self._put(BY_KIND[key.kind], name, encode(config.spec) if config else None, config)

    def _service(self, key: ServiceKey) -> bool:
        service = self._world.services.peek(key)
        name = full_name(key.namespace, key.host.replace("*", "any"))
        if service is None or service.config is not None or wildcard_host_reason(key.host):
            return self._put(SYNTHETIC, name, None)
        entry = synthetic_entry(service, self._world.endpoints.peek(key))
        return self._put(SYNTHETIC, name, encode(entry))

    def _put(
        self,
        collection: Collection,
        name: str,
        body: bytes | None,
        config: Config | None = None,
        *,
        passed: tuple[str, ...] = (),
    ) -> bool:
        if body is None:
            return self._hold(collection, name, None)
        self._encoded += 1
        plain = Resource(name, "", collection.type_url, body)
        annotations: Mapping[str, str] = {PLANES: ",".join(passed)} if passed else {}
        if config is not None:
            plain = attrs.evolve(plain, created=config.created, labels=config.labels)
            annotations = config.annotations
        plain = attrs.evolve(plain, annotations=marked(annotations, self._plane))
        return self._hold(collection, name, attrs.evolve(plain, version=_version(plain)))

    def _hold(self, collection: Collection, name: str, resource: Resource | None) -> bool:
        """Put a resource where it is found, over MCP and over xDS, where synthetic entries are among the others."""
        changed = self._held.setdefault(collection.name, _Held()).put(name, resource)
        xds_name, xds_resource = collection.xds_name, resource
        if collection is SYNTHETIC:
            xds_name, name = BY_KIND["ServiceEntry"].xds_name, name + SYNTHETIC_SUFFIX
            xds_resource = attrs.evolve(resource, name=name) if resource else None
        if xds_name:
            self._held.setdefault(xds_name, _Held()).put(name, xds_resource)
        return changed


def full_name(namespace: str, name: str) -> str:
    """What MCP calls an object."""
    return f"{namespace}/{name}" if namespace else name


def _version(resource: Resource) -> str:
    """Hash of the content: the same for the same content in any process."""
    metadata = (resource.created.isoformat(), sorted(resource.labels.items()), sorted(resource.annotations.items()))
    digest = hashlib.blake2b(repr(metadata).encode(), digest_size=8)
    digest.update(resource.body)
    return digest.hexdigest()
