"""All entries, intentions and services of a Consul, and the objects that they are: converts what a change touches.

State: entries and intentions as read, facts of services; for each conversion what it asked for, and its result; and
the conversions whose answers may be others now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import attrs

from mesh_pilot.consul.mesh.entries import KINDS, ConfigEntry, read_entry
from mesh_pilot.consul.mesh.failover import group_problems
from mesh_pilot.consul.mesh.intentions import ANY, Intention, authorization_policy, read_intentions
from mesh_pilot.consul.mesh.limits import local_rate_limit
from mesh_pilot.consul.mesh.reading import EntryReader, Question
from mesh_pilot.consul.mesh.routes import virtual_service
from mesh_pilot.consul.mesh.rules import destination_rules
from mesh_pilot.consul.mesh.values import EntryRef, IstioObject, MeshSettings, ServiceFacts, location_of
from mesh_pilot.model.config import ConfigKey, Problem

ROUTES, POLICY = "routes", "intentions"
"""The conversions of a service."""

GLOBAL = EntryRef("proxy-defaults", "global")
GROUP = "sameness-group"
_OF_SERVICES = [kind for kind in KINDS if kind != GROUP]

PART = 8
"""Conversions without a pause."""

Step = tuple[str, str]
"""A conversion: which, and of which service."""


@attrs.frozen
class LocationChange:
    """The new content of a location: the objects of a conversion, or the problems of an entry. Empty: nothing."""

    location: str
    objects: tuple[IstioObject, ...] = ()
    problems: tuple[Problem, ...] = ()


class ConsulMesh:
    """The entries and what they are for each service."""

    def __init__(self, settings: MeshSettings) -> None:
        self.settings = settings
        self.conversions = 0
        """Conversions since the start."""
        self._data: dict[EntryRef, object] = {}
        self._entries: dict[EntryRef, ConfigEntry] = {}
        self._intentions: dict[str, tuple[Intention, ...]] = {}
        self._intention_problems: dict[EntryRef, list[Problem]] = {}
        self._default_allow = True
        self._services: dict[str, ServiceFacts] = {}
        self._readers: dict[Question, set[Step]] = defaultdict(set)
        self._asked: dict[Step, set[Question]] = {}
        self._results: dict[str, LocationChange] = {}
        self._stale: set[Step] = set()
        self._stale_entries: set[EntryRef] = set()

    # -- what is known

    def entry(self, ref: EntryRef) -> ConfigEntry | None:
        return self._entries.get(ref)

    def facts(self, service: str) -> ServiceFacts | None:
        return self._services.get(service)

    def protocol(self, service: str) -> str:
        """The protocol of a service: that of its entry, else of the mesh's; empty if neither says it."""
        for ref in (EntryRef("service-defaults", service), GLOBAL):
            entry = self._entries.get(ref)
            if entry is not None and not entry.is_ignored and entry.protocol:
                return entry.protocol
        return ""

    def names(self, kind: str) -> set[str]:
        """The names of all entries of a kind."""
        return {ref.name for ref in self._data if ref.kind == kind}

    @property
    def _orders_localities(self) -> bool:
        """True if proxy-defaults say which localities come first: then every service has a rule."""
        entry = self._entries.get(GLOBAL)
        return entry is not None and bool(entry.localities)

    @property
    def has_intentions(self) -> bool:
        return bool(self._intentions)

    # -- changes

    def put_entry(self, kind: str, name: str, data: object) -> bool:
        """Take an entry as Consul has it, or None: it is gone. True if it is another one than before."""
        ref = EntryRef(kind, name)
        data = _without_index(data)
        if self._data.get(ref) == data:
            return False
        if (data is None) is (ref in self._data):
            self._touch(("names", kind))
        ordered = self._orders_localities
        if data is None:
            del self._data[ref]
            del self._entries[ref]
        else:
            self._data[ref] = data
            self._entries[ref] = read_entry(kind, data, self.settings.reserved, self.settings.tenant)
        self._stale_entries.add(ref)
        self._touch(("entry", ref))
        if ref.kind not in (GLOBAL.kind, GROUP):
            self._stale.add((ROUTES, name))
        elif ordered or self._orders_localities:
            self._stale |= {(ROUTES, service) for service in self._services}
        return True

    def put_intentions(self, data: object) -> None:
        """Take all intentions as Consul has them."""
        found, problems = read_intentions(data, self.settings.tenant)
        by_destination: dict[str, list[Intention]] = defaultdict(list)
        for each in found:
            by_destination[each.destination].append(each)
        now = {name: tuple(sorted(each, key=repr)) for name, each in by_destination.items()}
        changed = {name for name in now.keys() | self._intentions.keys() if now.get(name) != self._intentions.get(name)}
        self._intentions = now
        self._stale_entries |= self._intention_problems.keys() | problems.keys()
        self._intention_problems = problems
        self._stale_policies(changed)

    def set_default_allow(self, allow: bool) -> None:
        """Say what holds for connections that no intention is about."""
        if allow != self._default_allow:
            self._default_allow = allow
            self._stale_policies({ANY})

    def set_datacenter(self, datacenter: str) -> None:
        """Say which datacenter is the mesh's own."""
        if datacenter != self.settings.datacenter:
            self.settings = attrs.evolve(self.settings, datacenter=datacenter)
            self._stale |= self._asked.keys()

    def set_trust_domain(self, trust_domain: str) -> None:
        """Say by which trust domain callers of Consul's own mesh are known."""
        if trust_domain != self.settings.trust_domain:
            self.settings = attrs.evolve(self.settings, trust_domain=trust_domain)
            self._stale |= {step for step in self._asked if step[0] == POLICY}

    def put_service(self, name: str, facts: ServiceFacts | None) -> None:
        """Take what is known of a service of the catalog, or None: it is gone."""
        if self._services.get(name) == facts:
            return
        is_new = name not in self._services
        if facts is None:
            del self._services[name]
        else:
            self._services[name] = facts
        self._touch(("facts", name))
        if is_new or facts is None:
            self._stale.add((POLICY, name))
            if self._orders_localities:
                self._stale.add((ROUTES, name))

    def redo(self, key: ConfigKey) -> None:
        """Tell again, in the next ``flush``, what an object of this key is made from, if any is."""
        for step in self._asked:
            result = self._results.get(_location(step))
            if result is not None and any((o.kind, o.namespace, o.name) == key for o in result.objects):
                del self._results[_location(step)]
                self._stale.add(step)

    def flush(self) -> Iterator[list[LocationChange]]:
        """Convert what is stale: the locations whose content is another one now, in order, in parts of some ms."""
        entries, self._stale_entries = sorted(self._stale_entries), set()
        steps, self._stale = sorted(self._stale), set()
        for start in range(0, len(entries), PART):
            yield self._news(map(self._problems, entries[start : start + PART]))
        for start in range(0, len(steps), PART):
            yield self._news(map(self._convert, steps[start : start + PART]))

    # -- inside

    def _problems(self, ref: EntryRef) -> LocationChange:
        entry = self._entries.get(ref)
        problems = entry.problems if entry is not None else tuple(self._intention_problems.get(ref, ()))
        if entry is not None and entry.group is not None:
            problems = (*problems, *group_problems(entry.group, self.settings.partition, self.settings.peers))
        return LocationChange(location_of(ref), (), problems)

    def _news(self, changes: Iterable[LocationChange]) -> list[LocationChange]:
        return [change for change in changes if self._is_news(change)]

    def _is_news(self, change: LocationChange) -> bool:
        before = self._results.get(change.location, LocationChange(change.location))
        if before == change:
            return False
        if change.objects or change.problems:
            self._results[change.location] = change
        else:
            del self._results[change.location]
        return True

    def _convert(self, step: Step) -> LocationChange:
        which, service = step
        self.conversions += 1
        reader = EntryReader(self)
        objects: list[IstioObject] = []
        if which == ROUTES:
            routes, problems = virtual_service(service, reader)
            rules, more = destination_rules(service, reader)
            limits, beyond = local_rate_limit(service, reader)
            objects = [*([routes] if routes else []), *rules, *([limits] if limits else [])]
            problems += (*more, *beyond)
        else:
            policy, problems = self._policy(service, reader)
            objects = [policy] if policy else []
        is_known = service in self._services or any(EntryRef(kind, service) in self._data for kind in _OF_SERVICES)
        self._note(step, reader.asked if objects or problems or is_known else set())
        return LocationChange(_location(step), tuple(objects), problems)

    def _policy(self, service: str, reader: EntryReader) -> tuple[IstioObject | None, tuple[Problem, ...]]:
        own = self._intentions.get(service, ())
        if service not in self._services and not own:
            return None, ()
        every = (*own, *self._intentions.get(ANY, ()))
        return authorization_policy(service, every, reader, default_allow=self._default_allow)

    def _note(self, step: Step, asked: set[Question]) -> None:
        for question in self._asked.pop(step, set()) - asked:
            self._readers[question].discard(step)
            if not self._readers[question]:
                del self._readers[question]
        for question in asked:
            self._readers[question].add(step)
        if asked:
            self._asked[step] = asked

    def _touch(self, question: Question) -> None:
        self._stale |= self._readers.get(question, set())

    def _stale_policies(self, destinations: set[str]) -> None:
        """The policies of these destinations may be others; of ``*``: all policies."""
        every = self._services.keys() | self._intentions.keys() | destinations if ANY in destinations else destinations
        self._stale |= {(POLICY, name) for name in every if name != ANY}


def _location(step: Step) -> str:
    return f"consul {step[0]} of {step[1]}"


def _without_index(data: object) -> object:
    """An entry without the fields that every write of it changes."""
    if not isinstance(data, Mapping):
        return data
    return {name: value for name, value in data.items() if name not in ("CreateIndex", "ModifyIndex", "Hash")}
