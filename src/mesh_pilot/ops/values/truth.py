"""The truth about objects: whether the newest version is in force at all proxies that an object applies to, and if not,
why. Every page and command that says so has it from here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import attrs

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.explain.truth.facts import Key, PlaneFacts, of_unused, streams_by_proxy
from mesh_pilot.explain.truth.fleet import Fleet, FleetTruth, added_up, fleet_of
from mesh_pilot.explain.truth.states import MENDS, Truth, TruthState
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.counts import counted
from mesh_pilot.model.json import IF_GIVEN, Json
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.configs import show_config
from mesh_pilot.replicas.workers.questions import TruthQuestion
from mesh_pilot.world.guard import accept_command
from mesh_pilot.xds.ads.status import StatusRegistry


@attrs.frozen(kw_only=True)
class ObjectTruth:
    """The state of an object, over all proxies that it applies to or at one of them."""

    state: TruthState
    why: str
    """Empty if it is in force, or nothing has it."""
    fix: str
    """The way to end the state, for people; empty if nothing needs to be done."""
    since: datetime | None = attrs.field(default=None, metadata=IF_GIVEN)
    """When it began, where that is known."""
    proxies: Sequence[str]
    """The first proxies that are in this state,"""
    proxies_in_all: int
    applies_to: int
    """and how many connected ones something is made of it for, or would be if it were in force. They are not
    counted in a list for an object that is in force everywhere."""
    has_newest: bool = True
    """False if these proxies have an older version of it, or none:"""
    served: Json = None
    """the version that they have; null for none."""

    @property
    def text(self) -> str:
        """``withheld from 5 of 30 proxies that it applies to: web-1.shop refused it``."""
        counted = self.why.startswith(("from ", "at "))
        return f"{self.state}{' ' if counted else ': '}{self.why}" if self.why else str(self.state)

    @property
    def is_in_force(self) -> bool:
        return self.state in (TruthState.IN_FORCE, TruthState.ABSENT)


_FOUND = frozenset(
    (
        TruthState.WITHHELD,
        TruthState.TAKEN_BACK,
        TruthState.REFUSED,
        TruthState.CONFLICTING,
        TruthState.CANARY,
        TruthState.WARMING,
    )
)

IN_FORCE = ObjectTruth(state=TruthState.IN_FORCE, why="", fix="", proxies=(), proxies_in_all=0, applies_to=0)


@attrs.frozen
class PlaneTruth:
    """The truth about all objects at one time; immutable, so that threads may read it."""

    known: Mapping[Key, ObjectTruth]

    def of(self, key: Key) -> ObjectTruth:
        """The state of an object that there is, by its ``item_key``."""
        return self.known.get(key, IN_FORCE)

    def troubled(self) -> list[Key]:
        """The keys of all objects that are not, in their newest version, in force at all proxies that they apply to."""
        return sorted(key for key, truth in self.known.items() if not truth.is_in_force)

    def kept_back(self) -> dict[ConfigKey, tuple[str, str]]:
        """Objects for which a finding says why not all proxies have them as they are written, and what ends that. What
        validation refuses, and what a source has lost or does not answer for, is said elsewhere."""
        return {
            ConfigKey(*key[1:]): (own.text, own.fix)
            for key, own in self.known.items()
            if key[0] == "config" and own.state in _FOUND and (own.state is not TruthState.REFUSED or own.proxies)
        }


def not_followed(facts: PlaneFacts) -> dict[str, tuple[str, str]]:
    """Sources of which older objects are in force: why, and what ends that."""
    sources = facts.world.sources()
    found = {name: (why, MENDS[TruthState.STALE]) for name, why in facts.stale.items() if name in sources}
    for name, held in facts.held.items():
        why = f"{counted(held.objects, 'object')} are kept that it has lost: {held.first_names}: {held.reason}"
        found[name] = (why, accept_command(name))
    return found


def shown(truth: Truth, names: Sequence[str], count: int, applies_to: int) -> ObjectTruth:
    """The state of an object in values."""
    served = next((each for each in truth.served if isinstance(each, Config)), None)
    return ObjectTruth(
        state=truth.state,
        why=truth.why,
        fix=truth.fix,
        since=truth.since,
        proxies=names,
        proxies_in_all=count,
        applies_to=applies_to,
        has_newest=truth.has_newest,
        served=show_config(served) if served is not None and not truth.has_newest else None,
    )


async def truth_now(state: PlaneState, asked: Collection[Key] = ()) -> PlaneTruth:
    """The truth of now, at the proxies of all workers. ``asked``: objects of which it is counted, in any case, how many
    proxies they apply to. Looks in turns, between which proxies are served."""
    facts = state.facts()
    fleet = await _fleet(state, facts, asked)
    if not fleet.keys() <= set(asked):
        # How many have the newest version of what some lack is asked in a second round.
        fleet = await _fleet(state, facts, {*asked, *fleet})
    keys = dict.fromkeys((*asked, *fleet, *facts.kept_back_or_out()))
    return PlaneTruth(dict(await in_turns((key, _known(facts, fleet, key)) for key in keys)))


async def _fleet(state: PlaneState, facts: PlaneFacts, asked: Collection[Key]) -> Fleet:
    seen = [await own_fleet(state, facts, asked)]
    if state.others is not None:
        answers = await state.others.ask(TruthQuestion(tuple(asked)))
        seen += [answer for answer in answers.values() if isinstance(answer, dict)]
    return added_up(seen)


def _known(facts: PlaneFacts, fleet: Fleet, key: Key) -> ObjectTruth:
    found = fleet.get(key, FleetTruth())
    truth = found.verdict(facts.at_door(key), facts.on_its_way(key))
    return shown(truth, found.names(truth.state), found.count(truth.state), found.proxies)


def truth_at(facts: PlaneFacts, key: Key, proxy: Proxy, status: StatusRegistry) -> ObjectTruth:
    """The state of an object at one proxy."""
    streams = streams_by_proxy(status).get(proxy.id, [])
    truth = facts.of_object(key, proxy, streams)
    applies = facts.kept_back(key, proxy, streams) is not None
    return shown(truth, [proxy.name], 1, int(applies))


async def kept_from(state: PlaneState, proxy: Proxy) -> list[tuple[Key, ObjectTruth]]:
    """All objects that something is made of for a proxy, or would be, and that are not in force there as written."""
    facts, status = state.facts(), state.xds.status
    seen = added_up(fleet_of(facts, status, only=proxy.id))
    keys = dict.fromkeys((*seen, *facts.kept_back_or_out()))
    found = await in_turns((key, truth_at(facts, key, proxy, status)) for key in keys)
    return [
        (key, truth)
        for key, truth in sorted(found, key=lambda each: each[0])
        if truth.applies_to and not truth.is_in_force
    ]


def unused_resources(state: PlaneState, proxy: Proxy) -> dict[str, dict[str, str]]:
    """The states of the resources that a proxy refuses, has not answered, or does not use, by type URL and name."""
    found: dict[str, dict[str, str]] = {}
    for connection in streams_by_proxy(state.xds.status).get(proxy.id, []):
        for (type_url, name), truth in of_unused(connection).items():
            found.setdefault(type_url, {})[name] = str(truth)
    return found


async def own_fleet(state: PlaneState, facts: PlaneFacts, asked: Collection[Key]) -> dict[Key, FleetTruth]:
    """The states of objects at the proxies of this process."""
    return added_up(await in_turns(fleet_of(facts, state.xds.status, asked)))
