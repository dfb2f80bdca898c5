"""What a resource of a collection is to the World, and how changes of collections become events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import betterproto2

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.config.decode import Metadata, decode_binary
from mesh_pilot.config.mesh import decode_mesh, decode_networks
from mesh_pilot.config.plain import plain
from mesh_pilot.config.shapes import shape_of
from mesh_pilot.config.wire import parse
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
from mesh_pilot.sources.mcp.cluster import Cluster
from mesh_pilot.sources.mcp.collections import MESH_CONFIG, Collection, same_message
from mesh_pilot.sources.mcp.here import DEFAULT_HERE, Here, marks
from mesh_pilot.sources.mcp.kubernetes import KubernetesValue, read_kubernetes
from mesh_pilot.sources.mcp.messages import Resource
from mesh_pilot.sources.mcp.sink import Outcome

Key = tuple[str, ...]

T = TypeVar("T")

Value = Item | KubernetesValue
"""What a resource is found to be."""

_Place = tuple[str, str]
"""A collection, by the name it was asked for, and a resource in it."""

SYNTHETIC_SUFFIX = ".synthetic"
"""Ends the names of configs made of synthetic service entries: a ServiceEntry that people wrote may have the same."""


def location_of(peer: str, collection: str, name: str) -> str:
    """Where a resource stands, for people: ``galley:9901 istio/networking/v1alpha3/gateways shop/web``."""
    return f"{peer} {collection} {name}"


def read_item(
    collection: Collection,
    resource: Resource,
    origin: Origin,
    here: Here = DEFAULT_HERE,
) -> Value:
    """The item that a resource gives, or its part in one. Raises ConfigError with all that is wrong with it."""
    if not resource.name:
        raise ConfigError(origin, None, (Problem("metadata.name", "is missing"),))
    if not same_message(collection.message_name, resource.type_url):
        reason = f"is a {resource.type_url or 'message of no type'}, not a {collection.type_url}"
        raise ConfigError(origin, None, (Problem("body", reason),))
    if collection.kubernetes:
        return _kubernetes_value(collection, resource, origin, here.domain)
    if collection.kind is None:
        return _mesh_item(collection, resource, origin, here.root_namespace)
    namespace, _, name = resource.name.rpartition("/")
    metadata = Metadata(
        name=name + SYNTHETIC_SUFFIX if collection.synthetic else name,
        namespace="" if collection.kind.cluster_scoped else namespace,
        created=resource.created,
        labels=resource.labels,
        annotations=resource.annotations,
    )
    return decode_binary(collection.kind, resource.body, metadata, origin=origin)


def _kubernetes_value(collection: Collection, resource: Resource, origin: Origin, domain: str) -> KubernetesValue:
    try:
        body = parse(collection.message, resource.body, "", [])  # of many fields that are not read
        return read_kubernetes(body, resource, domain)  # type: ignore[arg-type]  # the table of collections has these
    except ValueError as error:
        reason = f"is no {collection.message_name} that can be read: {error}"
        raise ConfigError(origin, None, (Problem("", reason),)) from None


def _mesh_item(collection: Collection, resource: Resource, origin: Origin, root_namespace: str) -> Item:
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
    passed = marks(resource.annotations)
    if collection is MESH_CONFIG:
        # The sender merged its defaults in: what is false there is meant to be false.
        data |= {name: False for name in _FLAGS if name not in data}
        # For the same reason, fields that have no effect are not worth a warning.
        return MeshConfigValue(decode_mesh(data, origin=origin, root_namespace=root_namespace), origin, passed=passed)
    return MeshNetworksValue(decode_networks(data, origin=origin), origin, passed=passed)


def _flags(message: type[betterproto2.Message]) -> Iterator[str]:
    """The JSON names of a message's plain booleans."""
    return (
        field.json_name
        for field in shape_of(message).fields
        if field.proto_type == "bool" and not (field.repeated or field.optional or field.carrier)
    )


_FLAGS = tuple(_flags(MeshConfig))


