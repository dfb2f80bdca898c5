"""The facts that decide what proxies have now, taken from the parts of a control plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

import attrs

from mesh_pilot.explain.truth.states import (
    GateFacts,
    Truth,
    TruthState,
    truth_at_door,
    truth_of_object,
    truth_of_proxy,
    truth_of_resource,
    truth_of_type,
)
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Item, NewValue, Quarantine, Rejected, Withheld
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES, Resource
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.quarantine.reports import Held
from mesh_pilot.safety.quarantine.suspects import items_of, made_from
from mesh_pilot.safety.rollout.progress import Progress
from mesh_pilot.world import World
from mesh_pilot.world.guard import HeldObjects
from mesh_pilot.xds.ads.status import Connection, ConnectionStatus, StatusRegistry
from mesh_pilot.xds.ads.stream import Stream
from mesh_pilot.xds.ads.warming import Warming

Key = tuple[str, ...]

Resources = Mapping[str, Resource]
"""Resources by name."""

MadeOf = Mapping[Key, Sequence[Resource]]
"""Resources by the keys of what they are made of."""

NAMED_BY_NO_RESOURCE = frozenset(
    (
        "WorkloadEntry",
        "WorkloadGroup",
        "ProxyConfig",
        "Sidecar",
        "GatewayClass",
        "ReferenceGrant",
        "Namespace",
        "IngressClass",
    )
)
"""Kinds of objects that decide what resources are, and that these do not name."""


@attrs.frozen(kw_only=True)
class PlaneFacts:
    """All that decides what proxies have. All empty where a part is off."""

    world: World
    verdicts: tuple[tuple[str, Withheld], ...] = ()
    """Objects that are withheld until they change, each with its domain."""
    in_force: Mapping[str, tuple[Withheld, ...]] = attrs.field(factory=dict)
    """All that is withheld, by domain."""
    trials: tuple[Quarantine, ...] = ()
    on_hold: tuple[Held, ...] = ()
    """Refusals that nothing is done about."""
    changes: tuple[NewValue, ...] = ()
    """The changes of a rollout that not all proxies have."""
    phase: str = ""
    reason: str = ""
    """Why a rollout was taken back; empty if it was not."""
    has_new: Callable[[str], bool] = lambda node: False
    """True for the node id of a proxy that has the new values of a rollout."""
    held: Mapping[str, HeldObjects] = attrs.field(factory=dict)
    """The parts of pictures that guards keep in force, by source."""
    stale: Mapping[str, str] = attrs.field(factory=dict)
    """Why sources do not answer."""
    as_written: Callable[[Proxy], Sequence[Resources]] = lambda proxy: ()
    """All that a proxy would have if nothing were kept back from it; empty if nothing is."""
    _made: dict[int, tuple[Resources, Mapping[Key, Sequence[Resource]]]] = attrs.field(
        factory=dict, eq=False, repr=False
    )
    """Resources by identity, and what ``made_in`` says of them: many proxies have the very same."""
    _written: dict[str, Sequence[Resources]] = attrs.field(factory=dict, eq=False, repr=False)
    """The answers of ``as_written``, by node id."""
    _explained: dict[Hashable, Resources] = attrs.field(factory=dict, eq=False, repr=False)
    """The resources that proxies have in common; see ``xds.ads.resources.ProxyResources.explained``."""

    # -- quarantine

    def withheld_from(self, proxy: Proxy) -> list[tuple[str, Withheld]]:
        """The objects withheld from a proxy, each with its domain; without those of a trial."""
        found = next((self.in_force[domain] for domain in proxy.domains if domain in self.in_force), ())
        return [(d, withheld) for d, withheld in self.verdicts if d in proxy.domains and withheld in found]

    def withheld_of(self, proxy: Proxy, streams: Sequence[Connection]) -> list[tuple[str, Withheld]]:
        """The same without those that are not for this proxy in any case."""
        found = self.withheld_from(proxy)
        return [(domain, own) for domain, own in found if self.kept_back(own.key, proxy, streams) is not None]

    def on_trial(self, proxy: Proxy) -> list[Withheld]:
        """The objects withheld from a proxy only in a trial."""
        known = {withheld.key for _, withheld in self.withheld_from(proxy)}
        trials = (trial for trial in self.trials if trial.domain in proxy.domains)
        return [withheld for trial in trials for withheld in trial.withheld if withheld.key not in known]

    def why_on_hold(self, proxy: Proxy, type_url: str) -> str:
        """The reason for doing nothing about a proxy's refusal of a type; empty if something is done."""
        found = (held.why for held in self.on_hold if (held.proxy, held.type_url) == (proxy.name, type_url))
        return next(found, "")

    def withheld_kinds(self) -> Counter[str]:
        """The number of withheld objects by kind."""
        keys = {withheld.key for _, withheld in self.verdicts}
        return Counter(key[1] if key[0] == "config" else key[0] for key in keys)

    # -- objects

    def of_object(self, key: Key, proxy: Proxy, streams: Sequence[Connection]) -> Truth:
        """The state of an object, by its ``item_key``, at a proxy with these streams."""
        return truth_of_object(self._at_proxy(key, proxy, streams) or self._at_door(key))

    def kept_back(self, key: Key, proxy: Proxy, streams: Sequence[Connection]) -> Truth | None:
        """The same without what keeps the object out before it reaches any proxy; None if it is not for this one."""
        facts = self._at_proxy(key, proxy, streams)
        if facts is None:
            return None
        truth = truth_of_object(attrs.evolve(facts, refused="", held=None, stale="", conflict=""))
        return truth if truth.state is not TruthState.ABSENT else attrs.evolve(truth, state=TruthState.IN_FORCE)

    def _at_proxy(self, key: Key, proxy: Proxy, streams: Sequence[Connection]) -> GateFacts | None:
        """None for an object that is not for this proxy: nothing is kept back from it then."""
        resources = tuple(made for stream in streams for made in self._made_of(key, stream))
        if not resources and not self._would_apply(key, proxy):
            return None
        facts = attrs.evolve(self._at_door(key), resources=resources)
        withheld = next(((d, w) for d, w in self.withheld_from(proxy) if w.key == key), None)
        on_trial = next((w for w in self.on_trial(proxy) if w.key == key), None)
        if withheld is not None:
            facts = attrs.evolve(facts, domain=withheld[0], withheld=withheld[1])
        elif on_trial is not None:
            facts = attrs.evolve(facts, withheld=on_trial, is_trial=True)
        change = self.change_of(key)
        if change is None:
            return facts
        where = self.reason if change.is_held else self.phase
        return attrs.evolve(facts, change=change, has_new=not change.is_held and self.has_new(proxy.id), rollout=where)

    def _would_apply(self, key: Key, proxy: Proxy) -> bool:
        """True if something were made of an object for a proxy, if nothing were kept back from it. Of what no resource
        names it is not known: what is kept back counts."""
        if key[0] != "config" or key[1] in NAMED_BY_NO_RESOURCE:
            withheld = [*(each for _, each in self.withheld_from(proxy)), *self.on_trial(proxy)]
            return self.change_of(key) is not None or any(each.key == key for each in withheld)
        if proxy.id not in self._written:
            self._written[proxy.id] = self.as_written(proxy)
        return any(key in self.made_in(resources) for resources in self._written[proxy.id])

    def resources_of(self, stream: Stream, type_url: str) -> Resources:
        """The resources of a type that a client holds, each with the objects that this client has it from."""
        return stream.explained(type_url, self._explained)

    def made_in(self, resources: Resources) -> MadeOf:
        """Some resources by the keys of what they are made of."""
        known = self._made.get(id(resources))
        if known is None:
            found: dict[Key, list[Resource]] = {}
            for each in resources.values():
                for key in items_of(self.world, each):
                    found.setdefault(key, []).append(each)
            known = self._made[id(resources)] = (resources, found)
        return known[1]

    def at_door(self, key: Key) -> Truth:
        """The state of an object before it reaches any proxy."""
        facts = self._at_door(key)
        truth = attrs.evolve(truth_at_door(facts), served=facts.current)
        is_there = truth.state is TruthState.ABSENT and facts.current
        return attrs.evolve(truth, state=TruthState.IN_FORCE) if is_there else truth

    def on_its_way(self, key: Key) -> Truth | None:
        """The state of an object that some proxies, whichever, are not given in its newest version; None if all are."""
        facts = self._at_door(key)
        for domain, withheld in self.verdicts:
            if withheld.key == key:
                return truth_of_object(attrs.evolve(facts, withheld=withheld, domain=domain))
        change = self.change_of(key)
        if change is None:
            return None
        where = self.reason if change.is_held else self.phase
        return truth_of_object(attrs.evolve(facts, change=change, rollout=where))

    def kept_back_or_out(self) -> Iterator[Key]:
        """The keys of all objects whose newest version something keeps from some proxies, or from all."""
        yield from (withheld.key for _, withheld in self.verdicts)
        yield from (change.key for change in self.changes)
        yield from (key for key in self._rejected if key[0] == "config")
        yield from self._held
        for source in self.stale:
            yield from (key for key in self.world.items_of(source) if key[0] in ("config", "service"))
        yield from self._several()

    def _several(self) -> Iterator[Key]:
        """The keys of the configuration that several sources have."""
        *less, _ = sorted(map(self.world.items_of, self.world.sources()), key=len) or [{}]
        for items in less:
            yield from (key for key in items if key[0] == "config" and len(self.world.current(key)) > 1)

    @cached_property
    def _rejected(self) -> Mapping[Key, Rejected]:
        return {each.key: each for each in reversed(self.world.rejections()) if isinstance(each.key, tuple)}

    @cached_property
    def _held(self) -> Mapping[Key, HeldObjects]:
        return {key: each for each in self.held.values() for key in each.keys}

    def before(self, key: ConfigKey) -> Config | None:
        """An object that is gone from its source, and that proxies are still served for a rollout's sake."""
        change = self.change_of(("config", *key))
        return next((each for each in change.old if isinstance(each, Config)), None) if change is not None else None

    def change_of(self, key: Key) -> NewValue | None:
        """The change of an object that a rollout has given to some proxies only; None if all have the same."""
        return next((each for each in self.changes if each.key == key), None)

    def _at_door(self, key: Key) -> GateFacts:
        found = [(source, item) for source in self.world.sources() if (item := self.world.item_of(source, key))]
        refused = self._rejected.get(key)
        return GateFacts(
            current=tuple(item for _, item in found),
            refused=_problems(refused) if refused is not None else "",
            held=self._held.get(key),
            stale=next((f"{source}: {self.stale[source]}" for source, _ in found if source in self.stale), ""),
            conflict=_conflict(found) if key[0] == "config" else "",
        )

    def _made_of(self, key: Key, connection: Connection) -> Iterator[Truth]:
        stream = connection.stream
        for type_url in RESOURCE_TYPES if stream is not None else ():
            assert stream is not None
            found = self.made_in(self.resources_of(stream, type_url)).get(key, ())
            yield from (of_resource(connection, each) for each in found)
            if stream.is_refused(type_url) and key in self.refused_by(connection, type_url):
                yield Truth(TruthState.REFUSED, "the proxy refuses it")

    def refused_by(self, connection: Connection, type_url: str) -> Iterator[Key]:
        """The keys of what the last refused resources of a type are made of."""
        nacks = (each.nack for each in reversed(connection.nacks) if each.nack.type_url == type_url)
        return (key for nack in islice(nacks, 1) for key in made_from(self.world, nack))


