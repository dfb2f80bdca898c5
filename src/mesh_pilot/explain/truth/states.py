"""The states of an object, a resource, a type and a proxy, and the pure functions that tell which it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import attrs

from mesh_pilot.model.events import Item, NewValue, Withheld
from mesh_pilot.safety.quarantine.clients import in_words
from mesh_pilot.world.guard import HeldObjects, accept_command
from mesh_pilot.xds.ads.messages import Phase
from mesh_pilot.xds.ads.warming import Warming


class TruthState(StrEnum):
    """The state of something at a proxy; exactly one holds at any time."""

    IN_FORCE = "in force"
    """The proxy uses the newest version."""
    WARMING = "warming"
    """It has accepted the newest version and does not use it yet: it waits for something."""
    PENDING = "pending"
    """It was sent the newest version, or is about to be, and has not answered."""
    REFUSED = "refused"
    """It, or validation, refuses the newest version."""
    WITHHELD = "withheld"
    """Quarantine serves an older version, or none, because a proxy refused the newest."""
    CANARY = "in canary"
    """A rollout has given the newest version to some proxies only."""
    TAKEN_BACK = "taken back"
    """A rollout was taken back: the newest version is in the source, and all proxies have the one before."""
    HELD = "held"
    """A guard keeps it in force, because its source has lost it and no operator has confirmed that."""
    STALE = "stale"
    """The last version is in force that its source gave, which does not answer now."""
    CONFLICTING = "conflicting"
    """Several sources have different versions of it: the one in force is that of the first."""
    ABSENT = "absent"
    """Nothing that the proxy has is made of it."""


SYNC_WORDS = {
    TruthState.IN_FORCE: "SYNCED",
    TruthState.WARMING: "WARMING",
    TruthState.PENDING: "STALE",
    TruthState.REFUSED: "NACK",
    TruthState.ABSENT: "NOT SENT",
}
"""The words for the states of types: those of Istio's ``proxy-status``, and WARMING."""

_PHASES = {
    Phase.IDLE: TruthState.ABSENT,
    Phase.UNACKED: TruthState.PENDING,
    Phase.ACKED: TruthState.IN_FORCE,
    Phase.NACKED: TruthState.REFUSED,
}

AT_PROXY = (TruthState.REFUSED, TruthState.PENDING, TruthState.WARMING)
"""The states of something that a proxy was sent and does not use, the worst first."""


WORST_FIRST = (
    TruthState.WITHHELD,
    TruthState.TAKEN_BACK,
    TruthState.REFUSED,
    TruthState.HELD,
    TruthState.STALE,
    TruthState.CONFLICTING,
    TruthState.CANARY,
    TruthState.WARMING,
    TruthState.PENDING,
    TruthState.IN_FORCE,
    TruthState.ABSENT,
)
"""The order in which one of the states that an object has at several proxies is told."""

MENDS: Mapping[TruthState, str] = {
    TruthState.WITHHELD: "correct it: a new version is sent at once",
    TruthState.TAKEN_BACK: "change it again, or give it to all with mesh-pilot rollout promote",
    TruthState.REFUSED: "correct it",
    TruthState.STALE: "mesh-pilot admin status says what the source lacks",
    TruthState.CONFLICTING: "keep it in one source",
    TruthState.CANARY: "mesh-pilot rollout status says what it waits for",
    TruthState.WARMING: "mesh-pilot proxy-status says what the proxy waits for",
}
"""The ends of states, for people; what is held has its own command, and the others need none."""


@attrs.frozen
class Truth:
    """The state of something at a proxy."""

    state: TruthState
    why: str = ""
    """The reason, for people; empty for none."""
    version: str = ""
    """The version of a resource that the proxy was sent."""
    served: tuple[Item, ...] = ()
    """The value of an object that the proxy is served; empty: it is served without."""
    since: datetime | None = None
    """When that began, where it is known."""
    command: str = ""
    """The command that ends it, where there is one for just this."""
    has_newest: bool = True
    """False if the proxy is served an older version of an object, or none."""

    def __str__(self) -> str:
        return f"{self.state}: {self.why}" if self.why else str(self.state)

    @property
    def fix(self) -> str:
        """The way to end it, for people; empty if nothing needs to be done."""
        return self.command or MENDS.get(self.state, "")


