"""The keeper of quarantine: takes what clients accept and refuse, and decides what is withheld from whom.

A state machine without I/O: calls from sessions in, events for the reducer out. ``run`` carries these to the reducer.
See the room's docstring for how it works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from datetime import UTC, datetime
from functools import update_wrapper
from itertools import islice
from typing import Concatenate, ParamSpec, TypeVar

import attrs
import structlog
import trio

from mesh_pilot.base.containment import Contained
from mesh_pilot.model.events import Delete, Event, Item, Quarantine, Refusal, Synced, Upsert, Withheld
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER, RESOURCE_TYPES
from mesh_pilot.net.rpc.rate_limits import LogLimiter, TokenBucket
from mesh_pilot.safety.quarantine.bisection import Bisection
from mesh_pilot.safety.quarantine.clients import Client, ClientStream, Served, domains_of, party_of
from mesh_pilot.safety.quarantine.options import DEFAULT_OPTIONS, QuarantineOptions
from mesh_pilot.safety.quarantine.reach import domain_for, keepers_of
from mesh_pilot.safety.quarantine.suspects import Key, hinted, in_order, made_from, rank, suspects
from mesh_pilot.safety.quarantine.verdicts import SOURCE, Verdicts
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Nack
from mesh_pilot.xds.ads.warming import WARMING_SECONDS

log = structlog.get_logger(scope="quarantine")

MAX_CASES = 8
"""Cases at a time, each of another domain,"""

MAX_CASES_OF_PARTY = 2
"""and of one party: clients that answer late hold up few others."""

MAX_REMEMBERED = 1000
"""Places and domains that are remembered, and refused resources of one client."""

MAX_WORDS = 2000
"""Characters of a client's reason."""

P = ParamSpec("P")
T = TypeVar("T")


def _contained(
    default: T,
) -> Callable[[Callable[Concatenate[Keeper, P], T]], Callable[Concatenate[Keeper, P], T]]:
    """Contain an internal error: it ends all cases, and costs neither the stream nor the reducer that called."""

    def decorate(method: Callable[Concatenate[Keeper, P], T]) -> Callable[Concatenate[Keeper, P], T]:
        def contained(keeper: Keeper, /, *args: P.args, **kwargs: P.kwargs) -> T:
            event = "internal error in quarantine; its verdicts stay in force"
            with Contained(log, event):
                return method(keeper, *args, **kwargs)
            keeper.abandon()
            return default

        return update_wrapper(contained, method)

    return decorate


@attrs.frozen
class Held:
    """A refusal that nothing is done about: the client keeps what it had until the refused resources change."""

    proxy: str
    type_url: str
    resources: tuple[str, ...]
    words: str
    """The client's reason."""
    why: str
    """Why nothing is done."""


@attrs.frozen
class QuarantineStatistics:
    objects: int
    """Objects withheld from some clients now."""
    held: int
    """Refusals that nothing is done about."""
    verdicts: int
    """Objects that were withheld since the start."""
    trials: int
    """Trials since the start."""
    synced: bool = True
    """Its picture is always full."""


@attrs.define(eq=False)
class _Case:
    """The search for what a client refuses. Mutable."""

    client: Client
    nack: Nack
    """The refusal that began it."""
    values: dict[Key, Withheld]
    """The suspects, each with its refused and its last accepted value."""
    search: Bisection
    pushed: tuple[Withheld, ...] = ()
    """The items withheld in the present trial."""
    deadline: float = math.inf
    """When to stop waiting, for the client's answer or for witnesses."""
    is_wide: bool = False
    """True if objects are suspected from which the refused resource is not known to be made."""
    is_decided: bool = False
    """The verdict waits for witnesses."""
    is_warming: bool = False
    """The client has accepted what it was sent in the trial, and has until ``deadline`` to use it."""

    @property
    def domain(self) -> str:
        """The domain whose case it is. What a client accepts and does not use is a matter of that client alone."""
        return self.client.own_domain if self.nack.is_warming else self.client.domain


