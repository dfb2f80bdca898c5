"""From MCP resources to items of the World, and from changes of collections to events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import betterproto2

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.istio.kubernetes.objects import KubernetesObject, read_object
from mesh_pilot.istio.kubernetes.services import KubernetesServices
from mesh_pilot.istio.kubernetes.validation import check_object
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.istio.reading.decode import Metadata, decode_binary
from mesh_pilot.istio.reading.decode_proto import parse_message
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.istio.reading.mesh import decode_mesh, decode_networks
from mesh_pilot.istio.reading.problems import Problems, TooManyErrorsError, as_reported
from mesh_pilot.model.config import ConfigError, Origin, Problem, Severity
from mesh_pilot.model.events import Event, Item, MeshConfigValue, MeshNetworksValue, item_key
from mesh_pilot.sources.base.published import (
    InvalidObject,
    Key,
    LocationContent,
    Precedence,
    PublishedState,
    ValidObject,
)
from mesh_pilot.sources.mcp.galley import object_of
from mesh_pilot.sources.mcp.sink import AppliedResponse
from mesh_pilot.xds.mcp.collections import MESH_CONFIG, SYNTHETIC_SUFFIX, McpCollection, is_same_message
from mesh_pilot.xds.mcp.identity import DEFAULT_IDENTITY, PlaneIdentity, planes_passed
from mesh_pilot.xds.mcp.messages import McpResource

DecodedItem = Item | KubernetesObject

_Location = tuple[str, str]
"""The requested name of a collection, empty for joined Kubernetes services, and the name of a resource in it."""


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
        # Its problems are warnings about fields without effect: Kubernetes' objects have more than is read of them.
        body = parse_message(collection.message, resource.body, "", [])
        if isinstance(body, core.ServiceSpec) and not (metadata.namespace and metadata.name):
            raise ValueError(f"{resource.name!r} is not namespace/name")
    except ValueError as error:
        reason = f"is not a readable {collection.message_name}: {error}"
        raise ConfigError(origin, None, (Problem("", reason),)) from None
    kind, found = object_of(body, metadata)  # type: ignore[arg-type]  # its message is a KubernetesBody
    problems = Problems()
    with suppress(TooManyErrorsError):
        problems.take(check_object(kind, found, domain))
    if problems:
        raise ConfigError(origin, None, as_reported(problems, lambda _: 0))
    read = read_object(kind, found, domain)
    assert read is not None  # only slices are skipped, and a Galley has none
    return read


def _mesh_item(collection: McpCollection, resource: McpResource, origin: Origin, root_namespace: str) -> Item:
    problems: list[Problem] = []
    try:
        message = parse_message(collection.message, resource.body, "", problems)
    except ValueError as error:
        reason = f"is not an encoded {collection.message_name}: {error}"
        raise ConfigError(origin, None, (Problem("", reason),)) from None
    errors = tuple(problem for problem in problems if problem.severity is Severity.ERROR)
    if errors:
        raise ConfigError(origin, None, errors)
    data = to_json(message)
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
        for field in descriptor_of(message).fields
        if field.proto_type == "bool" and not (field.repeated or field.optional or field.carrier)
    )


_MESH_FLAGS = tuple(_flags(MeshConfig))


class EventTranslator:
    """Turns changes of one server's collections into events.

    Several resources, of one collection or two, may be the same item: the latest is in force, and the item is deleted
    with the last of them. For users, the aliases of a collection are one location. Kubernetes objects are joined.
    """

    def __init__(
        self,
        source: str,
        peer: str,
        collections: Mapping[str, McpCollection],
        identity: PlaneIdentity = DEFAULT_IDENTITY,
    ) -> None:
        self.published = PublishedState[_Location](source, Precedence.LATEST, describe=self._describe)
        self._source = source
        self._peer = peer
        self._collections = collections
        self._first_name: dict[McpCollection, str] = {}
        for name, collection in collections.items():
            self._first_name.setdefault(collection, name)
        self._kubernetes = KubernetesServices(system_namespace=identity.root_namespace)

    def __repr__(self) -> str:
        return f"<EventTranslator {self.published!r}, {self._kubernetes!r}>"

    def origin(self, collection: str, name: str) -> Origin:
        return Origin(self._source, self._describe((collection, name)))

    def _describe(self, location: _Location) -> str:
        """A location as users see it: ``galley:9901 istio/networking/v1alpha3/gateways shop/web``."""
        collection, name = location
        shown = self._first_name[self._collections[collection]] if collection else "kubernetes"
        return f"{self._peer} {shown} {name}"

    def events(self, applied: AppliedResponse[DecodedItem], version: str = "") -> list[Event]:
        """The events of an applied response; none before the state is announced. `version`: that of the response."""
        collection = self._collections.get(applied.collection)
        if collection is None:
            return []
        cause = f"version {version}" if version else ""
        readings = dict(self._readings(collection, applied))
        return self.published.update(readings, cause=cause, explicit=applied.names_removed)

    def _readings(
        self, collection: McpCollection, applied: AppliedResponse[DecodedItem]
    ) -> Iterator[tuple[_Location, LocationContent | None]]:
        removed = dict(applied.removed)
        for name in (*applied.recovered, *removed):
            yield (applied.collection, name), None
        for name, value in applied.upserted.items():
            # A Kubernetes object is not an item itself: only the services that it is part of are.
            content = None if isinstance(value, KubernetesObject) else _content((value,))
            yield (applied.collection, name), content
        for rejected in applied.rejected:
            location = (applied.collection, rejected.resource.name)
            yield location, self._rejected_content(collection, location, rejected.problems)
        services: Iterable[str] = ()
        if collection.kubernetes:
            services = self._kubernetes.apply(_kubernetes_objects(applied.upserted), _kubernetes_objects(removed))
        elif collection.synthetic:
            services = self._kubernetes.apply_synthetic(applied.upserted, removed)
        for service in services:
            items = self._kubernetes.items(service)
            yield ("", service), _content(items) if items else None

    def _rejected_content(
        self, collection: McpCollection, location: _Location, problems: tuple[Problem, ...]
    ) -> LocationContent:
        """The content of a location whose resource is invalid: its last valid item stays."""
        objects = self.published.content(location).objects
        key = _key_of(collection, location[1])
        if key is None:
            return LocationContent(objects, problems)
        return LocationContent({**objects, key: InvalidObject(problems, key)})


def _content(items: Iterable[Item]) -> LocationContent:
    keyed = ((item_key(item), item) for item in items)
    return LocationContent({key: ValidObject(key, item) for key, item in keyed})


def _kubernetes_objects(values: Mapping[str, DecodedItem]) -> dict[str, KubernetesObject]:
    return {name: value for name, value in values.items() if isinstance(value, KubernetesObject)}


def _key_of(collection: McpCollection, name: str) -> Key | None:
    """The item key of a resource; None if its name does not determine it."""
    if collection.kind is None or not name:
        return None
    namespace, _, short = name.rpartition("/")
    suffix = SYNTHETIC_SUFFIX if collection.synthetic else ""
    return ("config", collection.kind.name, "" if collection.kind.cluster_scoped else namespace, short + suffix)