@attrs.frozen(kw_only=True)
class GateFacts:
    """All that decides which version of an object a proxy has."""

    current: tuple[Item, ...] = ()
    """The object as all sources have it, the one that wins first; empty if none has it."""
    refused: str = ""
    """Why validation refuses its newest version; empty if it does not."""
    held: HeldObjects | None = None
    """The loss of its source for which a guard keeps it; None if none does."""
    stale: str = ""
    """Why its source does not answer; empty if it does."""
    conflict: str = ""
    """The sources that have another version of it, in words; empty if none has."""
    withheld: Withheld | None = None
    """The value that quarantine serves instead,"""
    domain: str = ""
    """and to whom; see ``Proxy.domains``."""
    is_trial: bool = False
    """True if it is withheld to find out what the proxy refuses."""
    change: NewValue | None = None
    """The change of it that a rollout has given to some proxies only."""
    has_new: bool = False
    """True if this proxy is one of them."""
    rollout: str = ""
    """The step that the rollout has reached, or why it was taken back."""
    resources: tuple[Truth, ...] = ()
    """The states of the resources that the proxy has and that are made of it."""


def truth_of_object(facts: GateFacts) -> Truth:
    """The state of an object at a proxy: what is nearest to the proxy counts."""
    has_old = facts.change is not None and (facts.change.is_held or not facts.has_new)
    served = facts.change.old if facts.change is not None and has_old else facts.current
    if facts.withheld is not None:
        since = facts.withheld.refusal.at
        return Truth(
            TruthState.WITHHELD, why_withheld(facts), served=facts.withheld.served, since=since, has_newest=False
        )
    if facts.change is not None and facts.change.is_held:
        why = f"the version before is in force: {facts.rollout}"
        return Truth(TruthState.TAKEN_BACK, why, served=served, has_newest=False)
    if has_old:
        is_between = facts.change is not None and facts.change.start
        what = "weights between the version before and the newest" if is_between else "the version before"
        why = f"it has {what}; rollout: {facts.rollout}"
        return Truth(TruthState.CANARY, why, served=served, has_newest=False)
    at_proxy = _worst(facts.resources)
    if at_proxy is not None:
        return Truth(at_proxy.state, at_proxy.why, served=served)
    if facts.change is not None:
        return Truth(TruthState.CANARY, f"it has the new version; rollout: {facts.rollout}", served=served)
    return attrs.evolve(truth_at_door(facts), served=served)


def truth_at_door(facts: GateFacts) -> Truth:
    """The state of an object, whatever proxies are connected: what keeps its newest version out."""
    if facts.refused:
        return Truth(TruthState.REFUSED, f"the newest version is refused: {facts.refused}")
    if facts.held is not None:
        source = facts.held.source
        return Truth(TruthState.HELD, f"{source} has lost it: {facts.held.reason}", command=accept_command(source))
    if facts.stale:
        return Truth(TruthState.STALE, facts.stale)
    if facts.conflict:
        return Truth(TruthState.CONFLICTING, facts.conflict)
    if not (facts.current and facts.resources):
        return Truth(TruthState.ABSENT)
    return Truth(TruthState.IN_FORCE)


def why_withheld(facts: GateFacts) -> str:
    """Why an object is withheld, and from whom."""
    assert facts.withheld is not None
    if facts.is_trial:
        return "left out in a trial, to find the object that the proxy refuses"
    return f"{facts.withheld.refusal.proxy} refused it; quarantine of {in_words(facts.domain)}"


def truth_of_resource(
    version: str | None, *, is_refused: bool, is_unanswered: bool, warming: Iterable[Warming] = ()
) -> Truth:
    """The state of a resource at a proxy. ``version``: what the proxy was sent last; None for nothing."""
    if is_refused:
        return Truth(TruthState.REFUSED, "the proxy refuses it", version or "")
    if is_unanswered:
        return Truth(TruthState.PENDING, "the proxy has not answered", version or "")
    waiting = next(iter(warming), None)
    if waiting is not None:
        return Truth(TruthState.WARMING, f"it waits for {waiting.resource.what}", version or "")
    return Truth(TruthState.ABSENT) if version is None else Truth(TruthState.IN_FORCE, version=version)


def truth_of_type(phase: Phase, version: str, warming: Sequence[Warming]) -> Truth:
    """The state of a type on a stream. ``warming``: the resources of the type that the client does not use yet."""
    state = _PHASES[phase]
    if warming and state in (TruthState.IN_FORCE, TruthState.ABSENT):
        return Truth(TruthState.WARMING, "; ".join(str(each.resource) for each in warming), version)
    return Truth(state, version=version)


def truth_of_proxy(*, is_refusing: bool, is_behind: bool, warming: Sequence[Warming]) -> Truth:
    """The state of the latest revision at a proxy."""
    if is_refusing:
        return Truth(TruthState.REFUSED)
    if is_behind:
        return Truth(TruthState.PENDING)
    if warming:
        return Truth(TruthState.WARMING, "; ".join(str(each.resource) for each in warming))
    return Truth(TruthState.IN_FORCE)


def _worst(resources: Iterable[Truth]) -> Truth | None:
    found = [each for each in resources if each.state in AT_PROXY]
    return min(found, key=lambda each: AT_PROXY.index(each.state), default=None)