def of_resource(connection: Connection, resource: Resource) -> Truth:
    """The state of a resource that a client was sent."""
    return _of_resource(connection, resource.type_url, resource.name, resource.version)


def _of_resource(connection: Connection, type_url: str, name: str, version: str = "") -> Truth:
    stream = connection.stream
    assert stream is not None
    warming = [each for each in connection.warming if (each.resource.type_url, each.resource.name) == (type_url, name)]
    return truth_of_resource(
        version,
        is_refused=name in stream.in_doubt(type_url),
        is_unanswered=name in stream.unanswered(type_url),
        warming=warming,
    )


def of_unused(connection: Connection) -> dict[tuple[str, str], Truth]:
    """The states of the resources, by type and name, that a client refuses, has not answered, or does not use."""
    stream = connection.stream
    found = [(each.resource.type_url, each.resource.name) for each in connection.warming]
    for type_url in RESOURCE_TYPES if stream is not None else ():
        assert stream is not None
        found += ((type_url, name) for name in (*stream.unanswered(type_url), *stream.in_doubt(type_url)))
    return {key: _of_resource(connection, *key) for key in found}


def of_types(connection: ConnectionStatus) -> dict[str, Truth]:
    """The state of each type that a client requests, or waits for."""
    warming: dict[str, list[Warming]] = {}
    for each in connection.warming:
        warming.setdefault(each.resource.type_url, []).append(each)
    found = {}
    for status in connection.types:
        own = status.subscription
        found[own.type_url] = truth_of_type(own.phase, own.version, warming.get(own.type_url, ()))
    return found