class Keeper:
    """Implements ``xds.answers.AnswerObserver``, and ``sources.base.Placed`` and ``Seeded``.

    Mutable state: the clients, one case at a time for each scope, the verdicts, what is remembered of clients that have
    left, and the events that the reducer has not got yet.
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
        self._options = options
        self._clock = clock
        self._now = now
        self._clients: dict[int, Client] = {}
        self._cases: dict[str, _Case] = {}
        """Cases by the domain of their verdict."""
        self._verdicts = Verdicts(options.max_groups)
        self._left: dict[tuple[Hashable, str], Served] = {}
        """The accepted resources of clients that have left, by place and type."""
        self._buckets: dict[str, TokenBucket] = {}
        """The remaining trials, by the domain of the verdict."""
        self._lines = LogLimiter()
        self._outbox: list[Event] = [Synced(SOURCE)]
        self._news = trio.Event()
        self._is_seeded = False
        """True from a start with verdicts of an earlier run until all sources are there."""
        self._convicted = 0
        self._trials = 0

    def __repr__(self) -> str:
        return f"<Keeper {len(self._clients)} clients, {len(self._cases)} cases, {len(self._verdicts)} withheld>"

    def seed(self, items: Iterable[Item]) -> None:
        """The verdicts of an earlier run, before ``run``: they stay in force until their objects change."""
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
        trials = (case.client.trial_domain for case in self._cases.values())
        found += (Quarantine(d, self._world.withheld_from([d]), is_trial=True) for d in trials)
        return tuple(quarantine for quarantine in found if quarantine.withheld)

    def withheld_from(self, client: int) -> tuple[Withheld, ...]:
        """The items withheld from one client now; none for one that is not connected."""
        found = self._clients.get(client)
        return self._in_force(found) if found is not None else ()

    def verdicts(self) -> list[tuple[str, Withheld]]:
        """The objects that are withheld, each with the domain of clients that it is about."""
        return self._verdicts.by_domain()

    def held(self) -> tuple[Held, ...]:
        """Refusals that nothing is done about."""
        return tuple(
            Held(client.proxy.name, type_url, nack.names, nack.reason, client.held[type_url])
            for client in self._clients.values()
            for type_url, nack in client.refused.items()
            if type_url in client.held
        )

    def statistics(self) -> QuarantineStatistics:
        return QuarantineStatistics(len(self._verdicts), len(self.held()), self._convicted, self._trials)

    @property
    def deadline(self) -> float:
        """When ``tick`` has something to do."""
        return min((case.deadline for case in self._cases.values()), default=math.inf)

    # -- what sessions tell

    def joining(self, client: int, proxy: Proxy) -> Proxy:
        """A proxy that connects, with its domains."""
        return attrs.evolve(proxy, domains=domains_of(proxy, client))

    def joined(self, client: int, proxy: Proxy, stream: ClientStream, release: Callable[[], None]) -> None:
        place = (proxy.domains[-1], party_of(proxy), self._scope_of(proxy))
        self._clients[client] = found = Client(client, proxy, stream, release, place)
        self._verdicts.joined(found)

    @_contained(None)
    def left(self, client: int) -> None:
        """A client is gone, and with it its case. Another one that refuses may have the next."""
        found = self._clients.pop(client, None)
        if found is None:
            return
        for type_url, served in found.accepted.items():
            self._left[found.place, type_url] = served
        while len(self._left) > MAX_REMEMBERED:
            del self._left[next(iter(self._left))]
        case = self._case_of(found)
        if case is not None and case.client is found:
            self._close(case)
        if all(other.own_domain != found.own_domain for other in self._clients.values()):
            self._tell(self._verdicts.left(found, self._now()))
        self._conclude_witnessed(found.build_domain)

    @_contained(None)
    def sent(self, client: int, type_url: str) -> None:
        found = self._clients.get(client)
        if found is not None:
            found.sent[type_url] = Served(
                self._world.revision, self._in_force(found), self._world.old_values(found.proxy.id)
            )

    @_contained(None)
    def accepted(self, client: int, type_url: str) -> None:
        """A client has accepted the last response of a type."""
        found = self._clients.get(client)
        if found is None or found.stream.has_doubts(type_url) or type_url not in found.sent:
            return
        found.accept(type_url, self._clock())
        self._conclude_witnessed(found.build_domain)

    @_contained(False)
    def refused(self, client: int, nack: Nack) -> bool:
        """A client has refused the last response of a type. True if it has a trial and should not pause."""
        found = self._clients.get(client)
        if found is None or nack.type_url not in found.sent or not nack.resources:
            return False
        nack = attrs.evolve(nack, reason=nack.reason[:MAX_WORDS])
        found.forgive(nack.type_url)
        found.refused[nack.type_url] = nack
        case = self._case_of(found)
        if case is not None and case.client is not found:
            return False
        if case is not None and case.is_decided:
            self._conclude(case)
            case = None
        if case is None:
            return self._consider(found)
        if found.sent[nack.type_url].withheld == case.pushed:
            self._trial_refused(case, nack)
        return True

    @_contained(None)
    def warms(self, client: int, nack: Nack) -> None:
        """A client does not use what it has accepted of a type: this counts as a refusal of that client alone."""
        found = self._clients.get(client)
        if found is None or nack.type_url not in found.sent or not nack.resources:
            return
        before = found.refused.get(nack.type_url)
        if self._case_of(found) is not None or (before is not None and not before.is_warming):
            return
        if before is None or before.resources != nack.resources:
            found.forgive(nack.type_url)
        found.refused[nack.type_url] = attrs.evolve(nack, reason=nack.reason[:MAX_WORDS])
        self._consider(found)

    def is_interested(self, client: int) -> bool:
        """False if ``settled`` has nothing to do for a client."""
        found = self._clients.get(client)
        if found is None:
            return False
        case = self._case_of(found)
        return bool(found.refused or found.withdrawn) or (case is not None and case.client is found)

    @_contained("")
    def trial_of(self, client: int) -> str:
        """The type of a client's case, as long as there is one or what is withheld in its trial is in force."""
        found = self._clients.get(client)
        if found is None:
            return ""
        case = self._case_of(found)
        has_case = case is not None and case.client is found
        return found.trial_of if has_case or self._world.withheld_from([found.trial_domain]) else ""

    @_contained(None)
    def settled(self, client: int) -> None:
        """There is nothing more to send to a client, and it has answered everything."""
        found = self._clients.get(client)
        if found is None or not self.is_interested(client):
            return
        found.review()
        for type_url in found.refused:
            if not found.is_warming(type_url) and not found.stream.is_refused(type_url, found.given_up):
                found.held.setdefault(type_url, "nothing was found that explains an earlier refusal")
        case = self._case_of(found)
        if case is None:
            self._consider(found)
        elif case.client is found and not case.is_decided and self._in_force(found) == case.pushed:
            refused = [n for type_url, n in found.refused.items() if type_url not in found.held and not n.is_warming]
            if refused:
                self._trial_refused(case, *refused)
            elif case.nack.is_warming:
                if not case.is_warming:
                    case.is_warming, case.deadline = True, self._clock() + WARMING_SECONDS
                    self._news.set()
            else:
                case.search.accepted()
                self._go_on(case)

    # -- the World and time

    @_contained(None)
    def revised(self, changed: Iterable[Key]) -> None:
        """The World has a new revision. Verdicts on items that have changed are over, and cases about them."""
        changed = frozenset(changed)
        if self._is_seeded and not self._world.unsynced():
            self._is_seeded = False  # what another run withheld may have changed, or gone, before this one began
            changed |= {withheld.key for withheld in self._verdicts.all()}
        for case in [*self._cases.values()]:
            if not case.values.keys().isdisjoint(changed):
                self._close(case)  # if the client still refuses something, it has the next one
        self._tell(self._verdicts.revised(self._world, changed))

    @_contained(None)
    def tick(self) -> None:
        """Stop waiting for what has not come in time."""
        now = self._clock()
        for case in [case for case in self._cases.values() if case.deadline <= now]:
            if case.is_decided:
                self._conclude(case)
            elif case.is_warming and case.client.stream.warms(case.nack.type_url):
                self._trial_refused(case, case.nack)
            elif case.is_warming:
                case.search.accepted()
                self._go_on(case)
            else:
                self._hold(case, "the client does not answer trials in time")

    def abandon(self) -> None:
        """End all cases and trials without a verdict."""
        for case in [*self._cases.values()]:
            self._close(case)

    # -- cases

    def _case_of(self, client: Client) -> _Case | None:
        """The case about a client's refusals: its own, or that of another one of its domain."""
        return self._cases.get(client.own_domain) or self._cases.get(client.domain)

    def _consider(self, client: Client) -> bool:
        """Open a case for a client that refuses something. True if there is one."""
        if self._in_force(client) != self._verdicts.on(client):
            return False  # what it refuses may change by what is on its way to the World
        return any(
            self._open(client, nack)
            for type_url, nack in client.refused.items()
            if type_url not in client.held and self._may_have_case(client, nack)
        )

    def _may_have_case(self, client: Client, nack: Nack) -> bool:
        """Trials of what warms take long: they hold up no others."""
        parties = [c.client.party for c in self._cases.values() if c.nack.is_warming == nack.is_warming]
        return len(parties) < MAX_CASES and parties.count(client.party) < MAX_CASES_OF_PARTY

    def _open(self, client: Client, nack: Nack) -> bool:
        given_up = [client.given_up.get(resource) for resource in nack.resources]
        if given_up and given_up[0] and all(given_up):
            client.held[nack.type_url] = given_up[0]
            return False
        if not self._verdicts.has_room(client):
            most = self._options.max_groups
            why = f"something is withheld from {most} groups of proxies already, or from too many for {client.party}"
            self._note_held(client, nack, why)
            return False
        values = self._suspects(client, nack)
        known = {*made_from(self._world, nack)}
        narrow = [key for key in values if key in known]
        if self._accepted_by(client, nack) is None:
            # Nothing is known. First those without which the refused resource still exists.
            narrow = [key for key in narrow if rank(key)] or narrow
        order = in_order(narrow or values, self._world.current)
        if not order:
            self._note_held(client, nack, "nothing has changed since the client accepted it last")
            return False
        likely = hinted({key: values[key] for key in order}, self._verdicts.all(), nack.reason)
        if likely and self._accepted_by(client, nack) is None:
            # A client that has a state from before must not lose the rest for the length of a trial.
            order = [key for key in order if key in likely]
        case = _Case(client, nack, values, Bisection(order, likely), is_wide=not narrow)
        self._cases[case.domain] = case
        client.trial_of = _waited_for((nack,))
        self._log(
            log.info,
            "looking for the refused object",
            client,
            proxy=client.proxy.name,
            type=RESOURCE_TYPES[nack.type_url].short,
            suspects=len(order),
        )
        return self._push(case)

    def _suspects(self, client: Client, nack: Nack) -> dict[Key, Withheld]:
        """The suspects of a refusal, except what is withheld from the client already."""
        type_url = nack.type_url
        refusal = Refusal(client.proxy.name, client.build_domain, type_url, nack.names, nack.reason, self._now())
        accepted, refused, in_force = self._accepted_by(client, nack), client.sent[type_url], self._in_force(client)
        if refused.withheld != in_force:  # refused in a trial that is over, and still the same without it
            refused = Served(self._world.revision, in_force)
        found = suspects(self._world, accepted, refused, nack, refusal)
        known = {w.key: w.refused for w in self._verdicts.on(client)}
        return {key: withheld for key, withheld in found.items() if known.get(key) != withheld.refused}

    def _accepted_by(self, client: Client, nack: Nack) -> Served | None:
        """The state that a client has accepted; if none yet, that of others in its place. None if that is not known.

        Only others of its party count: the rest may not say what there was to accept.
        """
        type_url = nack.type_url
        of_place = [client, *(c for c in self._clients.values() if c.place == client.place)]
        if nack.is_warming:
            now = self._clock()
            in_use = (each.in_use(type_url, now) for each in of_place)
            return next((served for served in in_use if served is not None), None)
        if (own := client.accepted.get(type_url)) is not None:
            return own
        others = (c.accepted.get(type_url) for c in of_place)
        left = self._left.get((client.place, type_url))
        return max((s for s in (*others, left) if s is not None), key=lambda s: s.revision, default=None)

    def _push(self, case: _Case) -> bool:
        """Begin the next trial. False if there may be none."""
        client, now, rate = case.client, self._clock(), self._options.trials_per_minute
        bucket = self._buckets.setdefault(case.domain, TokenBucket(rate / 60, rate))
        while len(self._buckets) > MAX_REMEMBERED:
            del self._buckets[next(iter(self._buckets))]
        if not bucket.take(1, now):
            self._hold(case, f"more than {rate:g} trials a minute")
            return False
        self._trials += 1
        withheld = {w.key: w for w in self._verdicts.on(client)}
        withheld |= {key: case.values[key] for key in case.search.withheld}
        case.pushed = tuple(withheld.values())
        case.is_warming, case.deadline = False, now + self._options.answer_seconds
        self._tell([Upsert(SOURCE, Quarantine(client.trial_domain, case.pushed, is_trial=True))])
        return True

    def _trial_refused(self, case: _Case, *nacks: Nack) -> None:
        """Some types are refused in a trial, or still are: one may wait for another that has new suspects."""
        search, known = case.search, {key for nack in nacks for key in made_from(self._world, nack)}
        case.client.trial_of = _waited_for(nacks)
        fresh: dict[Key, Withheld] = {}
        for nack in nacks:
            fresh |= self._suspects(case.client, nack)
        others = [key for key in fresh if key not in search.suspects]
        new = others if case.is_wide else [key for key in others if key in known]
        if not (new or search.is_releasing):
            case.is_wide, new = True, others
        case.values |= {key: fresh[key] for key in new}
        search.refused(in_order(new, self._world.current))
        self._go_on(case)

    def _go_on(self, case: _Case) -> None:
        if case.search.is_hopeless:
            self._hold(case, "it is refused without any of the objects that changed, too")
        elif case.search.verdict is None:
            self._push(case)
        elif domain_for(case.client, case.nack, self._clients.values()) == case.client.own_domain:
            self._conclude(case)
        else:
            case.is_decided = True
            case.deadline = self._clock() + self._options.witness_seconds
            self._conclude_witnessed(case.client.build_domain)

    def _conclude_witnessed(self, build: str) -> None:
        """Pronounce the verdicts for which all other clients of the build have answered, in all types."""
        for case in [c for c in self._cases.values() if c.is_decided and c.client.build_domain == build]:
            others = (c for c in self._clients.values() if c.build_domain == build and c is not case.client)
            if not any(c.stream.has_doubts(t) for c in others for t in c.sent if t not in c.refused):
                self._conclude(case)

    def _conclude(self, case: _Case) -> None:
        """Withhold the guilty."""
        client, verdict, most = case.client, case.search.verdict or (), self._options.max_objects
        if len({w.key for w in self._verdicts.on(client)}.union(verdict)) > most:
            self._hold(case, f"more than {most} objects would be withheld")
            return
        self._convicted += len(verdict)
        found = [case.values[key] for key in verdict]
        keepers = {w.key: keepers_of(self._world, w, client, case.nack, self._clients.values()) for w in found}
        self._tell(
            self._verdicts.add(client, found, domain_for(case.client, case.nack, self._clients.values()), keepers)
        )
        if case.nack.is_warming:
            client.forgive(case.nack.type_url)
        self._close(case)
        for other in [*self._cases.values()]:
            now_withheld = {w.key for w in self._verdicts.on(other.client)}.intersection(verdict)
            if not now_withheld.isdisjoint(other.values):
                self._close(other)  # it is half done by this verdict: the next one begins with what is left

    def _hold(self, case: _Case, why: str) -> None:
        """Give up."""
        for nack in case.client.refused.values() or (case.nack,):
            self._note_held(case.client, nack, why)
        # It is sent those again: in trials it may have refused other versions.
        case.client.given_up |= dict.fromkeys(case.nack.resources, why)
        self._close(case)

    def _note_held(self, client: Client, nack: Nack, why: str) -> None:
        client.held[nack.type_url] = why
        if len(client.given_up) > MAX_REMEMBERED:
            client.given_up.clear()
        client.given_up.update(dict.fromkeys(nack.resources, why))
        self._log(
            log.error,
            "refused resources are on hold until they change",
            client,
            proxy=client.proxy.name,
            type=RESOURCE_TYPES[nack.type_url].short,
            resources=list(nack.names[:10]),
            why=why,
            reason=nack.reason,
        )

    def _log(self, write: Callable[..., None], event: str, client: Client, **fields: object) -> None:
        """Write a line, unless there are too many: a client may refuse for ever."""
        suppressed = self._lines.admit((event, client.proxy.name, fields["type"]), self._clock())
        if suppressed is not None:
            write(event, **fields, **({"suppressed": suppressed} if suppressed else {}))

    def _close(self, case: _Case) -> None:
        """End a case and its trial. Another client that refuses something may have the next one."""
        del self._cases[case.domain]
        if case.pushed:
            self._tell([Delete(SOURCE, ("quarantine", case.client.trial_domain))])
        waiting = (
            client
            for client in self._clients.values()
            if any(self._may_have_case(client, n) for t, n in client.refused.items() if t not in client.held)
        )
        for client in islice(waiting, MAX_CASES):
            client.release()

    def _in_force(self, client: Client) -> tuple[Withheld, ...]:
        """The items withheld from a client in the World as it is now."""
        return self._world.withheld_from(client.proxy.domains)

    def _tell(self, events: Iterable[Event]) -> None:
        """Pass events to the reducer."""
        self._outbox += events
        self._news.set()


def _waited_for(nacks: Iterable[Nack]) -> str:
    """The type that others wait for in a trial: the first in the order of pushes, or those behind it are never sent.

    For clusters that are accepted, and only not in use, nothing has to wait.
    """
    types = (LISTENER if nack.is_warming and nack.type_url == CLUSTER else nack.type_url for nack in nacks)
    return min(types, key=[*RESOURCE_TYPES].index)
