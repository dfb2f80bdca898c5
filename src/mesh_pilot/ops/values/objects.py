"""Objects, each with its state, and problems of single objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import attrs

from mesh_pilot.api.istio.networking.v1alpha3 import DestinationRule, ServiceEntry, VirtualService
from mesh_pilot.explain.analysis.object_problems import reference_lines, rejected_lines, warning_lines
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.counts import counted
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue
from mesh_pilot.model.json import IF_GIVEN, SPREAD, Json, called
from mesh_pilot.ops.values.assessments import Assessment
from mesh_pilot.ops.values.truth import ObjectTruth
from mesh_pilot.sources.base.contract import Ignoring
from mesh_pilot.sources.base.supervisor import SupervisorStatistics
from mesh_pilot.world import World
from mesh_pilot.xds.ads.config_dump import ObjectFacts, config_dump
from mesh_pilot.xds.ads.status import TypeDump


def object_facts(world: World, key: ConfigKey) -> ObjectFacts | None:
    """The facts of an object in force. A single read of an index, which a thread may do, too."""
    config = world.config.peek(key)
    if config is None:
        return None
    return ObjectFacts(config.origin, tuple(world.full_host(host, key.namespace) for host in hosts_of(config.spec)))


def registry_of(world: World, host: str) -> str:
    """The registry of a service that no object declares; empty if one does, or if there is no such service."""
    found = world.services_named.peek(host)
    return next((service.registry for service in found if service.config is None), "")


def explained_dump(world: World, dumps: tuple[TypeDump, ...]) -> Json:
    """A proxy's dump with the places of what it was made from; a thread may make it."""
    return config_dump(dumps, partial(object_facts, world), partial(registry_of, world))


def hosts_of(spec: object) -> Iterable[str]:
    """The hosts that the spec of an object names as its own."""
    match spec:
        case VirtualService(hosts=hosts) | ServiceEntry(hosts=hosts):
            return hosts
        case DestinationRule(host=host):
            return (host,)
    return ()


@attrs.frozen(kw_only=True)
class ObjectProblem:
    """A problem of an object: refused, a warning, or a condition of its status."""

    source: str | None = attrs.field(default=None, metadata=IF_GIVEN)
    where: str | None = attrs.field(default=None, metadata=IF_GIVEN)
    """File and line, or another place."""
    object: str | None = attrs.field(default=None, metadata=IF_GIVEN)
    """``VirtualService/shop/reviews``, as far as it is known."""
    field: str | None = attrs.field(default=None, metadata=IF_GIVEN)
    """``spec.http[0].route``"""
    reason: str
    severity: str | None = attrs.field(default=None, metadata=IF_GIVEN)


@attrs.frozen
class ObjectSummary:
    """An object in force, in a list."""

    kind: str
    namespace: str
    name: str
    api_version: str = attrs.field(metadata=called("apiVersion"))
    origin: str
    """The place where it was read."""
    warnings: int
    refused: bool
    """True if a newer version of it is refused, and this one is kept."""
    assessment: Assessment = attrs.field(metadata=SPREAD)
    """The worst state that it is in at a proxy that it applies to."""


@attrs.frozen
class Product:
    """A resource that is made of an object."""

    type: str
    name: str
    proxies: int
    """The number of connected proxies that have accepted it,"""
    first: str
    """and one of them."""


@attrs.frozen
class ObjectState:
    """An object with its state: what is wrong with it, and what connected proxies have of it."""

    object: Json
    """As it was read, with its ``origin``; null while it is refused and no earlier version is in force."""
    status: Json
    """The status of an object of the Gateway API."""
    becomes: Sequence[str]
    """The objects of Istio's kinds that an object of the Gateway API becomes."""
    problems: Sequence[ObjectProblem]
    produces: Sequence[Product]
    truth: ObjectTruth
    """The answer to whether its newest version is in force."""
    assessment: Assessment = attrs.field(metadata=SPREAD)
    """The truth, and the errors that analyzers find, in a word."""


def rejections(world: World) -> Iterator[ObjectProblem]:
    """Refused objects: an entry for each problem."""
    for rejected in world.rejections():
        for line in rejected_lines(rejected):
            yield ObjectProblem(source=rejected.source, **line)


def warnings(world: World) -> Iterator[ObjectProblem]:
    """Warnings about accepted configs and mesh-wide settings."""
    for item in _items_with_warnings(world):
        yield from (ObjectProblem(**line) for line in warning_lines(item))
    yield from (ObjectProblem(**line) for line in reference_lines(world))


def _items_with_warnings(world: World) -> list[Config | MeshConfigValue | MeshNetworksValue]:
    """Configs and settings with warnings, in order."""
    found = (config for _, config in world.config.items() if config is not None and config.warnings)
    settings = (item for item in world.mesh_settings() if item.warnings)
    return [*settings, *sorted(found, key=lambda config: config.key)]


def ignored(sources: Iterable[SupervisorStatistics]) -> list[ObjectProblem]:
    """Kinds of objects that sources ignore although users may expect them to be read."""
    return [
        ObjectProblem(
            where=kind.first,
            object=f"{kind.api_version} {kind.kind}",
            field="",
            reason=f"{counted(kind.count, 'object')} of this kind ignored: {kind.reason}",
        )
        for own in sources
        if isinstance(own.source, Ignoring)
        for kind in own.source.ignored
        if kind.reason
    ]
