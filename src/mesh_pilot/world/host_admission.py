"""The door for hosts that the mesh config gives to namespaces (``hostOwners``): objects of others are refused.

Pure. An object that is refused leaves its last good version in force. One that was in force when the mesh config took
the host from its namespace goes. Both come back by themselves when the mesh config allows them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import attrs
import structlog

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.base.containment import Contained
from mesh_pilot.model.config import Config, Problem
from mesh_pilot.model.events import (
    Accepted,
    Delete,
    Event,
    Item,
    MeshConfigValue,
    Rejected,
    Replace,
    SourceRemoved,
    Upsert,
    item_key,
)
from mesh_pilot.model.hosts import host_covers
from mesh_pilot.world.intake import Admitted, ItemChange
from mesh_pilot.world.world import World

log = structlog.get_logger(scope="world")

KINDS = frozenset(("ServiceEntry", "VirtualService", "HTTPRoute", "GRPCRoute", "TLSRoute"))
"""The kinds of objects that name hosts."""

TAKEN = "hostOwners of the mesh config gives its host to another namespace"
"""The cause of the deletion of an object that was in force."""

GIVEN = "hostOwners of the mesh config allows its host again"
"""The cause of its return."""

Key = tuple[str, ...]
Owners = Mapping[str, str]


class HostAdmission:
    """Mutable state: the objects that are refused, by source and key."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._refused: dict[str, dict[Key, Config]] = {}

    def __repr__(self) -> str:
        return f"<HostAdmission {sum(map(len, self._refused.values()))} refused>"

    def admit(self, admitted: Admitted) -> Admitted:
        """Refuse what names hosts of other namespaces: for `Reducer.gates`."""
        before = self._world.mesh.peek(()).host_owners
        owners = self._owners_after(admitted)
        if not (owners or before or self._refused):
            return admitted
        with Contained(log, "internal error in hostOwners: the hosts of objects are not checked"):
            return self._judged(admitted, owners, before)
        return admitted

    def _judged(self, admitted: Admitted, owners: Owners, before: Owners) -> Admitted:
        events: list[Event] = []
        changes = {(change.source, change.key): change for change in admitted.changes}
        for event in admitted.events:
            for passed in self._passed(event, owners):
                events.append(passed)
        for source, refused in self._refused.items():
            for key in refused:
                if changes.get((source, key)) is not None:
                    del changes[source, key]
        if owners != before:
            for event in [*self._allowed(owners), *self._evicted(events, owners)]:
                events.append(event)
                if isinstance(event, Upsert | Delete):
                    key = event.key if isinstance(event, Delete) else item_key(event.item)
                    after = event.item if isinstance(event, Upsert) else None
                    in_force = self._world.item_of(event.source, key)
                    changes[event.source, key] = ItemChange(event.source, key, in_force, after, event.cause)
        return attrs.evolve(admitted, events=events, changes=[*changes.values()])

    def _owners_after(self, admitted: Admitted) -> Owners:
        """The owners that the mesh config names after these events."""
        said = {change.source: change.after for change in admitted.changes if change.key == ("mesh",)}
        if not said:
            found: Owners = self._world.mesh.peek(()).host_owners
            return found
        sources = dict.fromkeys((*self._world.sources(), *said))
        every = (said[s] if s in said else self._world.item_of(s, ("mesh",)) for s in sources)
        first = next((item.config for item in every if isinstance(item, MeshConfigValue)), None)
        return first.host_owners if isinstance(first, MeshConfig) else {}

    def _passed(self, event: Event, owners: Owners) -> Iterator[Event]:
        """An event, without what it says of objects that are refused."""
        refused = self._refused.get(event.source, {})
        match event:
            case Upsert(item=item):
                refused.pop(item_key(item), None)
                if rejected := self._refuse(event.source, item, owners):
                    yield rejected
                    return
            case Delete(key=key):
                refused.pop(key, None)
            case SourceRemoved():
                self._refused.pop(event.source, None)
            case Replace(collection=collection, items=items):
                for key in [key for key in refused if key[: len(collection)] == collection]:
                    del refused[key]
                rejections = [(item, self._refuse(event.source, item, owners)) for item in items]
                kept = (self._kept(event.source, item, owners) if no else item for item, no in rejections)
                yield attrs.evolve(event, items=tuple(item for item in kept if item is not None))
                yield from (rejected for _, rejected in rejections if rejected is not None)
                return
        yield event
        if isinstance(event, Accepted):  # by its source: what is refused here stays so
            for config in [c for c in refused.values() if c.origin.location == event.location]:
                if rejected := self._refuse(event.source, config, owners):
                    yield rejected

    def _refuse(self, source: str, item: Item, owners: Owners) -> Rejected | None:
        """The rejection of an item that names a host of another namespace; None for all others."""
        problems = tuple(problems_of(item, owners, self._world)) if isinstance(item, Config) else ()
        if not problems or not isinstance(item, Config):
            return None
        self._refused.setdefault(source, {})[item_key(item)] = item
        return Rejected(source, item.origin, problems, item_key(item))

    def _kept(self, source: str, item: Item, owners: Owners) -> Item | None:
        """The version of a refused item that is kept."""
        in_force = self._world.item_of(source, item_key(item))
        is_good = isinstance(in_force, Config) and not any(problems_of(in_force, owners, self._world))
        return in_force if is_good else None

    def _allowed(self, owners: Owners) -> list[Event]:
        """The events that bring back the objects that are allowed again."""
        found: list[Event] = []
        for source, refused in self._refused.items():
            for key, config in [*refused.items()]:
                if not any(problems_of(config, owners, self._world)):
                    del refused[key]
                    found.append(Upsert(source, config, GIVEN))
        return found

    def _evicted(self, events: Collection[Event], owners: Owners) -> Iterator[Event]:
        """The events that end what is in force and is refused now."""
        said = {(event.source, item_key(event.item)) for event in events if isinstance(event, Upsert)}
        for source in self._world.sources():
            for key, item in self._world.items_of(source).items():
                if (source, key) in said or key in self._refused.get(source, {}):
                    continue
                if rejected := self._refuse(source, item, owners):
                    yield Delete(source, key, TAKEN)
                    yield rejected


class Names(Protocol):
    """Makes full names of hosts: a World, for one."""

    def full_host(self, host: str, namespace: str) -> str: ...

    def registry_host(self, host: str) -> str: ...


def problems_of(config: Config, owners: Owners, names: Names) -> Iterator[Problem]:
    """The hosts of an object that belong to other namespaces."""
    if not owners or config.key.kind not in KINDS:
        return
    field = "hosts" if config.key.kind in ("ServiceEntry", "VirtualService") else "hostnames"
    for number, host in enumerate(getattr(config.spec, field, ())):
        is_service = config.key.kind == "ServiceEntry"
        full = (names.registry_host(host) if is_service else names.full_host(host, config.namespace)).lower()
        pattern = owner_pattern(full, owners)
        if pattern and owners[pattern] != config.namespace:
            owner = owners[pattern]
            reason = f'"{host}" belongs to namespace {owner} (hostOwners of the mesh config); remove it, or change that'
            yield Problem(f"spec.{field}[{number}]", reason)


def owner_pattern(host: str, owners: Owners) -> str:
    """The host of ``hostOwners`` that decides for a host: the most precise that covers it; empty: none does."""
    if host in owners:
        return host
    return max((each for each in owners if host_covers(each.lower(), host)), key=len, default="")
