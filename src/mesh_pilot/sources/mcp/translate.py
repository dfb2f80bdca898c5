"""From MCP resources to items of the World, and from changes of collections to events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import betterproto2

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.config.decode import Metadata, decode_binary
from mesh_pilot.config.mesh import decode_mesh, decode_networks
from mesh_pilot.config.plain import plain
from mesh_pilot.config.shapes import shape_of
from mesh_pilot.config.wire import parse
from mesh_pilot.kubernetes.objects import KubernetesObject, read_object
from mesh_pilot.kubernetes.services import KubernetesServices
from mesh_pilot.mcp.collections import MESH_CONFIG, SYNTHETIC_SUFFIX, McpCollection, is_same_message
from mesh_pilot.mcp.identity import DEFAULT_IDENTITY, PlaneIdentity, planes_passed
from mesh_pilot.mcp.messages import McpResource
from mesh_pilot.model.config import ConfigError, Origin, Problem, Severity
from mesh_pilot.model.events import (
    Accepted,
    Delete,
    Event,
    Item,
    MeshConfigValue,
    MeshNetworksValue,
    Rejected,
    Upsert,
    item_key,
)
from mesh_pilot.sources.mcp.sink import AppliedResponse

Key = tuple[str, ...]

T = TypeVar("T")

DecodedItem = Item | KubernetesObject

_ResourceId = tuple[str, str]
"""The requested name of a collection, and the name of a resource in it."""


def decode_item(
    collection: McpCollection, resource: McpResource, origin: Origin, identity: PlaneIdentity = DEFAULT_IDENTITY
) -> DecodedItem:
    """The item of a resource, or a part of one. Raises ConfigError with all problems."""
    if not resource.name:
        raise ConfigError(origin, None, (Problem("metadata.name", "is missing"),))
    if not is_same_message(collection.message_name, resource.type_url):
        reason = f"is a {resource.type_url or 'message of no type'}, not a {collection.type_url}"
        raise ConfigError(origin, None, (Problem("body", reason),))
    if collection.kind is None and not collection.kubernetes:
        return _mesh_item(collection, resource, origin, identity.root_namespace)
    namespace, _, name = resource.name.rpartition("/")
    metadata = Metadata(
        name=name + SYNTHETIC_SUFFIX if collection.synthetic else name,
        namespace="" if collection.kind is not None and collection.kind.cluster_scoped else namespace,
        created=resource.created,
        labels=resource.labels,
        annotations=resource.annotations,
    )
    if collection.kind is None:
        return _kubernetes_object(collection, resource, metadata, origin, identity.domain)
    return decode_binary(collection.kind, resource.body, metadata, origin=origin)


def _kubernetes_object(
    collection: McpCollection, resource: McpResource, metadata: Metadata, origin: Origin, domain: str
) -> KubernetesObject:
    try:
        body = parse(collection.message, resource.body, "", [])  # problems are those of fields without effect here
        if isinstance(body, core.ServiceSpec) and not (metadata.namespace and metadata.name):
            raise ValueError(f"{resource.name!r} is not namespace/name")
        return read_object(body, metadata, domain)  # type: ignore[arg-type]  # its message is a KubernetesBody
    except ValueError as error:
        reason = f"is no {collection.message_name} that can be read: {error}"
        raise ConfigError(origin, None, (Problem("", reason),)) from None


def _mesh_item(collection: McpCollection, resource: McpResource, origin: Origin, root_namespace: str) -> Item:
    problems: list[Problem] = []
    try:
        message = parse(collection.message, resource.body, "", problems)
    except ValueError as error:
        reason = f"is not an encoded {collection.message_name}: {error}"
        raise ConfigError(origin, None, (Problem("", reason),)) from None
    errors = tuple(problem for problem in problems if problem.severity is Severity.ERROR)
    if errors:
        raise ConfigError(origin, None, errors)
    data = plain(message)
    passed = planes_passed(resource.annotations)
    if collection is MESH_CONFIG:
        # The server has merged its defaults in: false means false here, and not the default.
        data |= {name: False for name in _MESH_FLAGS if name not in data}
        # For the same reason there are no warnings of fields without effect.
        return MeshConfigValue(decode_mesh(data, origin=origin, root_namespace=root_namespace), origin, passed=passed)
    return MeshNetworksValue(decode_networks(data, origin=origin), origin, passed=passed)


def _flags(message: type[betterproto2.Message]) -> Iterator[str]:
    """The JSON names of a message's plain booleans."""
    return (
        field.json_name
        for field in shape_of(message).fields
        if field.proto_type == "bool" and not (field.repeated or field.optional or field.carrier)
    )


_MESH_FLAGS = tuple(_flags(MeshConfig))


