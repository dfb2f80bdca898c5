"""The progress of a rollout: steps, the choice of the canary, and the way back. Pure: time and proxies are given.

The whole state is one immutable value (`RolloutState`) that is replaced, never edited: the World shows it to all
proxies in the revision in which a change comes, the disk has it after a restart, and "same World, same bytes" holds.
Here is only what that value does not say: since when a step runs, and which orders came.

The canary is a list of node ids. A threshold of a hash would need no list, but at 20 proxies 5 % by threshold may well
be three; the hash gives the order, and the share cuts it. A rollout that was taken back stays until the source has
another value: if it were forgotten, the refused change would go to everybody. Decision 023 has the alternatives.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase

import attrs

from mesh_pilot.model.events import Item, NewValue, RolloutPlan, RolloutState
from mesh_pilot.safety.rollout.conditions import NOT_WORSE, condition_of
from mesh_pilot.safety.rollout.weights import weights_between

Key = tuple[str, ...]
Value = tuple[Item, ...]


class RolloutPhase(StrEnum):
    OFF = "off"
    ARMED = "armed"
    RUNNING = "running"
    PAUSED = "paused"
    TAKEN_BACK = "taken back"


class RolloutError(ValueError):
    """An order that makes no sense now, with the reason."""


@attrs.frozen
class Member:
    """A connected proxy, as far as a rollout is concerned."""

    name: str
    labels: Mapping[str, str] = attrs.field(factory=dict)
    has_accepted: bool = False
    """True if it has accepted all that it was sent in this step."""
    is_refusing: bool = False
    """True if it refuses something already."""


SILENT_INTERVALS = 2
"""Intervals after which a step no longer waits for a proxy that has not accepted what it was sent."""

Members = Mapping[str, Member]
"""The connected proxies by node id."""


def phase_of(state: RolloutState | None) -> RolloutPhase:
    if state is None:
        return RolloutPhase.OFF
    if not state.changes:
        return RolloutPhase.ARMED
    if not state.is_running:
        return RolloutPhase.TAKEN_BACK
    return RolloutPhase.PAUSED if state.is_paused else RolloutPhase.RUNNING


class Progress:
    """Mutable state: the rollout, and since when it has been in its step."""

    def __init__(self, always: RolloutPlan | None = None, *, key: bytes | None = None) -> None:
        """``always``: the plan for every change; None: only what is armed is rolled out. ``key``: of the hash that
        chooses the canary; without one it is a secret of this run, so that no proxy can name itself into the canary."""
        self._key = key if key is not None else secrets.token_bytes(16)
        self._always = always
        self.state: RolloutState | None = None
        self.since = 0.0
        self._canary: tuple[tuple[str, ...], frozenset[str]] = ((), frozenset())
        """The canary, and the same as a set."""
        self._silent: frozenset[str] = frozenset()
        """Proxies of the canary that did not answer for two intervals: others stand in for them."""
        self.finished = 0
        self.taken_back = 0

    def __repr__(self) -> str:
        return f"<Progress {self.phase}>"

    @property
    def phase(self) -> RolloutPhase:
        return phase_of(self.state)

    @property
    def is_idle(self) -> bool:
        """True if a change goes to everybody at once."""
        return self.state is None and self._always is None

    def due(self, now: float) -> float:
        """When ``tick`` may have something to do, if nothing happens before."""
        state = self.state
        if state is None:
            return math.inf
        if self.phase is RolloutPhase.ARMED:
            return self.since + state.plan.within if state.plan.within is not None else math.inf
        if self.phase is not RolloutPhase.RUNNING:
            return math.inf
        is_over = now - self.since >= state.plan.interval
        return self.since + state.plan.interval * (SILENT_INTERVALS if is_over else 1)

    # -- orders

    def arm(self, plan: RolloutPlan, now: float) -> None:
        """Make the next change a rollout. Raises RolloutError."""
        if self.phase not in (RolloutPhase.OFF, RolloutPhase.ARMED):
            raise RolloutError(f"a rollout is {self.phase}: promote or abort it first")
        self.state, self.since = RolloutState(plan), now

    def restore(self, state: RolloutState, now: float) -> None:
        """Go on with a rollout of an earlier run; its step begins again."""
        self.state, self.since = state, now

    def pause(self) -> None:
        self._running("pause")
        self._evolve(is_paused=True)

    def resume(self, now: float) -> None:
        """Go on, from the beginning of the step."""
        if self.phase is not RolloutPhase.PAUSED:
            raise RolloutError(f"nothing is paused: {self._state}")
        self._evolve(is_paused=False)
        self.since = now

    def promote(self) -> None:
        """Give the new values to everybody now. Raises RolloutError."""
        if self.state is None or not self.state.changes:
            raise RolloutError(f"there is nothing to promote: {self._state}")
        self.state = None
        self.finished += 1

    def abort(self, why: str) -> None:
        """Take the changes back; disarm if there are none yet. Raises RolloutError."""
        if self.phase is RolloutPhase.ARMED:
            self.state = None
            return
        self._running("abort")
        self._take_back(why)

    def _running(self, order: str) -> None:
        if self.phase not in (RolloutPhase.RUNNING, RolloutPhase.PAUSED):
            raise RolloutError(f"there is nothing to {order}: {self._state}")

    @property
    def _state(self) -> str:
        begin = "; mesh-pilot rollout start begins one" if self.phase is RolloutPhase.OFF else ""
        return f"the rollout is {self.phase}{begin}"

    # -- what happens

    def changed(
        self,
        values: Mapping[Key, tuple[Value, Value]],
        only_endpoints: Collection[Key],
        members: Members,
        now: float,
    ) -> None:
        """Objects change, each from one value to another; of some only what is passed on at once."""
        state = self.state
        plan = state.plan if state is not None else self._always
        if plan is None:
            return
        known = {each.key: each for each in state.changes} if state is not None else {}
        if plan.by_weights:
            known, values = _of_weights(known, values)
        again = any(key in known and known[key].is_held and key not in only_endpoints for key in values)
        may_join = again or self._always is not None or self.phase is not RolloutPhase.TAKEN_BACK
        mine: dict[Key, NewValue] = {}
        joins = again
        for key, (before, after) in values.items():
            if key in known:
                mine[key] = attrs.evolve(known[key], new=after)
            elif may_join and key not in only_endpoints:
                mine[key] = NewValue(key, after, before)
                joins = True
        if not mine and len(known) == len(state.changes if state is not None else ()):
            return
        changes = {**known, **mine}
        if again:
            changes = {key: attrs.evolve(each, is_held=False) for key, each in changes.items()}
        left = tuple(each for each in changes.values() if each.new != each.before)
        if not left:
            self.state = None  # everything is as it was
            return
        found = attrs.evolve(state or RolloutState(plan), changes=left)
        if not found.held:
            found = attrs.evolve(found, reason="")
        self.state = found
        if joins:
            self._silent = frozenset()
            self.state = attrs.evolve(found, step=0, canary=self._first_of(found))
            self._choose(members)
        self._set_weights()
        if joins or not mine.keys() <= set(only_endpoints):
            self.since = now

    def refused(self, node: str, why: str) -> bool:
        """A proxy refuses something. True if it was of the canary, and the changes are taken back."""
        if self.phase not in (RolloutPhase.RUNNING, RolloutPhase.PAUSED) or not self.takes_part(node):
            return False
        self._take_back(why)
        return True

    def got_worse(self, why: str) -> None:
        """The canary's traffic got worse: take the changes back."""
        self._running("take back")
        self._take_back(why)

    def tick(self, members: Members, now: float, *, is_known: bool = True) -> bool:
        """Go on if the step is over. True if anything has changed. ``is_known``: traffic has not got worse, as far as
        it is judged."""
        state, phase = self.state, self.phase
        if state is None or phase not in (RolloutPhase.ARMED, RolloutPhase.RUNNING):
            return False
        if phase is RolloutPhase.ARMED:
            if self.due(now) <= now:
                self.state = None
            return self.state is not state
        is_over = now - self.since >= state.plan.interval
        if not self._present(members):
            if (is_over or not state.canary) and self._choose(members):
                self.since = now
            return self.state is not state
        if state.step == 0 and state.plan.selects and self._choose(members):
            return True
        if not is_over:
            return False
        if missing := self._has_not_accepted(members):
            if now - self.since < state.plan.interval * SILENT_INTERVALS:
                return False
            self._silent |= frozenset(missing)
            if not self._present(members):  # none has tried the new values
                self._choose(members)
                self.since = now
                return True
        if not is_known:
            return self.state is not state
        self._next_step(members, now)
        return True

    def _next_step(self, members: Members, now: float) -> None:
        """The next step that adds a proxy to the canary. After the last one the rollout is over."""
        state = self.state
        assert state is not None
        while state.step + 1 < len(state.plan.steps):
            state = self._evolve(step=state.step + 1)
            self.since = now
            self._set_weights()
            if self._choose(members) or state.share >= 100 or state.plan.by_weights:
                return
        held = state.held
        self.finished += 1
        self.state = RolloutState(state.plan, held, reason=state.reason) if held else None

    def _take_back(self, why: str) -> None:
        state = self.state
        assert state is not None
        held = tuple(attrs.evolve(each, old=each.before, start=(), is_held=True) for each in state.changes)
        self._evolve(changes=held, step=0, canary=(), is_paused=False, reason=why)
        self.taken_back += 1

    # -- the canary

    def has_new(self, node: str) -> bool:
        """True for a proxy that has the new values while the rollout runs."""
        state = self.state
        if state is None or not state.is_running:
            return False
        if self._canary[0] is not state.canary:
            self._canary = (state.canary, frozenset(state.canary))
        return state.share >= 100 or node in self._canary[1]

    def takes_part(self, node: str) -> bool:
        """True for a proxy that has the new values, or weights on their way there."""
        state = self.state
        return self.has_new(node) or (state is not None and state.is_running and state.plan.by_weights)

    def waits_for(self, members: Members, now: float, traffic: str = "") -> str:
        """Text: what the next step waits for; empty if nothing runs. ``traffic``: the same of traffic."""
        state = self.state
        if state is None or self.phase is not RolloutPhase.RUNNING:
            return ""
        if not self._present(members):
            return "a proxy of the canary to connect"
        missing = [members[node].name for node in self._has_not_accepted(members)]
        if missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} others" if len(missing) > 3 else "")
            return f"{shown} to accept what was sent"
        left = math.ceil(self.since + state.plan.interval - now)
        return f"{left} seconds to pass" if left > 0 else traffic or "0 seconds to pass"

    def _present(self, members: Members) -> list[str]:
        """The connected proxies of the canary, but for the silent ones."""
        return [node for node in members if node not in self._silent and self.takes_part(node)]

    def _has_not_accepted(self, members: Members) -> list[str]:
        return [node for node in self._present(members) if not members[node].has_accepted]

    def _first_of(self, state: RolloutState) -> tuple[str, ...]:
        """The proxies that a rollout begins again with: new objects are for no more of them than its first step."""
        return state.canary if state.step == 0 else ()

    def _choose(self, members: Members) -> bool:
        """Add proxies up to the share of the step. True if there were any."""
        state = self.state
        assert state is not None
        if not members or state.share >= 100 or state.plan.by_weights:
            return False
        rest = sorted(members.keys() - frozenset(state.canary), key=self._digest)
        if state.plan.selects:
            rest.sort(key=lambda node: not is_selected(state.plan, members[node]))
        rest.sort(key=lambda node: members[node].is_refusing)
        if state.share == 0:
            chosen = [node for node in rest if is_selected(state.plan, members[node])]
        else:
            chosen = rest[: max(0, allowed(state.share, len(members)) - len(self._present(members)))]
        if chosen:
            self._evolve(canary=(*state.canary, *chosen))
        return bool(chosen)

    def _set_weights(self) -> None:
        """Have all proxies served the weights of the step."""
        state = self.state
        if state is not None and state.plan.by_weights:
            self._evolve(
                changes=tuple(each if each.is_held else _on_its_way(each, state.share) for each in state.changes)
            )

    def _digest(self, node: str) -> bytes:
        return hashlib.blake2b(node.encode(), digest_size=8, key=self._key).digest()

    def _evolve(self, **fields: object) -> RolloutState:
        assert self.state is not None
        self.state = attrs.evolve(self.state, **fields)  # type: ignore[arg-type]  # the fields of RolloutState
        return self.state