class Teller:
    """Turns changes of collections into events of one source.

    Several resources, of one collection or of two, may be the same item: the one that came last is in force, and the
    item is gone when the last of them is. A collection that goes by two names is one place to people. Objects of
    Kubernetes are joined.

    State: which resources give each item, in the order in which they came, the rejections that stand, by location,
    and those that were told and are not over, by item or else location.
    """

    def __init__(
        self, source: str, peer: str, collections: Mapping[str, Collection], here: Here = DEFAULT_HERE
    ) -> None:
        self._source = source
        self._peer = peer
        self._collections = collections
        self._first_name: dict[Collection, str] = {}
        for name, collection in collections.items():
            self._first_name.setdefault(collection, name)
        self._givers: dict[Key, dict[_Place, Item]] = {}
        self._standing: dict[str, dict[_Place, Rejected]] = {}
        self._told: dict[Key | str, Rejected] = {}
        self._cluster = Cluster(here)

    def __len__(self) -> int:
        """How many items are in force."""
        return len(self._givers) + len(self._cluster)

    @property
    def items(self) -> tuple[Item, ...]:
        """Everything in force."""
        return (*map(_last, self._givers.values()), *self._cluster.items)

    @property
    def rejections(self) -> tuple[Rejected, ...]:
        """Everything that stands refused, once by its place."""
        return tuple(map(_last, self._standing.values()))

    def origin(self, collection: str, name: str) -> Origin:
        shown = self._first_name[self._collections[collection]]
        return Origin(self._source, location_of(self._peer, shown, name))

    def problems(self, collection: str, name: str) -> tuple[Problem, ...]:
        """What is wrong with a resource that stands refused."""
        return self._standing[self.origin(collection, name).location][collection, name].problems

    def tell(self, outcome: Outcome[Value], problems: dict[str, tuple[Problem, ...]]) -> Iterator[Event]:
        """The events of what a response came to; ``problems`` has all that is wrong with each refused resource."""
        for change in self._changes(outcome):
            if isinstance(change, tuple):
                yield Delete(self._source, change)
            else:
                self._told.pop(item_key(change), None)  # an item that is good again ends its rejection
                yield Upsert(self._source, change)
        yield from self._verdicts(outcome, problems)

    def _changes(self, outcome: Outcome[Value]) -> Iterator[Item | Key]:
        """Items that are new, and keys of what is gone."""
        collection = self._collections.get(outcome.collection)
        if collection is None:
            return
        if collection.kubernetes:
            put = {name: value for name, value in outcome.put.items() if isinstance(value, KubernetesValue)}
            dropped = {name: value for name, value in outcome.dropped if isinstance(value, KubernetesValue)}
            yield from self._cluster.change(put, dropped)
            return
        yield from self._item_changes(outcome)
        if collection.synthetic:
            yield from self._cluster.change_synthetic(outcome.put, (name for name, _ in outcome.dropped))

    def _item_changes(self, outcome: Outcome[Value]) -> Iterator[Item | Key]:
        before: dict[Key, Item | None] = {}
        for name, item in outcome.dropped:
            assert not isinstance(item, KubernetesValue)
            key = item_key(item)
            givers = self._givers[key]
            before.setdefault(key, _last(givers))
            del givers[outcome.collection, name]
        for name, item in outcome.put.items():
            assert not isinstance(item, KubernetesValue)
            key = item_key(item)
            givers = self._givers.setdefault(key, {})
            before.setdefault(key, _last(givers) if givers else None)
            givers.pop((outcome.collection, name), None)
            givers[outcome.collection, name] = item
        for key, old in before.items():
            if not self._givers[key]:
                del self._givers[key]
                yield key
            elif (new := _last(self._givers[key])) is not old:
                yield new

    def _verdicts(self, outcome: Outcome[Value], problems: dict[str, tuple[Problem, ...]]) -> Iterator[Event]:
        collection = outcome.collection
        for name in outcome.recovered:
            location = self.origin(collection, name).location
            standing = self._standing.get(location, {})
            rejected = standing.pop((collection, name), None)
            if rejected is not None and not standing:
                del self._standing[location]
                self._told.pop(rejected.key or location, None)
                yield Accepted(self._source, location)
        for bad in outcome.refused:
            name = bad.resource.name
            origin = self.origin(collection, name)
            rejected = Rejected(self._source, origin, problems[name], self._key(collection, name))
            self._standing.setdefault(origin.location, {})[collection, name] = rejected
            if self._told.get(rejected.key or origin.location) != rejected:
                self._told[rejected.key or origin.location] = rejected
                yield rejected

    def _key(self, collection: str, name: str) -> Key | None:
        """The item key of a resource, where its name gives it."""
        found = self._collections[collection]
        if found.kind is None or not name:
            return None
        namespace, _, own = name.rpartition("/")
        suffix = SYNTHETIC_SUFFIX if found.synthetic else ""
        return ("config", found.kind.name, "" if found.kind.cluster_scoped else namespace, own + suffix)


def _last(given: dict[_Place, T]) -> T:
    return given[next(reversed(given))]