class EventTranslator:
    """Turns changes of one server's collections into events.

    Several resources, of one collection or two, may be the same item: the latest is in force, and the item is deleted
    with the last of them. For users, the aliases of a collection are one location. Kubernetes objects are joined.

    State: the resources of each item, oldest first; the rejections of each location; the rejections sent last, by item
    key if known, else by location.
    """

    def __init__(
        self,
        source: str,
        peer: str,
        collections: Mapping[str, McpCollection],
        identity: PlaneIdentity = DEFAULT_IDENTITY,
    ) -> None:
        self._source = source
        self._peer = peer
        self._collections = collections
        self._first_name: dict[McpCollection, str] = {}
        for name, collection in collections.items():
            self._first_name.setdefault(collection, name)
        self._resources: dict[Key, dict[_ResourceId, Item]] = {}
        self._rejections: dict[str, dict[_ResourceId, Rejected]] = {}
        self._sent: dict[Key | str, Rejected] = {}
        self._kubernetes = KubernetesServices(identity.trust_domain)

    def __len__(self) -> int:
        """The number of items in force."""
        return len(self._resources) + len(self._kubernetes)

    @property
    def items(self) -> tuple[Item, ...]:
        """The items in force."""
        return (*map(_latest, self._resources.values()), *self._kubernetes.items)

    @property
    def rejections(self) -> tuple[Rejected, ...]:
        """The rejections that hold, one for each location."""
        return tuple(map(_latest, self._rejections.values()))

    def origin(self, collection: str, name: str) -> Origin:
        """Where a resource is, for users: ``galley:9901 istio/networking/v1alpha3/gateways shop/web``."""
        shown = self._first_name[self._collections[collection]]
        return Origin(self._source, f"{self._peer} {shown} {name}")

    def events(self, applied: AppliedResponse[DecodedItem]) -> Iterator[Event]:
        """The events of an applied response."""
        for change in self._changes(applied):
            if isinstance(change, tuple):
                yield Delete(self._source, change)
            else:
                self._sent.pop(item_key(change), None)  # an Upsert ends the rejection of its item
                yield Upsert(self._source, change)
        yield from self._rejection_events(applied)

    def _changes(self, applied: AppliedResponse[DecodedItem]) -> Iterator[Item | Key]:
        """New and changed items, and the keys of items that are gone."""
        collection = self._collections.get(applied.collection)
        if collection is None:
            return
        if collection.kubernetes:
            upserted = {name: value for name, value in applied.upserted.items() if isinstance(value, KubernetesObject)}
            removed = {name: value for name, value in applied.removed if isinstance(value, KubernetesObject)}
            yield from self._kubernetes.apply(upserted, removed)
            return
        yield from self._item_changes(applied)
        if collection.synthetic:
            yield from self._kubernetes.apply_synthetic(applied.upserted, (name for name, _ in applied.removed))

    def _item_changes(self, applied: AppliedResponse[DecodedItem]) -> Iterator[Item | Key]:
        before: dict[Key, Item | None] = {}
        for name, item in applied.removed:
            assert not isinstance(item, KubernetesObject)
            key = item_key(item)
            resources = self._resources[key]
            before.setdefault(key, _latest(resources))
            del resources[applied.collection, name]
        for name, item in applied.upserted.items():
            assert not isinstance(item, KubernetesObject)
            key = item_key(item)
            resources = self._resources.setdefault(key, {})
            before.setdefault(key, _latest(resources) if resources else None)
            resources.pop((applied.collection, name), None)
            resources[applied.collection, name] = item
        for key, old in before.items():
            if not self._resources[key]:
                del self._resources[key]
                yield key
            elif (new := _latest(self._resources[key])) is not old:
                yield new

    def _rejection_events(self, applied: AppliedResponse[DecodedItem]) -> Iterator[Event]:
        collection = applied.collection
        for name in applied.recovered:
            location = self.origin(collection, name).location
            rejections = self._rejections.get(location, {})
            rejected = rejections.pop((collection, name), None)
            if rejected is not None and not rejections:
                del self._rejections[location]
                self._sent.pop(rejected.key or location, None)
                yield Accepted(self._source, location)
        for invalid in applied.rejected:
            name = invalid.resource.name
            origin = self.origin(collection, name)
            rejected = Rejected(self._source, origin, invalid.problems, self._key(collection, name))
            self._rejections.setdefault(origin.location, {})[collection, name] = rejected
            if self._sent.get(rejected.key or origin.location) != rejected:
                self._sent[rejected.key or origin.location] = rejected
                yield rejected

    def _key(self, collection: str, name: str) -> Key | None:
        """The item key of a resource; None if its name does not determine it."""
        found = self._collections[collection]
        if found.kind is None or not name:
            return None
        namespace, _, short = name.rpartition("/")
        suffix = SYNTHETIC_SUFFIX if found.synthetic else ""
        return ("config", found.kind.name, "" if found.kind.cluster_scoped else namespace, short + suffix)


def _latest(resources: dict[_ResourceId, T]) -> T:
    return resources[next(reversed(resources))]