BY = ("proxies", "weights")
"""The ways of a rollout."""


def allowed(share: float, proxies: int) -> int:
    """The number of proxies that a share is: at least one."""
    return max(1, math.floor(proxies * share / 100 + 1e-9))


def _on_its_way(change: NewValue, share: float) -> NewValue:
    start = change.before
    between = weights_between(start, change.new, share)
    return change if between is None else attrs.evolve(change, old=between, start=start)


def _of_weights(
    known: Mapping[Key, NewValue], values: Mapping[Key, tuple[Value, Value]]
) -> tuple[dict[Key, NewValue], dict[Key, tuple[Value, Value]]]:
    """The changes that are of weights alone, of those that are known and those that come. What changes otherwise
    reaches all proxies at once."""
    mine: dict[Key, tuple[Value, Value]] = {}
    others: set[Key] = set()
    for key, (before, after) in values.items():
        first = known[key].before if key in known else before
        if first == after or weights_between(first, after, 0) is not None:
            mine[key] = (before, after)
        else:
            others.add(key)
    return {key: each for key, each in known.items() if key not in others}, mine


def is_selected(plan: RolloutPlan, member: Member) -> bool:
    """True for a proxy that a plan names, by its labels or its name."""
    short = member.name.partition(".")[0]
    return (bool(plan.labels) and all(member.labels.get(key) == value for key, value in plan.labels)) or any(
        fnmatchcase(name, pattern) for pattern in plan.names for name in (member.name, short)
    )


