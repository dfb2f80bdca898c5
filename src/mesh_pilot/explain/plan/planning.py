"""Planning: what a change of objects does to proxies, by the code that serves.

    plan = Planner(picture, proxies).plan(changes)

Every proxy gets all that it would be sent now, and then what the changes come to, as a push would send it.

One World takes the changes as the plane's would, so that a plan, like a push, costs what the changes touch.

Two Worlds from scratch, compared, would be simpler; but it would be twice the work, and say nothing of order, responses
and bytes. An overlay in the plane itself would share all that is derived already; but the World belongs to the plane's
event loop, and the differences of a hundred proxies take it seconds in which no proxy is pushed anything. So it is the
client that computes, from a picture of the plane. Proxies are looked at in hundreds, for which the World takes the
change and gives it back: each holds references to all its resources. Decision 021 has the measurements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import attrs

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.failing import StandingFailure
from mesh_pilot.explain.analysis.analyze import analyze_picture, standing_problems
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.input import picture_of
from mesh_pilot.explain.plan.client import PlannedClient, Received
from mesh_pilot.explain.plan.modules import unknown_modules
from mesh_pilot.explain.plan.objects import ObjectChange
from mesh_pilot.explain.plan.past_world import past_world
from mesh_pilot.explain.plan.picture import ConnectedProxy, PlanePicture
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, Event, Rejected, Synced, Upsert, item_key
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES, Resource
from mesh_pilot.world.host_admission import HostAdmission
from mesh_pilot.world.host_ownership import SOURCE as OWNERS
from mesh_pilot.world.host_ownership import HostOwnership
from mesh_pilot.world.intake import Admitted, ItemChange
from mesh_pilot.xds.ads.encode import Encoder
from mesh_pilot.xds.ads.messages import Response
from mesh_pilot.xds.ads.references import References, references_of

PROXIES_AT_ONCE = 100
"""Proxies that are looked at together: each holds references to all of its resources."""

TRIED_ALONE = 50
"""Changes that are tried one by one, at most, to tell which of them causes what."""

T = TypeVar("T")

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
    """The changed objects that it follows from; empty if they cannot be known."""


@attrs.frozen
class Plan:
    """The outcome of changed objects."""

    objects: tuple[ObjectChange, ...]
    proxies: tuple[ProxyPlan, ...]
    """All proxies that were looked at, by name."""
    resources: tuple[PlannedResource, ...]
    """Resources by type, in the order in which they are sent, and name."""
    new_findings: tuple[AnalysisMessage, ...]
    gone_findings: tuple[AnalysisMessage, ...]
    failures: tuple[str, ...]
    """Internal errors that the changes bring; empty in all but a fault of mesh-pilot."""
    kept_back: Mapping[str, str] = attrs.field(factory=dict)
    """The changed objects, by name, that not all proxies have now as they are written, and why."""

    @property
    def touched(self) -> tuple[ProxyPlan, ...]:
        """The proxies that are sent something."""
        return tuple(each for each in self.proxies if each.changes or each.received.responses)

    @property
    def bytes(self) -> int:
        """The bytes of the responses to all proxies, before HTTP/2."""
        return sum(each.received.bytes for each in self.proxies)


class Planner:
    """A World as it is before the change, and the proxies to plan for.

    Mutable state: the World, which takes the change and gives it back for each `PROXIES_AT_ONCE`.
    """

    def __init__(
        self,
        picture: PlanePicture,
        proxies: Sequence[ConnectedProxy],
        connected: Sequence[Proxy] | None = None,
        *,
        at_once: int = PROXIES_AT_ONCE,
    ) -> None:
        """``connected``: all proxies of the plane, for the analyzers; None if that is not known."""
        self._is_whole = picture.is_whole
        self._kept_back = picture.kept_back
        self._proxies = proxies
        self._connected = connected
        self._at_once = at_once
        self.world = past_world(picture.items, picture.settings)
        self.world.apply(unknown_modules(self.world))
        self._catalog = WorldCatalog(self.world)
        self._encoder = Encoder(f"mesh-pilot {picture.version}")
        self._known: dict[tuple[str, str, str], References] = {}

    def __repr__(self) -> str:
        return f"<Planner {len(self._proxies)} proxies, {self.world.statistics().services} services>"

    def plan(self, changes: Sequence[ObjectChange]) -> Plan:
        """The outcome of these changes, taken as one. The World is afterwards as it was before."""
        found = self._findings()
        planned: list[ProxyPlan] = []
        failures: dict[str, None] = {}
        for some in batched(self._proxies, self._at_once):
            planned += self._planned(some, changes, failures)
        resources = tuple(self._resources(planned, changes))
        with self._changed(changes):
            now = self._findings()
        return Plan(
            tuple(changes),
            tuple(planned),
            resources,
            tuple(message for key, message in now.items() if key not in found),
            tuple(message for key, message in found.items() if key not in now),
            tuple(sorted(failures)),
            {change.name: self._kept_back[change.name] for change in changes if change.name in self._kept_back},
        )

    def sides(self, changes: Sequence[ObjectChange]) -> Iterator[tuple[ConnectedProxy, Held, Held]]:
        """All that each proxy has before and after these changes, which the World gives back at the end."""
        for some in batched(self._proxies, self._at_once):
            with self._clients(some) as clients:
                before = [client.held() for client in clients]
                with self._changed(changes):
                    for client in clients:
                        client.settle()
                    after = [client.held() for client in clients]
                yield from zip(some, before, after, strict=True)

    def _planned(
        self, proxies: Sequence[ConnectedProxy], changes: Sequence[ObjectChange], failures: dict[str, None]
    ) -> list[ProxyPlan]:
        """The changes of some of the proxies; internal errors are added to `failures`."""
        with self._clients(proxies) as clients:
            before = [client.held() for client in clients]
            failing = {str(each.failure) for each in self._catalog.failures()}
            with self._changed(changes):
                received = [client.settle() for client in clients]
                standing = self._catalog.failures()
                failures |= {_failure_text(each): None for each in standing if str(each.failure) not in failing}
            return [
                ProxyPlan(client.connected.proxy, tuple(_changes(held, client.held())), got)
                for client, held, got in zip(clients, before, received, strict=True)
            ]

    @contextmanager
    def _changed(self, changes: Sequence[ObjectChange]) -> Iterator[None]:
        """The World with these changes, for the length of the block."""
        events = self._admitted(changes)
        undone = [self._undo(event) for event in events]
        self.world.apply(events)
        modules = unknown_modules(self.world)
        self.world.apply(modules)
        yield
        undone += [Delete(module.source, item_key(module.item)) for module in modules]
        self.world.apply(undone)

    def _admitted(self, changes: Sequence[ObjectChange]) -> list[Event]:
        """The events of changes as a plane takes them: with the owners of hosts, without what it refuses for these."""
        world = self.world
        admitted = Admitted(
            [change.event for change in changes],
            [ItemChange(change.source, change.key, change.before, change.after) for change in changes],
        )
        ownership = HostOwnership(world, is_quiet=True)
        ownership.seed(world.items_of(OWNERS).values())
        return ownership.admit(HostAdmission(world).admit(admitted)).events

    def _undo(self, event: Event) -> Event:
        """The event that takes another back, and its rejection."""
        match event:
            case Upsert(item=item):
                key = item_key(item)
            case Delete(key=key) | Rejected(key=tuple() as key):
                pass
            case _:
                return Synced(event.source)
        before = self.world.item_of(event.source, key)
        return Upsert(event.source, before) if before is not None else Delete(event.source, key)

    @contextmanager
    def _clients(self, proxies: Iterable[ConnectedProxy]) -> Iterator[list[PlannedClient]]:
        """A client for each proxy, which has all that it is sent now, for the length of the block."""
        clients = [PlannedClient(self._catalog, each, self._references, self._size) for each in proxies]
        for client in clients:
            client.connect()
            client.settle()
        yield clients
        for client in clients:
            client.close()

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
        unexplained: list[tuple[ResourceChange, int]] = []
        for change, numbers in found:
            if len(changes) == 1:
                causes[change.key] = tuple(changes)
                continue
            made_from = dict.fromkeys(key for side in (change.before, change.after) if side for key in side.configs)
            named = tuple(by_config[key] for key in made_from if key in by_config)
            if named:
                causes[change.key] = named
            else:
                unexplained.append((change, numbers[0]))
        if unexplained and len(changes) <= TRIED_ALONE:
            alone = self._tried_alone({number for _, number in unexplained}, changes)
            for change, number in unexplained:
                causes[change.key] = tuple(alone[number, change.type_url, change.name])
        return causes

    def _tried_alone(
        self, numbers: Collection[int], changes: Sequence[ObjectChange]
    ) -> Mapping[tuple[int, str, str], list[ObjectChange]]:
        """The changes that, made alone, change a resource: by the number of a proxy, type and name."""
        found: defaultdict[tuple[int, str, str], list[ObjectChange]] = defaultdict(list)
        for some in batched(sorted(numbers), self._at_once):
            with self._clients(self._proxies[number] for number in some) as clients:
                before = [client.held() for client in clients]
                for change in changes:
                    with self._changed([change]):
                        for number, client, held in zip(some, clients, before, strict=True):
                            client.settle()
                            for moved in _changes(held, client.held()):
                                found[number, moved.type_url, moved.name].append(change)
                    for client in clients:
                        client.settle()
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


def batched(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The values in pieces of a size."""
    return (values[start : start + size] for start in range(0, len(values), size))


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
