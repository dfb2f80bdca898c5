"""The controller of quarantine: takes what clients accept and refuse, and tells the reducer what to withhold from whom.

A state machine without I/O: calls from sessions in, events for the reducer out. ``run`` carries these to the reducer.
See the room's docstring for how it works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from datetime import UTC, datetime
from functools import update_wrapper
from typing import Concatenate, ParamSpec, TypeVar

import attrs
import structlog
import trio

from mesh_pilot.base.containment import Contained
from mesh_pilot.model.events import Event, Item, Quarantine, Synced, Withheld
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.safety.quarantine.bisection import Key
from mesh_pilot.safety.quarantine.cases import Cases
from mesh_pilot.safety.quarantine.clients import Client, Served, domains_of, party_of
from mesh_pilot.safety.quarantine.memory import Memory
from mesh_pilot.safety.quarantine.options import DEFAULT_OPTIONS, QuarantineOptions
from mesh_pilot.safety.quarantine.reports import Held, QuarantineStatistics, Reports, held_by
from mesh_pilot.safety.quarantine.verdicts import SOURCE, Verdicts
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Nack
from mesh_pilot.xds.ads.stream import Stream

log = structlog.get_logger(scope="quarantine")

MAX_WORDS = 2000
"""Characters of a client's reason."""

P = ParamSpec("P")
T = TypeVar("T")