def of_proxy(connection: Connection) -> Truth:
    """The state of the latest revision at a client; costs little."""
    follower = connection.follower
    return truth_of_proxy(is_refusing=bool(follower.refusing), is_behind=follower.is_behind, warming=connection.warming)


def streams_by_proxy(status: StatusRegistry) -> dict[str, list[Connection]]:
    """The streams of the connected proxies, by node id."""
    found: dict[str, list[Connection]] = {}
    for connection in status.proxies():
        if connection.proxy is not None:
            found.setdefault(connection.proxy.id, []).append(connection)
    return found


def of_proxies(status: StatusRegistry) -> Counter[TruthState]:
    """The number of connected proxies by the state of the latest revision."""
    return Counter(of_proxy(connection).state for connection in status.proxies())


def gather(
    world: World,
    quarantine: QuarantineController | None,
    progress: Progress | None,
    held: Mapping[str, HeldObjects],
    stale: Mapping[str, str],
    as_written: Callable[[Proxy], Sequence[Resources]] = lambda proxy: (),
) -> PlaneFacts:
    """The facts of now. ``progress``: of rollouts; ``held``, ``stale``: of sources."""
    found = PlaneFacts(world=world, held=held, stale=stale, as_written=as_written)
    if quarantine is not None:
        in_force = quarantine.withheld()
        found = attrs.evolve(
            found,
            verdicts=tuple(quarantine.verdicts()),
            in_force={each.domain: each.withheld for each in in_force if not each.is_trial},
            trials=tuple(each for each in in_force if each.is_trial),
            on_hold=quarantine.held(),
        )
    if progress is not None and progress.state is not None:
        own = progress.state
        way = f", {own.share:g} % of the way" if own.plan.by_weights and own.is_running else ""
        found = attrs.evolve(
            found, changes=own.changes, phase=f"{progress.phase}{way}", reason=own.reason, has_new=progress.has_new
        )
    return found


def _problems(rejected: Rejected) -> str:
    return "; ".join(map(str, rejected.problems[:3]))


def _conflict(found: Sequence[tuple[str, Item]]) -> str:
    """The sources whose version of an object has no effect, where it is another one; the first one's has."""
    if not found:
        return ""
    (first, wins), *others = found
    losing = [source for source, item in others if item != wins]
    return f"that of {first} is in force, not that of {', '.join(losing)}" if losing else ""
