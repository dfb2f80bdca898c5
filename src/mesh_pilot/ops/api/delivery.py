"""True if the fleet has a change: from the revision of the World that holds an object to what every proxy answered.

A proxy *has* a revision once it has answered everything that it was sent up to there and has not refused what came of
the object. Each worker answers for its own proxies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import trio

from mesh_pilot.explain.truth.states import TruthState
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.history import RevisionNack
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.replicas.workers.questions import DeliveryQuestion, WorkerDelivery
from mesh_pilot.xds.ads.status import StatusRegistry

LOOK_SECONDS = 0.05
"""The interval at which proxies are looked at while somebody waits."""

NAMED = 100
"""Proxies that an answer names."""


@attrs.frozen
class DeliveryRefusal:
    """The last refusal of a proxy that refused what came of an object."""

    proxy: str
    type: str
    resources: Sequence[str]
    reason: str


@attrs.frozen(kw_only=True)
class DeliveryState:
    """How far an object has come."""

    complete: bool
    """True if every proxy has it."""
    revision: int | None
    """The revision with which it came into force, or a later one; null while it is not in force."""
    proxies: int
    """Connected proxies,"""
    have: int
    """those that have it,"""
    sent: int
    """those that were sent something because of that revision,"""
    waiting: int
    """and those that have not answered yet."""
    waiting_names: Sequence[str]
    nacks: Sequence[DeliveryRefusal]
    reason: str
    """Why it is not everywhere, where that is not the proxies' answer."""


@attrs.frozen
class Delivery:
    """How far an object has come."""

    revision: int = 0
    """The revision with which it came into force, or a later one; 0 while it is not in force."""
    proxies: int = 0
    """Connected proxies."""
    sent: int = 0
    """Connected proxies that were sent something because of that revision."""
    waiting: tuple[str, ...] = ()
    """Proxies that have not answered yet, by name."""
    nacks: tuple[RevisionNack, ...] = ()
    """The last refusal of each proxy that refused what came of the object."""
    reason: str = ""
    """Why it is not everywhere, where that is not the proxies' answer."""

    @property
    def is_over(self) -> bool:
        """True once every proxy has answered."""
        return bool(self.revision) and not self.waiting

    @property
    def is_complete(self) -> bool:
        """True if every proxy has it."""
        return self.is_over and not self.nacks and not self.reason

    @property
    def shown(self) -> DeliveryState:
        nacked = {each.proxy for each in self.nacks}
        return DeliveryState(
            complete=self.is_complete,
            revision=self.revision or None,
            proxies=self.proxies,
            have=max(0, self.proxies - len({*self.waiting, *nacked})) if self.revision else 0,
            sent=self.sent,
            waiting=len(self.waiting),
            waiting_names=sorted(self.waiting)[:NAMED],
            nacks=[DeliveryRefusal(each.proxy, each.type, each.names, each.reason) for each in self.nacks[:NAMED]],
            reason=self.reason,
        )


def own_delivery(status: StatusRegistry, question: DeliveryQuestion) -> WorkerDelivery:
    """The part of this process in the answer to a question."""
    revision, configs = question.revision, set(question.configs)
    waiting: list[str] = []
    proxies = 0
    for connection in status.proxies():
        if connection.proxy is not None:
            proxies += 1
            if connection.follower.is_before(revision):
                waiting.append(connection.proxy.name)
    nacks: dict[str, RevisionNack] = {}
    sent = 0
    for outcome in status.revisions.recent():
        if outcome.revision == revision:
            sent = outcome.proxies
        if outcome.revision >= revision:
            for nack in outcome.nacks:
                if configs.intersection(nack.configs) or (not nack.configs and outcome.revision == revision):
                    nacks[nack.proxy] = nack
    return WorkerDelivery(status.revisions.latest >= revision, proxies, sent, tuple(waiting), tuple(nacks.values()))


async def delivered(
    state: PlaneState,
    key: ConfigKey,
    is_there: Callable[[Config | None], bool],
    seconds: float,
) -> Delivery:
    """Wait until every proxy has answered what came of an object, so many seconds at most; how far it came.

    ``is_there``: true if what is in force is the expected state. Nothing is left behind if cancelled.
    """
    found = Delivery()
    with trio.move_on_after(seconds):
        await _in_force(state, key, is_there)
        revision = state.xds.status.revisions.latest
        question = DeliveryQuestion(revision, tuple(map(str, (key, *state.world.made_of(key)))))
        while not found.is_over:
            found = await _of_all(state, key, question)
            if not found.is_over:
                await trio.sleep(LOOK_SECONDS)
    if not found.revision:
        return Delivery(proxies=_connected(state), reason=_why_not_in_force(state, key))
    return attrs.evolve(found, reason=_why_not_everywhere(state, key))


async def _in_force(state: PlaneState, key: ConfigKey, is_there: Callable[[Config | None], bool]) -> None:
    """Wait until what is in force with a key is what is expected."""
    while not is_there(state.world.config.peek(key)):
        await state.reducer.wait_published()


async def _of_all(state: PlaneState, key: ConfigKey, question: DeliveryQuestion) -> Delivery:
    """The answers of all workers together."""
    answers, late = await _asked(state, question)
    waiting = [name for answer in answers.values() for name in answer.waiting]
    return Delivery(
        question.revision,
        sum(each.proxies for each in answers.values()),
        sum(each.sent for each in answers.values()),
        (*waiting, *late, *_not_in_rollout(state, key, waiting)),
        tuple(nack for each in answers.values() for nack in each.nacks),
    )


async def unanswered(state: PlaneState, revision: int) -> list[str]:
    """The proxies, and workers, that have not answered a revision yet."""
    answers, late = await _asked(state, DeliveryQuestion(revision, ()))
    return [*(name for answer in answers.values() for name in answer.waiting), *late]


async def _asked(state: PlaneState, question: DeliveryQuestion) -> tuple[dict[int, WorkerDelivery], list[str]]:
    """The answers of workers by number, and the workers that are late."""
    answers = {1: own_delivery(state.xds.status, question)}
    late: list[str] = []
    if state.others is not None:
        asked = await state.others.ask(question)
        answers |= {number: each for number, each in asked.items() if isinstance(each, WorkerDelivery)}
        late += [
            f"worker {number}"
            for number in state.others.numbers
            if number not in answers or not answers[number].has_revision
        ]
    return answers, late


def _not_in_rollout(state: PlaneState, key: ConfigKey, waiting: list[str]) -> Iterator[str]:
    """The proxies that a rollout has not given the change yet."""
    rollouts = state.rollouts
    if rollouts is None or rollouts.progress.is_idle or state.facts().change_of(("config", *key)) is None:
        return
    for node, member in rollouts.members().items():
        if not rollouts.progress.has_new(node) and member.name not in waiting:
            yield member.name


def _connected(state: PlaneState) -> int:
    others = state.others.states().values() if state.others is not None else ()
    return sum(1 for each in state.xds.status.proxies() if each.proxy is not None) + sum(o.connected for o in others)


def _why_not_in_force(state: PlaneState, key: ConfigKey) -> str:
    truth = state.facts().at_door(("config", *key))
    if truth.state in (TruthState.REFUSED, TruthState.HELD, TruthState.STALE, TruthState.CONFLICTING):
        return f"{truth}; {truth.fix}"
    return "the control plane has not read it yet, or somebody has changed it since"


def _why_not_everywhere(state: PlaneState, key: ConfigKey) -> str:
    truth = state.facts().on_its_way(("config", *key))
    return f"{truth}; {truth.fix}" if truth is not None else ""
