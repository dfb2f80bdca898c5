"""The facts that decide what proxies have now, taken from the parts of a control plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

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
from mesh_pilot.model.events import NewValue, Quarantine, Rejected, Withheld
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES, Resource
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.quarantine.reports import Held
from mesh_pilot.safety.quarantine.suspects import items_of
from mesh_pilot.safety.quarantine.verdicts import name_of
from mesh_pilot.safety.rollout.progress import Progress
from mesh_pilot.world import World
from mesh_pilot.world.guard import HeldObjects
from mesh_pilot.xds.ads.status import Connection, ConnectionStatus, StatusRegistry
from mesh_pilot.xds.ads.warming import Warming

Key = tuple[str, ...]


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
    has_new: Callable[[str], bool] = lambda node: False
    """True for the node id of a proxy that has the new values of a rollout."""
    held: Mapping[str, HeldObjects] = attrs.field(factory=dict)
    """The parts of pictures that guards keep in force, by source."""
    stale: Mapping[str, str] = attrs.field(factory=dict)
    """Why sources do not answer."""

    # -- quarantine

    def withheld_from(self, proxy: Proxy) -> list[tuple[str, Withheld]]:
        """The objects withheld from a proxy, each with its domain; without those of a trial."""
        found = next((self.in_force[domain] for domain in proxy.domains if domain in self.in_force), ())
        return [(d, withheld) for d, withheld in self.verdicts if d in proxy.domains and withheld in found]

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

    def of_object(self, key: Key, proxy: Proxy, streams: Iterable[Connection]) -> Truth:
        """The state of an object, by its ``item_key``, at a proxy with these streams."""
        made = (made for stream in streams for made in self._made_of(key, stream))
        facts = attrs.evolve(self._at_door(key), resources=tuple(made))
        withheld = next(((d, w) for d, w in self.withheld_from(proxy) if w.key == key), None)
        on_trial = next((w for w in self.on_trial(proxy) if w.key == key), None)
        if withheld is not None:
            facts = attrs.evolve(facts, domain=withheld[0], withheld=withheld[1])
        elif on_trial is not None:
            facts = attrs.evolve(facts, withheld=on_trial, is_trial=True)
        change = self.change_of(key)
        if change is not None:
            has_new = not change.is_held and self.has_new(proxy.id)
            facts = attrs.evolve(facts, change=change, has_new=has_new, rollout=self.phase)
        return truth_of_object(facts)

    def at_door(self, key: Key) -> Truth:
        """The state of an object before it reaches any proxy."""
        return truth_at_door(self._at_door(key))

    def on_its_way(self, key: Key) -> Truth | None:
        """The state of an object that some proxies, whichever, are not given in its newest version; None if all are."""
        for domain, withheld in self.verdicts:
            if withheld.key == key:
                return truth_of_object(GateFacts(withheld=withheld, domain=domain))
        change = self.change_of(key)
        if change is not None:
            why = f"{name_of(key)} is in a rollout, phase {self.phase}"
            return Truth(TruthState.CANARY, why, served=change.old)
        return None

    def change_of(self, key: Key) -> NewValue | None:
        """The change of an object that a rollout has given to some proxies only; None if all have the same."""
        return next((each for each in self.changes if each.key == key), None)

    def _at_door(self, key: Key) -> GateFacts:
        sources = [source for source in self.world.sources() if self.world.item_of(source, key) is not None]
        refused = next((each for each in self.world.rejections() if each.key == key), None)
        held = next((each for each in self.held.values() if key in each.keys), None)
        return GateFacts(
            current=tuple(self.world.current(key)),
            refused=_problems(refused) if refused is not None else "",
            held=_why_held(held) if held is not None else "",
            stale=next((f"{each}: {self.stale[each]}" for each in sources if each in self.stale), ""),
        )

    def _made_of(self, key: Key, connection: Connection) -> Iterator[Truth]:
        for type_url in RESOURCE_TYPES if connection.stream is not None else ():
            assert connection.stream is not None
            for resource in connection.stream.explained(type_url).values():
                if key in items_of(self.world, resource):
                    yield of_resource(connection, resource)


def of_resource(connection: Connection, resource: Resource) -> Truth:
    """The state of a resource that a client was sent."""
    stream, type_url, name = connection.stream, resource.type_url, resource.name
    assert stream is not None
    warming = [each for each in connection.warming if (each.resource.type_url, each.resource.name) == (type_url, name)]
    return truth_of_resource(
        resource.version,
        is_refused=name in stream.in_doubt(type_url),
        is_unanswered=name in stream.unanswered(type_url),
        warming=warming,
    )


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


def of_proxies(status: StatusRegistry) -> Counter[TruthState]:
    """The number of connected proxies by the state of the latest revision."""
    return Counter(of_proxy(connection).state for connection in status.proxies())


def gather(
    world: World,
    quarantine: QuarantineController | None,
    progress: Progress | None,
    held: Mapping[str, HeldObjects],
    stale: Mapping[str, str],
) -> PlaneFacts:
    """The facts of now. ``progress``: of rollouts; ``held``, ``stale``: of sources."""
    found = PlaneFacts(world=world, held=held, stale=stale)
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
        found = attrs.evolve(found, changes=progress.state.changes, phase=str(progress.phase), has_new=progress.has_new)
    return found


def _problems(rejected: Rejected) -> str:
    return "; ".join(map(str, rejected.problems[:3]))


def _why_held(held: HeldObjects) -> str:
    return f"{held.source} holds it: {held.reason}; mesh-pilot admin accept {held.source} lets it go"