def plan_of(
    *,
    canary: float | None = None,
    steps: Collection[float] = (),
    interval: float = 120.0,
    within: float | None = None,
    labels: Mapping[str, str] | None = None,
    names: Collection[str] = (),
    judged_by: str = NOT_WORSE,
    by: str = "proxies",
) -> RolloutPlan:
    """A plan, checked. Raises RolloutError."""
    selects = bool(labels or names)
    if selects and canary is not None:
        raise RolloutError("the first proxies are either a share or selected ones, not both")
    shares = list(_shares(canary, steps))
    if any(not 0 < share <= 100 for share in shares):
        raise RolloutError("shares are between 0 and 100 percent")
    if shares != sorted(set(shares)):
        raise RolloutError("each step must be larger than the one before")
    if shares[-1:] != [100.0]:
        shares.append(100.0)
    if not interval >= 0 or (within is not None and not within > 0):
        raise RolloutError("times must not be negative")
    first = (0.0,) if selects else ()
    return RolloutPlan(
        (*first, *shares),
        interval,
        within,
        tuple(sorted((labels or {}).items())),
        tuple(names),
        _checked(judged_by),
        _is_by_weights(by, selects=selects),
    )


def _is_by_weights(by: str, *, selects: bool) -> bool:
    if by not in BY:
        raise RolloutError(f"a rollout is by {' or '.join(BY)}, not by {by[:40]!r}")
    if by == "weights" and selects:
        raise RolloutError("weights change at all proxies: none can be selected")
    return by == "weights"


def _checked(condition: str) -> str:
    try:
        condition_of(condition)
    except ValueError as error:
        raise RolloutError(str(error)) from None
    return condition


def _shares(canary: float | None, steps: Collection[float]) -> Iterator[float]:
    default = RolloutPlan().steps
    if canary is not None:
        yield canary
        yield from (share for share in steps or default if share > canary)
    else:
        yield from steps or default