def _contained(
    default: T,
) -> Callable[[Callable[Concatenate[QuarantineController, P], T]], Callable[Concatenate[QuarantineController, P], T]]:
    """Contain an internal error: it ends all cases, and costs neither the stream nor the reducer that called."""
    errors = Contained(log, "internal error in quarantine; its verdicts are kept")

    def decorate(
        method: Callable[Concatenate[QuarantineController, P], T],
    ) -> Callable[Concatenate[QuarantineController, P], T]:
        def contained(controller: QuarantineController, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:  # not a block of ``errors``: this is called for each push
                return method(controller, *args, **kwargs)
            except Exception as error:
                errors.caught(error)
            controller.abandon()
            return default

        return update_wrapper(contained, method)

    return decorate


class QuarantineController:
    """Implements ``AnswerObserver`` of ``xds``, and ``sources.base.contract.Placed`` and ``Seeded``.

    It remembers (``Memory``), decides (``Cases``), pronounces (``Verdicts``) and reports (``Reports``). Its own mutable
    state: the events that the reducer has not got yet, and whether verdicts of an earlier run wait for all sources.
    """

    name = SOURCE
    place = "refusals of proxies"

    def __init__(
        self,
        world: World,
        scope_of: Callable[[Proxy], Hashable],
        options: QuarantineOptions = DEFAULT_OPTIONS,
        *,
        clock: Callable[[], float] = trio.current_time,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``scope_of`` gives the scope that a proxy shares resources with. ``clock`` is monotonic."""
        self._world = world
        self._scope_of = scope_of
        self._clock = clock
        self._now = now
        self._memory = Memory()
        self._reports = Reports(clock)
        self._verdicts = Verdicts(options.max_groups)
        self._cases = Cases(
            world, options, self._memory, self._verdicts, self._reports, clock=clock, now=now, tell=self._tell
        )
        self._outbox: list[Event] = [Synced(SOURCE)]
        self._news = trio.Event()
        self._served = Served(0)
        """The state that a client was served last."""
        self._is_seeded = False
        """True from a start with verdicts of an earlier run until all sources are there."""

    def __repr__(self) -> str:
        counts = f"{len(self._memory)} clients, {len(self._cases)} cases, {len(self._verdicts)} withheld"
        return f"<QuarantineController {counts}>"

    def seed(self, items: Iterable[Item]) -> None:
        """The verdicts of an earlier run, before ``run``: they are kept until their objects change."""
        kept = (item for item in items if isinstance(item, Quarantine))
        self._outbox = [*self._verdicts.restore(kept), *self._outbox]
        self._is_seeded = True

    async def run(self, events: trio.MemorySendChannel[Event]) -> None:
        """Pass events to the reducer. If cancelled, what is withheld stays so."""
        while True:
            news = self._news = trio.Event()
            for event in self.take_events():
                await events.send(event)
            with trio.move_on_at(self.deadline):
                await news.wait()
            self.tick()

    # -- reading

    def take_events(self) -> list[Event]:
        """The events for the reducer since the last call."""
        events, self._outbox = self._outbox, []
        return events

    def withheld(self) -> tuple[Quarantine, ...]:
        """The verdicts in force, by domain, and the trials that go on."""
        found = [
            Quarantine(d, self._world.withheld_from([d]), within=self._verdicts.within(d))
            for d in self._verdicts.domains()
        ]
        trials = (case.client.trial_domain for case in self._cases)
        found += (Quarantine(d, self._world.withheld_from([d]), is_trial=True) for d in trials)
        return tuple(quarantine for quarantine in found if quarantine.withheld)

    def withheld_from(self, client: int) -> tuple[Withheld, ...]:
        """The items withheld from one client now; none for one that is not connected."""
        found = self._memory.clients.get(client)
        return self._cases.in_force(found) if found is not None else ()

    def verdicts(self) -> list[tuple[str, Withheld]]:
        """The objects that are withheld, each with the domain of clients that it is about."""
        return self._verdicts.by_domain()

    def held(self) -> tuple[Held, ...]:
        """Refusals that nothing is done about."""
        return held_by(self._memory)

    def statistics(self) -> QuarantineStatistics:
        return QuarantineStatistics(
            len(self._verdicts), len(self.held()), self._reports.convicted, self._reports.trials
        )

    @property
    def deadline(self) -> float:
        """When ``tick`` has something to do."""
        return min((case.deadline for case in self._cases), default=math.inf)

    # -- what sessions tell

    def joining(self, client: int, proxy: Proxy) -> Proxy:
        """A proxy that connects, with its domains."""
        return attrs.evolve(proxy, domains=domains_of(proxy, client))

    def joined(self, client: int, proxy: Proxy, stream: Stream, release: Callable[[], None]) -> None:
        place = (proxy.domains[-1], party_of(proxy), self._scope_of(proxy))
        found = Client(client, proxy, stream, release, place)
        self._memory.joined(found)
        self._verdicts.joined(found)

    @_contained(None)
    def left(self, client: int) -> None:
        """A client is gone, and with it its case. Another one that refuses may have the next."""
        found = self._memory.left(client)
        if found is None:
            return
        case = self._cases.of(found)
        if case is not None and case.client is found:
            self._cases.close(case)
        if not self._memory.has_stream(found.own_domain):
            self._tell(self._verdicts.left(found, self._now()))
        self._cases.conclude_witnessed(found.build_domain)

    @_contained(None)
    def sent(self, client: int, type_url: str) -> None:
        found = self._memory.clients.get(client)
        if found is not None:
            world, last = self._world, self._served
            revision, withheld, old = world.revision, self._cases.in_force(found), world.old_values(found.proxy.id)
            if last.revision != revision or last.withheld is not withheld or last.old is not old:
                last = self._served = Served(revision, withheld, old)
            found.sent[type_url] = last  # thousands of clients have the same

    @_contained(None)
    def accepted(self, client: int, type_url: str) -> None:
        """A client has accepted the last response of a type."""
        found = self._memory.clients.get(client)
        if found is None or found.stream.has_doubts(type_url) or type_url not in found.sent:
            return
        found.accept(type_url, self._clock())
        self._cases.conclude_witnessed(found.build_domain)

    @_contained(False)
    def refused(self, client: int, nack: Nack) -> bool:
        """A client has refused the last response of a type. True if it has a trial and should not pause."""
        found = self._memory.clients.get(client)
        if found is None or nack.type_url not in found.sent or not nack.resources:
            return False
        nack = attrs.evolve(nack, reason=nack.reason[:MAX_WORDS])
        found.forgive(nack.type_url)
        found.refused[nack.type_url] = nack
        case = self._cases.of(found)
        if case is not None and case.client is not found:
            return False
        if case is not None and case.is_decided:
            self._cases.conclude(case)
            case = None
        if case is None:
            return self._cases.consider(found)
        if found.sent[nack.type_url].withheld == case.pushed:
            self._cases.trial_refused(case, nack)
        return True

    @_contained(None)
    def warms(self, client: int, nack: Nack) -> None:
        """A client does not use what it has accepted of a type: this counts as a refusal of that client alone."""
        found = self._memory.clients.get(client)
        if found is None or nack.type_url not in found.sent or not nack.resources:
            return
        before = found.refused.get(nack.type_url)
        if self._cases.of(found) is not None or (before is not None and not before.is_warming):
            return
        if before is None or before.resources != nack.resources:
            found.forgive(nack.type_url)
        found.refused[nack.type_url] = attrs.evolve(nack, reason=nack.reason[:MAX_WORDS])
        self._cases.consider(found)

    def is_interested(self, client: int) -> bool:
        """False if ``settled`` has nothing to do for a client."""
        found = self._memory.clients.get(client)
        if found is None:
            return False
        case = self._cases.of(found)
        return bool(found.refused or found.withdrawn) or (case is not None and case.client is found)

    @_contained("")
    def trial_of(self, client: int) -> str:
        """The type of a client's case, as long as there is one or what is withheld in its trial is in force."""
        found = self._memory.clients.get(client)
        if found is None:
            return ""
        case = self._cases.of(found)
        has_case = case is not None and case.client is found
        return found.trial_of if has_case or self._world.withheld_from([found.trial_domain]) else ""

    @_contained(None)
    def settled(self, client: int) -> None:
        """There is nothing more to send to a client, and it has answered everything."""
        found = self._memory.clients.get(client)
        if found is None or not self.is_interested(client):
            return
        found.review()
        for type_url in found.refused:
            if not found.is_warming(type_url) and not found.stream.is_refused(type_url, found.given_up):
                found.held.setdefault(type_url, "nothing was found that explains an earlier refusal")
        self._cases.settled(found)

    # -- the World and time

    @_contained(None)
    def revised(self, changed: Iterable[Key]) -> None:
        """The World has a new revision. Verdicts on items that have changed are over, and cases about them."""
        changed = frozenset(changed)
        if self._is_seeded and not self._world.unsynced():
            self._is_seeded = False  # what another run withheld may have changed, or gone, before this one began
            changed |= {withheld.key for withheld in self._verdicts.all()}
        for case in self._cases:
            if not case.values.keys().isdisjoint(changed):
                self._cases.close(case)  # if the client still refuses something, it has the next one
        self._tell(self._verdicts.revised(self._world, changed))

    @_contained(None)
    def tick(self) -> None:
        """Stop waiting for what has not come in time."""
        self._cases.tick()

    def abandon(self) -> None:
        """End all cases and trials without a verdict."""
        for case in self._cases:
            self._cases.close(case)

    def _tell(self, events: Iterable[Event]) -> None:
        """Pass events to the reducer."""
        self._outbox += events
        self._news.set()
