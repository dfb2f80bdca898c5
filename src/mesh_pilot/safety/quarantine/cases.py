"""The decisions of quarantine: what a client's refusal leads to, from the first trial to the verdict. No I/O, no tasks.

A case is the search for what one client refuses, in rounds: withhold suspects (``_push``), wait for the client's
answer, narrow the suspects down (``Bisection``), and so on. It ends with a verdict (``conclude``), or with the refusal
on hold (``_hold``), or because what it was about has changed (``close``).

It is not an async function that awaits each answer, which would read straighter: an answer, a new revision, another
client's verdict, a disconnect and a deadline may each end the wait or the case, at any step, and all cases of a domain
share one set of verdicts. As calls that each leave the whole in order, every order of them can be tested without a
clock. Nor does it look for the guilty per resource: an object in many resources would be searched for as often, and two
searches that withhold the same object spoil each other's trials. Hence one case at a time for each domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice

import attrs

from mesh_pilot.model.events import Delete, Event, Quarantine, Refusal, Upsert, Withheld
from mesh_pilot.model.resource import CLUSTER, LISTENER, RESOURCE_TYPES
from mesh_pilot.safety.quarantine.bisection import Bisection, Key
from mesh_pilot.safety.quarantine.clients import Client, Served
from mesh_pilot.safety.quarantine.memory import MAX_REMEMBERED, Memory
from mesh_pilot.safety.quarantine.options import QuarantineOptions
from mesh_pilot.safety.quarantine.reach import domain_for, keepers_of
from mesh_pilot.safety.quarantine.reports import Reports
from mesh_pilot.safety.quarantine.suspects import hinted, in_order, made_from, rank, suspects
from mesh_pilot.safety.quarantine.verdicts import SOURCE, Verdicts
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Nack
from mesh_pilot.xds.ads.warming import WARMING_SECONDS

MAX_CASES = 8
"""Cases at a time, each of another domain,"""

MAX_CASES_OF_PARTY = 2
"""and of one party: clients that answer late hold up few others."""


@attrs.define(eq=False)
class Case:
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


class Cases:
    """Mutable state: the cases that are open, by the domain of their verdict. Events for the reducer go to ``tell``."""

    def __init__(
        self,
        world: World,
        options: QuarantineOptions,
        memory: Memory,
        verdicts: Verdicts,
        reports: Reports,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        tell: Callable[[Iterable[Event]], None],
    ) -> None:
        self._world = world
        self._options = options
        self._memory = memory
        self._verdicts = verdicts
        self._reports = reports
        self._clock = clock
        self._now = now
        self._tell = tell
        self._open: dict[str, Case] = {}

    def __repr__(self) -> str:
        return f"<Cases {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Case]:
        """A copy: cases are closed while it is read."""
        return iter([*self._open.values()])

    def of(self, client: Client) -> Case | None:
        """The case about a client's refusals: its own, or that of another one of its domain."""
        return (self._open.get(client.own_domain) or self._open.get(client.domain)) if self._open else None

    def in_force(self, client: Client) -> tuple[Withheld, ...]:
        """The items withheld from a client in the World as it is now."""
        return self._world.withheld_from(client.proxy.domains)

    # -- what happens

    def consider(self, client: Client) -> bool:
        """Open a case for a client that refuses something. True if there is one."""
        if self.in_force(client) != self._verdicts.on(client):
            return False  # what it refuses may change by what is on its way to the World
        return any(
            self._begin(client, nack)
            for type_url, nack in client.refused.items()
            if type_url not in client.held and self._may_have_case(client, nack)
        )

    def settled(self, client: Client) -> None:
        """There is nothing more to send to a client, and it has answered everything."""
        case = self.of(client)
        if case is None:
            self.consider(client)
        elif case.client is client and not case.is_decided and self.in_force(client) == case.pushed:
            refused = [n for type_url, n in client.refused.items() if type_url not in client.held and not n.is_warming]
            if refused:
                self.trial_refused(case, *refused)
            elif case.nack.is_warming:
                if not case.is_warming:
                    case.is_warming, case.deadline = True, self._clock() + WARMING_SECONDS
                    self._tell(())
            else:
                case.search.accepted()
                self._go_on(case)

    def tick(self) -> None:
        """Stop waiting for what has not come in time."""
        now = self._clock()
        for case in [case for case in self if case.deadline <= now]:
            if case.is_decided:
                self.conclude(case)
            elif case.is_warming and case.client.stream.warms(case.nack.type_url):
                self.trial_refused(case, case.nack)
            elif case.is_warming:
                case.search.accepted()
                self._go_on(case)
            else:
                self._hold(case, "the client does not answer trials in time")

    # -- one case

    def _may_have_case(self, client: Client, nack: Nack) -> bool:
        """Trials of what warms take long: they hold up no others."""
        parties = [c.client.party for c in self._open.values() if c.nack.is_warming == nack.is_warming]
        return len(parties) < MAX_CASES and parties.count(client.party) < MAX_CASES_OF_PARTY

    def _begin(self, client: Client, nack: Nack) -> bool:
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
        is_new = self._memory.accepted_by(client, nack, self._clock()) is None
        if is_new:
            # Nothing is known. First those without which the refused resource still exists.
            narrow = [key for key in narrow if rank(key)] or narrow
        order = in_order(narrow or values, self._world.current)
        if not order:
            self._note_held(client, nack, "nothing has changed since the client accepted it last")
            return False
        likely = hinted({key: values[key] for key in order}, self._verdicts.all(), nack.reason)
        if likely and is_new:
            # A client that has a state from before must not lose the rest for the length of a trial.
            order = [key for key in order if key in likely]
        case = Case(client, nack, values, Bisection(order, likely), is_wide=not narrow)
        self._open[case.domain] = case
        client.trial_of = _waited_for((nack,))
        self._reports.looking(client, nack, len(order))
        return self._push(case)

    def _suspects(self, client: Client, nack: Nack) -> dict[Key, Withheld]:
        """The suspects of a refusal, except what is withheld from the client already."""
        type_url = nack.type_url
        refusal = Refusal(client.proxy.name, client.build_domain, type_url, nack.names, nack.reason, self._now())
        accepted = self._memory.accepted_by(client, nack, self._clock())
        refused, in_force = client.sent[type_url], self.in_force(client)
        if refused.withheld != in_force:  # refused in a trial that is over, and still the same without it
            refused = Served(self._world.revision, in_force)
        found = suspects(self._world, accepted, refused, nack, refusal)
        known = {w.key: w.refused for w in self._verdicts.on(client)}
        return {key: withheld for key, withheld in found.items() if known.get(key) != withheld.refused}

    def _push(self, case: Case) -> bool:
        """Begin the next trial. False if there may be none."""
        client, now, rate = case.client, self._clock(), self._options.trials_per_minute
        if not self._memory.may_try(case.domain, rate, now):
            self._hold(case, f"more than {rate:g} trials a minute")
            return False
        self._reports.trials += 1
        withheld = {w.key: w for w in self._verdicts.on(client)}
        withheld |= {key: case.values[key] for key in case.search.withheld}
        case.pushed = tuple(withheld.values())
        case.is_warming, case.deadline = False, now + self._options.answer_seconds
        self._tell([Upsert(SOURCE, Quarantine(client.trial_domain, case.pushed, is_trial=True))])
        return True

    def trial_refused(self, case: Case, *nacks: Nack) -> None:
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

    def _go_on(self, case: Case) -> None:
        if case.search.is_hopeless:
            self._hold(case, "it is refused without any of the objects that changed, too")
        elif case.search.verdict is None:
            self._push(case)
        elif domain_for(case.client, case.nack, self._memory) == case.client.own_domain:
            self.conclude(case)
        else:
            case.is_decided = True
            case.deadline = self._clock() + self._options.witness_seconds
            self.conclude_witnessed(case.client.build_domain)

    def conclude_witnessed(self, build: str) -> None:
        """Pronounce the verdicts for which all other clients of the build have answered, in all types."""
        if not self._open:
            return
        for case in [c for c in self._open.values() if c.is_decided and c.client.build_domain == build]:
            others = (c for c in self._memory if c.build_domain == build and c is not case.client)
            if not any(c.stream.has_doubts(t) for c in others for t in c.sent if t not in c.refused):
                self.conclude(case)

    def conclude(self, case: Case) -> None:
        """Withhold the guilty."""
        client, verdict, most = case.client, case.search.verdict or (), self._options.max_objects
        if len({w.key for w in self._verdicts.on(client)}.union(verdict)) > most:
            self._hold(case, f"more than {most} objects would be withheld")
            return
        self._reports.convicted += len(verdict)
        found = [case.values[key] for key in verdict]
        keepers = {w.key: keepers_of(self._world, w, client, case.nack, self._memory) for w in found}
        self._tell(self._verdicts.add(client, found, domain_for(case.client, case.nack, self._memory), keepers))
        if case.nack.is_warming:
            client.forgive(case.nack.type_url)
        self.close(case)
        for other in [*self._open.values()]:
            now_withheld = {w.key for w in self._verdicts.on(other.client)}.intersection(verdict)
            if not now_withheld.isdisjoint(other.values):
                self.close(other)  # it is half done by this verdict: the next one begins with what is left

    def _hold(self, case: Case, why: str) -> None:
        """Give up."""
        for nack in case.client.refused.values() or (case.nack,):
            self._note_held(case.client, nack, why)
        # It is sent those again: in trials it may have refused other versions.
        case.client.given_up |= dict.fromkeys(case.nack.resources, why)
        self.close(case)

    def _note_held(self, client: Client, nack: Nack, why: str) -> None:
        client.held[nack.type_url] = why
        if len(client.given_up) > MAX_REMEMBERED:
            client.given_up.clear()
        client.given_up.update(dict.fromkeys(nack.resources, why))
        self._reports.on_hold(client, nack, why)

    def close(self, case: Case) -> None:
        """End a case and its trial. Another client that refuses something may have the next one."""
        del self._open[case.domain]
        if case.pushed:
            self._tell([Delete(SOURCE, ("quarantine", case.client.trial_domain))])
        waiting = (
            client
            for client in self._memory
            if any(self._may_have_case(client, n) for t, n in client.refused.items() if t not in client.held)
        )
        for client in islice(waiting, MAX_CASES):
            client.release()


def _waited_for(nacks: Iterable[Nack]) -> str:
    """The type that others wait for in a trial: the first in the order of pushes, or those behind it are never sent.

    For clusters that are accepted, and only not in use, nothing has to wait.
    """
    types = (LISTENER if nack.is_warming and nack.type_url == CLUSTER else nack.type_url for nack in nacks)
    return min(types, key=[*RESOURCE_TYPES].index)
