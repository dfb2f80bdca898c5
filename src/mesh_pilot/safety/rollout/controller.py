"""The controller of rollouts: holds changes at the reducer, follows answers of proxies, wakes when a step is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs
import structlog
import trio

from mesh_pilot.base.containment import Contained
from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.model.events import Delete, Event, Item, Replace, RolloutPlan, RolloutState, Synced, Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.safety.quarantine.suspects import made_from
from mesh_pilot.safety.quarantine.verdicts import name_of
from mesh_pilot.safety.rollout.judge import RolloutJudge, TrafficFinding
from mesh_pilot.safety.rollout.progress import Key, Member, Members, Progress, RolloutPhase, Value
from mesh_pilot.traffic.table import TrafficTable
from mesh_pilot.world import World
from mesh_pilot.world.intake import Admitted, ItemChange
from mesh_pilot.world.reducer import is_endpoint_only
from mesh_pilot.xds.ads.messages import Nack
from mesh_pilot.xds.ads.observers import NO_ANSWER_OBSERVER, AnswerObserver
from mesh_pilot.xds.ads.stream import Stream

log = structlog.get_logger(scope="rollout")

SOURCE = "rollout"
"""The name of rollouts as a source of events."""

KEY = ("rollout",)

GATHER_SECONDS = 0.05
"""The wait for more answers before they are looked at."""

MAX_REASON = 500
"""Characters of a proxy's reason."""

_JUDGED = (RolloutPhase.RUNNING, RolloutPhase.PAUSED)
"""The phases in which traffic is looked at."""

_CONFIGURATION = frozenset(("config", "mesh", "networks"))
"""Collections of items that are rolled out. All others reach everybody at once."""


@attrs.define(eq=False)
class _Client:
    """One stream of a proxy. Mutable."""

    proxy: Proxy
    stream: Stream
    has_accepted: bool = False
    may_have_new: bool = False
    """True from when it was given new values until it has answered all that came after."""
    deferred: dict[str, Nack] = attrs.field(factory=dict)
    """Refusals by type for which the rollout was taken back; if they last, the rollout did not cause them."""


@attrs.frozen
class RolloutStatistics:
    synced: bool = True
    """True: the picture is always full."""


