"""Planning: what a change of objects does to proxies, by the code that serves.

    planner = Planner(picture, proxies)     # every proxy gets all that it would be sent now
    plan = planner.plan(changes)            # and then what the changes come to, as a push would

One World takes the changes as the plane's would, so that a plan, like a push, costs what the changes touch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from mesh_pilot.analysis.analyze import analyze_picture, standing_problems
from mesh_pilot.analysis.findings import AnalysisMessage
from mesh_pilot.analysis.picture import picture_of
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.failing import StandingFailure
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES, Resource
from mesh_pilot.plan.client import PlannedClient, Received
from mesh_pilot.plan.objects import ObjectChange
from mesh_pilot.plan.past_world import past_world
from mesh_pilot.plan.picture import ConnectedProxy, PlanePicture
from mesh_pilot.plan.references import References, references_of
from mesh_pilot.xds.encode import Encoder
from mesh_pilot.xds.messages import Response

TRIED_ALONE = 50
"""Changes that are tried one by one, at most, to tell which of them causes what."""

Held = Mapping[str, Mapping[str, Resource]]


@attrs.frozen
class ResourceChange:
    """A resource that proxies get, lose, or get in another version."""

    type_url: str
    name: str
    before: Resource | None
    after: Resource | None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.type_url, self.name, _version(self.before), _version(self.after))

    @property
    def short(self) -> str:
        """The type in short, such as ``RDS``."""
        return RESOURCE_TYPES[self.type_url].short


def _version(resource: Resource | None) -> str:
    return resource.version if resource is not None else ""


@attrs.frozen
class ProxyPlan:
    """The changes of one proxy's resources."""

    proxy: Proxy
    changes: tuple[ResourceChange, ...]
    received: Received


@attrs.frozen
class PlannedResource:
    """A change of a resource, with all proxies to which just this happens."""

    change: ResourceChange
    proxies: tuple[str, ...]
    """Names."""
    causes: tuple[ObjectChange, ...]
    """The changed objects that it follows from; empty if nobody can tell."""


@attrs.frozen
class Plan:
    """The outcome of changed objects."""

    objects: tuple[ObjectChange, ...]
    proxies: tuple[ProxyPlan, ...]
    """All proxies that were looked at, by name."""
    resources: tuple[PlannedResource, ...]
    """By type in the order in which they are sent, and name."""
    new_findings: tuple[AnalysisMessage, ...]
    gone_findings: tuple[AnalysisMessage, ...]
    failures: tuple[str, ...]
    """Internal errors that the changes bring; empty in all but a fault of mesh-pilot."""

    @property
    def touched(self) -> tuple[ProxyPlan, ...]:
        """The proxies that are sent something."""
        return tuple(each for each in self.proxies if each.changes or each.received.responses)

    @property
    def bytes(self) -> int:
        """The bytes of the responses to all proxies, before HTTP/2."""
        return sum(each.received.bytes for each in self.proxies)


