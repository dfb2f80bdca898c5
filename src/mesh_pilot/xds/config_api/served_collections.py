"""The World as collections of MCP resources.

Served are the configs of every kind, mesh-wide settings, and the services of registries with their endpoints, as
synthetic ServiceEntries (`service_entry`). Not served are services whose host is invalid in a ServiceEntry, such as one
with an underscore, and secrets.

Nothing is encoded before the first client asks, because a large World takes seconds that most control planes need not
spend. From then on a revision costs what it changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import attrs

from mesh_pilot.engine.failures import COLLECTION, OwnFailures
from mesh_pilot.istio.reading.encode_proto import encode
from mesh_pilot.istio.rules.names import wildcard_host_reason
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.world import Revision, World
from mesh_pilot.xds.config_api.service_entry import synthetic_entry
from mesh_pilot.xds.mcp.collections import (
    COLLECTION_OF_KIND,
    MESH_CONFIG,
    MESH_NETWORKS,
    SYNTHETIC_ENTRIES,
    SYNTHETIC_SUFFIX,
    XDS_COLLECTIONS,
    McpCollection,
)
from mesh_pilot.xds.mcp.identity import PLANES_ANNOTATION, with_plane
from mesh_pilot.xds.mcp.messages import McpResource

Key = tuple[str, ...]

_SETTINGS: frozenset[Key] = frozenset((("mesh",), ("networks",)))
_EMPTY: Mapping[str, McpResource] = MappingProxyType({})


@attrs.define
class _VersionedCollection:
    """Resources with a log of their changes."""

    resources: dict[str, McpResource] = attrs.field(factory=dict)
    revision: int = 0
    changed: dict[str, int] = attrs.field(factory=dict)
    """The revision of each name's last change, latest last; removed names included."""

    def put(self, name: str, resource: McpResource | None) -> bool:
        """Store or remove a resource. True if that is a change."""
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

    def changed_since(self, revision: int) -> Iterator[str]:
        for name, at in reversed(self.changed.items()):
            if at <= revision:
                return
            yield name