class RolloutController:
    """Implements ``AnswerObserver`` of ``xds`` around another one, and ``sources.base.contract.Placed`` and ``Seeded``.

    Mutable state: the progress of the rollout, and the connected proxies.
    """

    name = SOURCE
    place = "rollouts of changes"

    def __init__(
        self,
        world: World,
        inner: AnswerObserver = NO_ANSWER_OBSERVER,
        always: RolloutPlan | None = None,
        *,
        is_synced: Callable[[], bool] = lambda: True,
        table: TrafficTable | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """``inner`` learns all that is not this one's matter. ``is_synced``: the World has its first full picture.
        ``table``: the traffic by which rollouts are judged; without one only answers of proxies count."""
        self.progress = Progress(always)
        self._world = world
        self._inner = inner
        self._is_synced = is_synced
        self._clock = clock
        self._judge = RolloutJudge(table, world.view.full_host) if table is not None else None
        self._judged: RolloutState | None = None
        """The rollout whose traffic was looked at last."""
        self._clients: dict[int, _Client] = {}
        self._news = trio.Event()
        self._was_used = self._is_seeded = False
        # Without a rollout nothing stands between a session and the other observer.
        self.joining = inner.joining
        self.sent = inner.sent
        self.accepted = inner.accepted
        self.trial_of = inner.trial_of
        self.is_interested: Callable[[int], bool] = inner.is_interested

    def __repr__(self) -> str:
        return f"<RolloutController {self.progress!r}, {len(self._clients)} clients>"

    def seed(self, items: Iterable[Item]) -> None:
        """The rollout of an earlier run, before ``run``."""
        self._is_seeded = True
        for item in items:
            if isinstance(item, RolloutState):
                self.progress.restore(item, self._clock())
                self._changed()
                log.info("rollout continues after a restart", phase=str(self.progress.phase), **self._shown())

    async def run(self, events: trio.MemorySendChannel[Event]) -> None:
        """Go on with rollouts until cancelled; what is served to whom stays as it is then."""
        if self._is_seeded:  # what was restored is confirmed
            if self.progress.state is not None:
                await events.send(Upsert(SOURCE, self.progress.state))
            await events.send(Synced(SOURCE))
        while True:
            news = self._news = trio.Event()
            await in_turns(self.looking())
            self.tick()
            if self._is_behind:
                for event in self._events():
                    await events.send(event)  # only wakes the reducer: `admit` puts the latest state in its place
            due = self._due()
            with trio.move_on_at(due if due > self._clock() else math.inf):
                await news.wait()
                await trio.sleep(GATHER_SECONDS)

    def statistics(self) -> RolloutStatistics:
        return RolloutStatistics()

    def order(self, what: Callable[[Progress], None], name: str) -> None:
        """Carry out an order of an operator. Raises RolloutError."""
        what(self.progress)
        log.warning("rollout: order", order=name, phase=str(self.progress.phase), **self._shown())
        self._changed()

    def members(self) -> dict[str, Member]:
        """The connected proxies."""
        found: dict[str, Member] = {}
        for client in self._clients.values():
            node, before = client.proxy.id, found.get(client.proxy.id)
            has_accepted = client.has_accepted and (before is None or before.has_accepted)
            is_refusing = (before is not None and before.is_refusing) or _is_refusing(client.stream)
            found[node] = Member(client.proxy.name, client.proxy.labels, has_accepted, is_refusing)
        return found

    def waits_for(self, members: Members) -> str:
        """Text: what the next step waits for; empty if nothing runs."""
        return self.progress.waits_for(members, self._clock(), self.finding.waits)

    @property
    def finding(self) -> TrafficFinding:
        """The state of the canary's traffic."""
        if self._judge is None:
            return TrafficFinding(says="traffic is not judged: reports of it are off")
        return self._judge.finding

    # -- the reducer

    def admit(self, admitted: Admitted) -> Admitted:
        """Hold what changes, in the very revision in which it does: for `Reducer.gates`."""
        if self.progress.is_idle and not self._was_used:
            return admitted
        with Contained(log, "internal error in rollouts: a change goes to everybody"):
            self._look_at(admitted)
        events = [e for e in admitted.events if not _is_mine(e)]
        changes = [change for change in admitted.changes if change.source != SOURCE]
        if self._is_behind:
            events += self._events()
            changes.append(ItemChange(SOURCE, KEY, self._world.item_of(SOURCE, KEY), self.progress.state))
        return attrs.evolve(admitted, events=events, changes=changes)

    def _look_at(self, admitted: Admitted) -> None:
        said: dict[Key, dict[str, Item | None]] = {}
        for change in admitted.changes:
            if change.key[0] in _CONFIGURATION:
                said.setdefault(change.key, {})[change.source] = change.after
        if not said or not self._is_synced():
            return
        values = {key: (tuple(self._world.current(key)), self._after(key, of)) for key, of in said.items()}
        values = {key: (before, after) for key, (before, after) in values.items() if before != after}
        if not values:
            return
        only_endpoints = {key for key in values if all(self._is_of_endpoints(key, *each) for each in said[key].items())}
        state = self.progress.state
        self.progress.changed(values, only_endpoints, self.members(), self._clock())
        if self.progress.state is not state:
            event = "rollout begins" if self.progress.state is not None else "rollout over: all objects are as before"
            log.info(event, **self._shown())
            self._changed()

    def _after(self, key: Key, said: Mapping[str, Item | None]) -> Value:
        sources = dict.fromkeys((*self._world.sources(), *said))
        found = (said[s] if s in said else self._world.item_of(s, key) for s in sources)
        return tuple(item for item in found if item is not None)

    def _is_of_endpoints(self, key: Key, source: str, after: Item | None) -> bool:
        return is_endpoint_only(Upsert(source, after) if after is not None else Delete(source, key), self._world)

    @property
    def _is_behind(self) -> bool:
        """True if the World has another state than the progress."""
        return self._world.item_of(SOURCE, KEY) is not self.progress.state

    def _events(self) -> list[Event]:
        state = self.progress.state
        return [Upsert(SOURCE, state)] if state is not None else [Delete(SOURCE, KEY)]

    def revised(self, changed: Iterable[Key]) -> None:
        """The World has a new revision: proxies have to accept it if it says who gets what."""
        if KEY in changed:
            for number, client in self._clients.items():
                client.has_accepted = False
                client.may_have_new = client.may_have_new or self.progress.takes_part(client.proxy.id)
                if self.progress.state is None:
                    self._hand_over(number, client)
            self._news.set()

    # -- time

    def looking(self) -> Iterator[None]:
        """Look at the traffic, for `in_turns`; the next ``tick`` goes by what was found."""
        state = self._judged = self.progress.state
        if self._judge is None or self._is_behind:
            return
        if state is None or self.progress.phase not in _JUDGED:
            self._judge.forget()
            return
        progress = self.progress
        with Contained(log, "internal error in judging traffic: acks alone count") as failed:
            yield from self._judge.looking(state, progress.since, self.members(), progress.has_new, self._clock())
        if failed.error is not None:
            self._judge.forget()  # what it found or waited for before

    def tick(self) -> None:
        """Go on if the step is over."""
        if self._is_behind or self._judged is not self.progress.state:
            return  # until the reducer has the last one; until its traffic was looked at
        before, members, found = self.progress.phase, self.members(), self.finding
        if found.worse:
            self.progress.got_worse(found.worse)
            log.error("rollout taken back", **self._shown())
            self._changed()
            return
        if not self.progress.tick(members, self._clock(), is_known=not found.waits):
            return
        match self.progress.phase:
            case RolloutPhase.OFF if before is RolloutPhase.ARMED:
                log.warning("rollout disarmed: no change came in time")
            case RolloutPhase.OFF | RolloutPhase.TAKEN_BACK:
                log.info("rollout complete", **self._shown())
            case _:
                log.info("rollout continues", **self._shown())
        self._changed()

    def _due(self) -> float:
        """When ``tick`` may have something to do, if nothing happens before."""
        now = self._clock()
        due = self.progress.due(now)
        if self._judge is None or self.progress.phase not in _JUDGED:
            return due
        return min(self._judge.due(now), due if due > now else math.inf)

    def _changed(self) -> None:
        self._was_used = True
        self.is_interested = self._is_interested if self.progress.state is not None else self._inner.is_interested
        self._news.set()

    def _shown(self) -> dict[str, object]:
        state = self.progress.state
        if state is None or not state.changes:
            return {}
        objects = [name_of(each.key) for each in state.changes]
        running = {"share": state.share, "canary": len(state.canary)} if state.is_running else {"reason": state.reason}
        return {"objects": objects[:10], "count": len(objects), **running}

    # -- what sessions tell

    def joined(self, client: int, proxy: Proxy, stream: Stream, release: Callable[[], None]) -> None:
        self._inner.joined(client, proxy, stream, release)
        self._clients[client] = _Client(proxy, stream, may_have_new=self.progress.takes_part(proxy.id))
        if self.progress.state is not None:
            self._news.set()

    def left(self, client: int) -> None:
        self._inner.left(client)
        self._clients.pop(client, None)
        if self.progress.state is not None:
            self._news.set()

    def refused(self, client: int, nack: Nack) -> bool:
        """A refusal in the canary, of something made of a changed object, takes the rollout back. It reaches the inner
        observer if that does not end it."""
        found = self._clients.get(client)
        if found is None or self._inner.trial_of(client) or not self._is_of_change(nack):
            return self._inner.refused(client, nack)
        if not self._take_back(found, nack) and not found.may_have_new:
            return self._inner.refused(client, nack)
        found.deferred[nack.type_url] = nack
        return True

    def warms(self, client: int, nack: Nack) -> None:
        """The same for what a proxy accepts and does not use. The session says it again if it lasts."""
        found = self._clients.get(client)
        is_mine = found is not None and not self._inner.trial_of(client) and self._is_of_change(nack)
        if found is None or not is_mine or not (self._take_back(found, nack) or found.may_have_new):
            self._inner.warms(client, nack)

    def _take_back(self, client: _Client, nack: Nack) -> bool:
        """Take the rollout back, if the client is in the canary."""
        names = ", ".join(nack.names[:3])
        verb = "does not use" if nack.is_warming else "refuses"
        why = f"{client.proxy.name} {verb} {RESOURCE_TYPES[nack.type_url].short} {names}: {nack.reason[:MAX_REASON]}"
        if not self.progress.refused(client.proxy.id, why):
            return False
        log.error("rollout taken back", **self._shown())
        self._changed()
        return True

    def _is_of_change(self, nack: Nack) -> bool:
        """True if what is refused was made of an object that changes. Resources do not tell it of the mesh's settings
        and of objects that are deleted: then it may be any."""
        state = self.progress.state
        changes = state.changes if state is not None else ()
        made = {*made_from(self._world, nack)}
        return any(each.key in made or each.key[0] != "config" or not each.new for each in changes)

    def _is_interested(self, client: int) -> bool:
        found = self._clients.get(client)
        if found is not None and (found.deferred or not found.has_accepted):
            return True
        return self._inner.is_interested(client)

    def settled(self, client: int) -> None:
        """A client has answered all that there is to send to it."""
        found = self._clients.get(client)
        if found is not None and not self._is_behind:
            if not self.progress.takes_part(found.proxy.id):
                self._hand_over(client, found)
            if not found.has_accepted and not _is_refusing(found.stream):
                found.has_accepted = True
                self._news.set()
        if self._inner.is_interested(client):
            self._inner.settled(client)

    def _hand_over(self, number: int, client: _Client) -> None:
        """The client has no new values any more: what it still refuses has another reason."""
        client.may_have_new = False
        deferred, client.deferred = client.deferred, {}
        for type_url, nack in deferred.items():
            if client.stream.is_refused(type_url):
                self._inner.refused(number, nack)


def _is_refusing(stream: Stream) -> bool:
    return any(map(stream.is_refused, RESOURCE_TYPES))


def _is_mine(event: Event) -> bool:
    return event.source == SOURCE and isinstance(event, (Upsert, Delete, Replace))