class Planner:
    """A World and its proxies, as they are before the change.

    Mutable state: the World and the clients, which `plan` takes to the state after the change.
    """

    def __init__(
        self, picture: PlanePicture, proxies: Sequence[ConnectedProxy], connected: Sequence[Proxy] | None = None
    ) -> None:
        """``connected``: all proxies of the plane, for the analyzers; None if that is not known."""
        self._is_whole = picture.is_whole
        self._connected = connected
        self.world = past_world(picture.items, picture.settings)
        self._catalog = WorldCatalog(self.world, split=picture.split)
        self._encoder = Encoder(f"mesh-pilot {picture.version}")
        self._known: dict[tuple[str, str, str], References] = {}
        self._clients = [PlannedClient(self._catalog, each, self._references, self._size) for each in proxies]
        for client in self._clients:
            client.connect()
            client.settle()
        self._before: list[Held] = [client.held() for client in self._clients]

    def __repr__(self) -> str:
        return f"<Planner {len(self._clients)} proxies, {self.world.statistics().services} services>"

    def plan(self, changes: Sequence[ObjectChange]) -> Plan:
        """The outcome of these changes, taken as one."""
        failing = {str(each.failure) for each in self._catalog.failures()}
        found = self._findings()
        self.world.apply(change.event for change in changes)
        received = [client.settle() for client in self._clients]
        proxies = tuple(
            ProxyPlan(client.connected.proxy, tuple(_changes(before, client.held())), got)
            for client, before, got in zip(self._clients, self._before, received, strict=True)
        )
        now = self._findings()
        failures = sorted(
            {_failure_text(each) for each in self._catalog.failures() if str(each.failure) not in failing}
        )
        return Plan(
            tuple(changes),
            proxies,
            tuple(self._resources(proxies, changes)),
            tuple(message for key, message in now.items() if key not in found),
            tuple(message for key, message in found.items() if key not in now),
            tuple(failures),
        )

    def _findings(self) -> dict[tuple[object, ...], AnalysisMessage]:
        """The messages of the analyzers, by what makes two of them the same."""
        world, whole = self.world, self._is_whole
        standing = tuple(standing_problems(world))
        seen = picture_of(world, self._connected, standing=standing, is_whole=whole, has_secrets=whole)
        return {(each.type.code, each.config.key, each.path, each.text): each for each in analyze_picture(seen)}

    def _resources(self, proxies: Sequence[ProxyPlan], changes: Sequence[ObjectChange]) -> Iterator[PlannedResource]:
        """The changes of resources, each once."""
        by_key: dict[tuple[str, str, str, str], tuple[ResourceChange, list[int]]] = {}
        for number, each in enumerate(proxies):
            for change in each.changes:
                by_key.setdefault(change.key, (change, []))[1].append(number)
        causes = self._causes(by_key.values(), changes)
        order = [*RESOURCE_TYPES]
        for key in sorted(by_key, key=lambda key: (order.index(key[0]), *key[1:])):
            change, numbers = by_key[key]
            names = tuple(dict.fromkeys(proxies[number].proxy.name for number in numbers))
            yield PlannedResource(change, names, causes.get(key, ()))

    # -- causes

    def _causes(
        self, found: Iterable[tuple[ResourceChange, list[int]]], changes: Sequence[ObjectChange]
    ) -> dict[tuple[str, str, str, str], tuple[ObjectChange, ...]]:
        """The changed objects that each change of a resource follows from."""
        by_config = {ConfigKey(*change.key[1:]): change for change in changes if change.key[0] == "config"}
        causes: dict[tuple[str, str, str, str], tuple[ObjectChange, ...]] = {}
        unexplained: dict[tuple[str, str], tuple[str, str, str, str]] = {}
        clients: dict[int, None] = {}
        for change, numbers in found:
            if len(changes) == 1:
                causes[change.key] = tuple(changes)
                continue
            made_from = dict.fromkeys(key for side in (change.before, change.after) if side for key in side.configs)
            named = tuple(by_config[key] for key in made_from if key in by_config)
            if named:
                causes[change.key] = named
            else:
                unexplained[change.type_url, change.name] = change.key
                clients[numbers[0]] = None
        if unexplained and len(changes) <= TRIED_ALONE:
            of_alone = self._tried_alone(unexplained.keys(), [*clients], changes)
            causes |= {unexplained[subject]: tuple(alone) for subject, alone in of_alone.items()}
        return causes

    def _tried_alone(
        self, subjects: Iterable[tuple[str, str]], clients: Sequence[int], changes: Sequence[ObjectChange]
    ) -> Mapping[tuple[str, str], list[ObjectChange]]:
        """Which change, made alone, changes which of these resources. The World is left without any change."""
        wanted = set(subjects)
        found: defaultdict[tuple[str, str], list[ObjectChange]] = defaultdict(list)
        self.world.apply(change.undo for change in changes)
        for number in clients:
            self._clients[number].settle()
        for change in changes:
            self.world.apply([change.event])
            for number in clients:
                self._clients[number].settle()
                for moved in _changes(self._before[number], self._clients[number].held()):
                    subject = moved.type_url, moved.name
                    if subject in wanted and change not in found[subject]:
                        found[subject].append(change)
            self.world.apply([change.undo])
            for number in clients:
                self._clients[number].settle()
        return found

    # -- shared by all clients

    def _references(self, resource: Resource) -> References:
        key = (resource.type_url, resource.name, resource.version)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = references_of(resource)
        return found

    def _size(self, response: Response) -> int:
        return len(self._encoder.encode(response))


def _changes(before: Held, after: Held) -> Iterator[ResourceChange]:
    for type_url in RESOURCE_TYPES:
        old, new = before.get(type_url, {}), after.get(type_url, {})
        if old == new:
            continue
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                yield ResourceChange(type_url, name, old.get(name), new.get(name))


def _failure_text(standing: StandingFailure) -> str:
    return f"{standing.failure}: {standing.failure.error}"