class WorldCollections:
    """The World's collections; call ``published`` with each of its revisions.

    State: the collections by MCP name and by xDS name; the watchers; until the first client asks, which of the
    mesh-wide settings a source has sent.
    """

    def __init__(self, world: World, plane_id: str = "") -> None:
        """``plane_id`` marks all resources, so that we recognise them should we read them."""
        self._world = world
        self._plane_id = plane_id
        self._collections: dict[str, _VersionedCollection] = {}
        self._watchers: dict[object, Callable[[], None]] = {}
        self._encoded = 0
        self._is_filled = False
        self._settings: set[Key] = set()
        self._failed = OwnFailures(world.failed)

    def __repr__(self) -> str:
        return f"<WorldCollections {sum(len(c.resources) for c in self._collections.values())} resources>"

    @property
    def encoded(self) -> int:
        """Resources encoded since the start."""
        return self._encoded

    def revision(self, collection: str) -> int:
        found = self._find(collection)
        return found.revision if found else 0

    def resources(self, collection: str) -> Mapping[str, McpResource]:
        found = self._find(collection)
        return found.resources if found else _EMPTY

    def changed_since(self, collection: str, revision: int) -> tuple[str, ...]:
        found = self._find(collection)
        return tuple(found.changed_since(revision)) if found else ()

    def _find(self, collection: str) -> _VersionedCollection | None:
        """A collection by any of its names."""
        if not self._is_filled:
            self._is_filled = True
            self._update(self._all_keys())
        found = XDS_COLLECTIONS.get(collection)
        return self._collections.get(found.xds_name if found else collection)

    def watch(self, watcher: object, wake: Callable[[], None]) -> None:
        """Call ``wake`` after each change, until ``unwatch``."""
        self._watchers[watcher] = wake

    def unwatch(self, watcher: object) -> None:
        self._watchers.pop(watcher, None)

    def published(self, revision: Revision) -> None:
        """Follow a revision of the World."""
        if not self._is_filled:
            self._settings |= revision.changed & _SETTINGS
        elif self._update(revision.changed):
            for wake in self._watchers.values():
                wake()

    def _update(self, keys: Iterable[Key]) -> bool:
        """Update the resources of World items. True if any resource changed."""
        changed = False
        for key in sorted(keys):
            with self._failed.contained(key, COLLECTION, "/".join(key[1:]) or key[0]):
                changed |= self._update_item(key)
        return changed

    def _update_item(self, key: Key) -> bool:
        match key:
            case ("config", kind, namespace, name) if kind in COLLECTION_OF_KIND:
                return self._update_config(ConfigKey(kind, namespace, name))
            case ("service" | "endpoints", host, namespace):
                return self._update_service(ServiceKey(host, namespace))
            case ("mesh",):
                mesh, passed = self._world.mesh.peek(()), self._planes_passed(MeshConfigValue)
                return self._put(MESH_CONFIG, "mesh", encode(mesh), annotations=passed)
            case ("networks",):
                networks, passed = self._world.networks.peek(()), self._planes_passed(MeshNetworksValue)
                return self._put(MESH_NETWORKS, "networks", encode(networks), annotations=passed)
        return False

    def _all_keys(self) -> Iterator[Key]:
        world = self._world
        yield from (("config", *key) for key in world.config)
        yield from (("service", *key) for key in world.services)
        yield from self._settings

    def _planes_passed(self, kind: type[MeshConfigValue | MeshNetworksValue]) -> Mapping[str, str]:
        """The annotation with the control planes that mesh-wide settings came through."""
        passed = next((value.passed for value in self._world.mesh_settings() if isinstance(value, kind)), ())
        return {PLANES_ANNOTATION: ",".join(passed)} if passed else {}

    def _update_config(self, key: ConfigKey) -> bool:
        config = self._world.config.peek(key)
        if config is not None and config.made_from:
            config = None  # which proxies have it is in no field of Istio's
        collection, name = COLLECTION_OF_KIND[key.kind], key.name
        if name.endswith(SYNTHETIC_SUFFIX) and key.kind == "ServiceEntry":
            collection, name = SYNTHETIC_ENTRIES, name.removesuffix(SYNTHETIC_SUFFIX)
        return self._put(collection, _full_name(key.namespace, name), encode(config.spec) if config else None, config)

    def _update_service(self, key: ServiceKey) -> bool:
        service = self._world.services.peek(key)
        name = _full_name(key.namespace, key.host.replace("*", "any"))
        if service is None or service.config is not None or wildcard_host_reason(key.host):
            return self._put(SYNTHETIC_ENTRIES, name, None)
        entry = synthetic_entry(service, self._world.endpoints.peek(key))
        return self._put(SYNTHETIC_ENTRIES, name, encode(entry))

    def _put(
        self,
        collection: McpCollection,
        name: str,
        body: bytes | None,
        config: Config | None = None,
        *,
        annotations: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Store an encoded object, or remove it (None). True if that is a change."""
        if body is None:
            return self._store(collection, name, None)
        self._encoded += 1
        resource = McpResource(name, "", collection.type_url, body)
        if config is not None:
            resource = attrs.evolve(resource, created=config.created, labels=config.labels)
            annotations = config.annotations
        resource = attrs.evolve(resource, annotations=with_plane(annotations, self._plane_id))
        return self._store(collection, name, attrs.evolve(resource, version=_version(resource)))

    def _store(self, collection: McpCollection, name: str, resource: McpResource | None) -> bool:
        """Store a resource under its MCP and its xDS name. Over xDS, synthetic entries are among the ServiceEntries."""
        changed = self._collection(collection.name).put(name, resource)
        xds_name = collection.xds_name
        if collection is SYNTHETIC_ENTRIES:
            xds_name, name = COLLECTION_OF_KIND["ServiceEntry"].xds_name, name + SYNTHETIC_SUFFIX
            resource = attrs.evolve(resource, name=name) if resource else None
        if xds_name:
            self._collection(xds_name).put(name, resource)
        return changed

    def _collection(self, name: str) -> _VersionedCollection:
        return self._collections.setdefault(name, _VersionedCollection())


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _version(resource: McpResource) -> str:
    """A hash of the content: the same in any process."""
    metadata = (resource.created.isoformat(), sorted(resource.labels.items()), sorted(resource.annotations.items()))
    digest = hashlib.blake2b(repr(metadata).encode(), digest_size=8)
    digest.update(resource.body)
    return digest.hexdigest()
