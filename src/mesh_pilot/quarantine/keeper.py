"""The keeper of quarantines: takes what clients accept and refuse, and decides what is withheld from whom.

A state machine without I/O: calls from sessions in, events for the reducer out. ``run`` carries these to the reducer. See
the room's docstring for how it works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import UTC, datetime

import attrs
import structlog
import trio

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, Event, Item, Quarantine, Refusal, Synced, Upsert, Withheld
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES, Resource
from mesh_pilot.quarantine.bisection import Bisection, Key
from mesh_pilot.quarantine.clients import Client, ClientStream, Served, domains_of
from mesh_pilot.quarantine.hints import is_named
from mesh_pilot.rpc.rate_limits import TokenBucket
from mesh_pilot.world import World
from mesh_pilot.world.overlays import served_value
from mesh_pilot.xds.messages import Nack

log = structlog.get_logger(scope="quarantine")

SOURCE = "quarantine"
"""The name of the keeper as a source of events."""

MAX_CASES = 4
"""Cases at a time of one build, each in another scope: a client that answers late holds up no other scope."""

MAX_REMEMBERED = 1000
"""Scopes, with the types that clients which have left had accepted; and resources of one client that others accept."""


@attrs.frozen(kw_only=True)
class QuarantineOptions:
    """Limits of quarantine: a broken client must not keep the mesh's configuration from others."""

    max_objects: int = 50
    """Objects that may be withheld from the clients of a domain."""
    trials_per_minute: float = 60.0
    """Trials of the clients in one scope."""
    answer_seconds: float = 10.0
    """How long a client may take to answer a trial."""
    witness_seconds: float = 0.5
    """How long a verdict waits for other clients of the build that have not answered yet."""


DEFAULT_OPTIONS = QuarantineOptions()


@attrs.frozen
class Held:
    """A refusal that nothing is done about: the client keeps what it had until the refused resources change."""

    proxy: str
    type_url: str
    resources: tuple[str, ...]
    words: str
    why: str


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


@attrs.define(eq=False)
class _Case:
    """The search for what a client refuses. Mutable."""

    client: Client
    nack: Nack
    search: Bisection
    values: dict[Key, Withheld]
    """The suspects: their refused and last accepted values."""
    pushed: tuple[Withheld, ...] = ()
    """What is withheld in the present trial."""
    deadline: float = math.inf
    """When to stop waiting: for the client's answer, or for witnesses."""
    is_wide: bool = False
    """True if objects are suspected although the refused resource is not known to be made from them."""
    is_decided: bool = False
    """The verdict waits for witnesses."""


class Keeper:
    """Mutable state: the clients, one case at a time for each scope, what is withheld by domain, and the events that the
    reducer has not got yet."""

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
        """By domain of a scope."""
        self._facts: dict[str, dict[Key, Withheld]] = {}
        """By domain, of builds and of scopes, the verdicts."""
        self._build_of: dict[str, str] = {}
        """The build of each domain of a scope."""
        self._left: dict[tuple[str, str], Served] = {}
        """By domain of a scope and type, what a client had accepted that has left."""
        self._given_up: dict[int, dict[Resource, str]] = {}
        """By client, the refused resources about which nothing is done, and why."""
        self._buckets: dict[str, TokenBucket] = {}
        """By domain of a scope, the trials that are left."""
        self._outbox: list[Event] = [Synced(SOURCE)]
        self._news = trio.Event()
        self._verdicts = 0
        self._trials = 0

    def __repr__(self) -> str:
        return f"<Keeper {len(self._clients)} clients, {len(self._cases)} cases, {sum(map(len, self._facts.values()))} verdicts>"

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
        """What is withheld, by domain, trials included."""
        domains = [*self._facts, *(case.client.trial_domain for case in self._cases.values())]
        found = ((domain, self._world.withheld.peek(domain)) for domain in domains)
        return tuple(Quarantine(d, w, is_trial=d not in self._facts) for d, w in found if w)

    def held(self) -> tuple[Held, ...]:
        """Refusals that nothing is done about."""
        return tuple(
            Held(client.proxy.name, type_url, nack.names, nack.reason, client.held[type_url])
            for client in self._clients.values()
            for type_url, nack in client.refused.items()
            if type_url in client.held
        )

    def statistics(self) -> QuarantineStatistics:
        objects = {key for facts in self._facts.values() for key in facts}
        return QuarantineStatistics(len(objects), len(self.held()), self._verdicts, self._trials)

    @property
    def deadline(self) -> float:
        """When ``tick`` has something to do."""
        return min((case.deadline for case in self._cases.values()), default=math.inf)

    # -- what sessions tell

    def joining(self, client: int, proxy: Proxy) -> Proxy:
        """A proxy that connects, with its domains."""
        return attrs.evolve(proxy, domains=domains_of(proxy, client, self._scope_of(proxy)))

    def joined(self, client: int, proxy: Proxy, stream: ClientStream, release: Callable[[], None]) -> None:
        if proxy.domains:
            self._clients[client] = Client(client, proxy, stream, release)

    def left(self, client: int) -> None:
        """A client is gone. Its case, if any, goes on with another one that refuses."""
        found = self._clients.pop(client, None)
        self._given_up.pop(client, None)
        if found is None:
            return
        for type_url, served in found.accepted.items():
            self._left[found.scope_domain, type_url] = served
        while len(self._left) > MAX_REMEMBERED:
            del self._left[next(iter(self._left))]
        case = self._cases.get(found.scope_domain)
        if case is not None and case.client is found:
            self._close(case)

    def sent(self, client: int, type_url: str) -> None:
        found = self._clients.get(client)
        if found is not None:
            found.sent[type_url] = Served(self._world.revision, self._withheld_from(found))

    def accepted(self, client: int, type_url: str) -> None:
        """A client has accepted the last response of a type."""
        found = self._clients.get(client)
        if found is None or found.stream.has_doubts(type_url) or type_url not in found.sent:
            return
        found.accepted[type_url] = found.sent[type_url]
        found.refused.pop(type_url, None)
        found.held.pop(type_url, None)
        self._witnessed(found.build_domain)

    def refused(self, client: int, nack: Nack) -> bool:
        """A client has refused the last response of a type. True if it has a trial and should not pause."""
        found = self._clients.get(client)
        if found is None or nack.type_url not in found.sent:
            return False
        found.refused[nack.type_url] = nack
        found.held.pop(nack.type_url, None)
        case = self._cases.get(found.scope_domain)
        if case is None:
            return self._consider(found)
        if case.client is not found:
            return False
        if case.is_decided:
            self._conclude(case)
            return self._consider(found)
        if found.sent[nack.type_url].withheld == case.pushed:
            self._trial_refused(case, nack)
        return True

    def settled(self, client: int) -> None:
        """There is nothing more to send to a client, and it has answered everything."""
        found = self._clients.get(client)
        if found is None or not self.is_interested(client):
            return
        for type_url in [t for t in found.refused if not found.stream.is_refused(t)]:
            del found.refused[type_url]  # what it refused is no longer there
            found.held.pop(type_url, None)
        case = self._cases.get(found.scope_domain)
        if case is None:
            self._consider(found)
        elif (
            case.client is found
            and not case.is_decided
            and self._world.withheld.peek(found.trial_domain) == case.pushed
        ):
            if found.refused:
                self._trial_refused(case, next(iter(found.refused.values())))
            else:
                self._trial_accepted(case)

    def is_interested(self, client: int) -> bool:
        """False if ``settled`` has nothing to do for a client."""
        found = self._clients.get(client)
        if found is None:
            return False
        case = self._cases.get(found.scope_domain)
        return bool(found.refused) or (case is not None and case.client is found)

    # -- the world and time

    def revised(self, changed: Iterable[Key]) -> None:
        """The World has a new revision: verdicts on items that have changed are over."""
        changed = [*changed]
        for case in [*self._cases.values()]:
            if not case.values.keys().isdisjoint(changed):
                self._close(case)  # if the client still refuses, there is a new one
        if not self._facts:
            return
        over = [key for key in changed for facts in self._facts.values() if key in facts]
        for key in dict.fromkeys(over):
            current = tuple(self._world.current(key))
            for domain, facts in list(self._facts.items()):
                if key in facts and facts[key].refused != current:
                    del facts[key]
                    log.info("object changed: quarantine ended", object=name_of(key), domain=domain)
                    self._write(domain)

    def tick(self) -> None:
        """Stop waiting for what has not come in time."""
        now = self._clock()
        for case in [case for case in self._cases.values() if case.deadline <= now]:
            if case.is_decided:
                self._conclude(case)
            else:
                self._hold(case, "the client does not answer trials in time")

    # -- cases

    def _consider(self, client: Client) -> bool:
        """Open a case for a client that refuses something. True if there is one."""
        build = client.build_domain
        if sum(case.client.build_domain == build for case in self._cases.values()) >= MAX_CASES:
            return False
        if self._withheld_from(client) != self._own(client):
            return False  # what it refuses may change by what is on its way to the World
        for type_url, nack in client.refused.items():
            if type_url not in client.held and self._open(client, nack):
                return True
        return False

    def _open(self, client: Client, nack: Nack) -> bool:
        given_up = self._given_up.get(client.id, {})
        if nack.resources and all(resource in given_up for resource in nack.resources):
            client.held[nack.type_url] = given_up[nack.resources[0]]
            return False
        if self._is_local(client, nack):
            return False
        values = self._suspects(client, nack)
        made_from = {("config", *key) for resource in nack.resources for key in resource.configs}
        narrow = [key for key in values if key in made_from]
        if self._accepted_by(client, nack.type_url) is None:
            # Nothing is known. First those without which the refused resource still exists.
            narrow = [key for key in narrow if _rank(key)] or narrow
        suspects = self._ordered(narrow or values)
        if not suspects:
            self._note_held(
                client, nack, "nothing has changed since the client accepted it last"
            )
            return False
        case = _Case(client, nack, Bisection(suspects, self._hinted(suspects, values, nack)), values)
        case.is_wide = not narrow
        self._cases[client.scope_domain] = case
        log.info(
            "looking for the refused object",
            proxy=client.proxy.name,
            type=RESOURCE_TYPES[nack.type_url].short,
            suspects=len(suspects),
        )
        return self._push(case)

    def _suspects(self, client: Client, nack: Nack) -> dict[Key, Withheld]:
        """The items whose values differ between what a client accepted last and what it refuses now."""
        type_url = nack.type_url
        refusal = Refusal(client.proxy.name, client.build_domain, type_url, nack.names, nack.reason, self._now())
        sent, accepted = client.sent[type_url], self._accepted_by(client, type_url)
        after = self._world.history.since(sent.revision) or {}
        before = self._world.history.since(accepted.revision) if accepted is not None else None
        if accepted is None or before is None:
            made_from = dict.fromkeys(("config", *key) for resource in nack.resources for key in resource.configs)
            found: Iterator[tuple[Key, tuple[Item, ...], tuple[Item, ...]]] = (
                (key, self._value(key, after, sent), ()) for key in made_from
            )
        else:
            touched = dict.fromkeys((*before, *(w.key for w in (*accepted.withheld, *sent.withheld))))
            found = ((key, self._value(key, after, sent), self._value(key, before, accepted)) for key in touched)
        known = {w.key: w.refused for w in self._own(client)}
        return {
            key: Withheld(key, refused, last, refusal)
            for key, refused, last in found
            if refused != last and known.get(key) != refused
        }

    def _value(self, key: Key, changed: dict[Key, tuple[Item, ...]], served: Served) -> tuple[Item, ...]:
        """The value of an item as it was served; ``changed`` are those with another value since."""
        items = changed[key] if key in changed else tuple(self._world.current(key))
        withheld = next((w for w in served.withheld if w.key == key), None)
        return tuple(served_value(withheld, list(items)))

    def _accepted_by(self, client: Client, type_url: str) -> Served | None:
        """What a client has accepted; if nothing yet, what others in its place have. None if that is not known."""
        if (own := client.accepted.get(type_url)) is not None:
            return own
        others = (c.accepted.get(type_url) for c in self._clients.values() if c.scope_domain == client.scope_domain)
        left = self._left.get((client.scope_domain, type_url))
        return max((s for s in (*others, left) if s is not None), key=lambda s: s.revision, default=None)

    def _ordered(self, keys: Iterable[Key]) -> list[Key]:
        """Suspects in the order in which to release them: others build on the first ones, then the oldest.

        Of two that are refused only together the later one is guilty.
        """

        def order(key: Key) -> tuple[int, str, Key]:
            created = [getattr(item, "created", None) for item in self._world.current(key)]
            return (_rank(key), str(created[0]) if created else "", key)

        return sorted(keys, key=order)

    def _hinted(self, suspects: list[Key], values: dict[Key, Withheld], nack: Nack) -> list[Key]:
        """The suspects that were guilty elsewhere; without any, those that the client's reason names."""
        known = {key: w for facts in self._facts.values() for key, w in facts.items()}
        found = [key for key in suspects if key in known and known[key].refused == values[key].refused]
        return found or [key for key in suspects if is_named(values[key].refused, nack.reason)]

    def _push(self, case: _Case) -> bool:
        """Begin the next trial."""
        client, now = case.client, self._clock()
        rate = self._options.trials_per_minute
        bucket = self._buckets.setdefault(client.scope_domain, TokenBucket(rate / 60, rate))
        if not bucket.take(1, now):
            self._hold(case, f"more than {self._options.trials_per_minute:g} trials a minute")
            return False
        self._trials += 1
        base = {w.key: w for w in self._own(client)}
        trial = {key: case.values[key] for key in case.search.withheld}
        case.pushed = tuple({**base, **trial}.values())
        case.deadline = now + self._options.answer_seconds
        self._put(Quarantine(client.trial_domain, case.pushed, is_trial=True))
        return True

    def _trial_accepted(self, case: _Case) -> None:
        case.search.accepted()
        self._go_on(case)

    def _trial_refused(self, case: _Case, nack: Nack) -> None:
        fresh = self._suspects(case.client, nack)
        made_from = {("config", *key) for resource in nack.resources for key in resource.configs}
        new = [key for key in fresh if key not in case.values and (case.is_wide or key in made_from)]
        if not case.search.trials and not new and not case.is_wide:
            case.is_wide = True
            new = [key for key in fresh if key not in case.search.suspects]
        for key in fresh:
            case.values.setdefault(key, fresh[key])
        case.search.refused(self._ordered(new))
        self._go_on(case)

    def _go_on(self, case: _Case) -> None:
        if case.search.is_hopeless:
            self._hold(case, "it is refused without any of the objects that changed, too")
        elif case.search.verdict is None:
            self._push(case)
        else:
            case.is_decided = True
            case.deadline = self._clock() + self._options.witness_seconds
            self._witnessed(case.client.build_domain)

    def _witnessed(self, build: str) -> None:
        """Pronounce the verdicts for which all other clients of the build have answered."""
        for case in [c for c in self._cases.values() if c.is_decided and c.client.build_domain == build]:
            type_url = case.nack.type_url
            others = (c for c in self._clients.values() if c.build_domain == build and c is not case.client)
            if not any(c.stream.has_doubts(type_url) and type_url not in c.refused for c in others):
                self._conclude(case)

    def _conclude(self, case: _Case) -> None:
        """Withhold the guilty."""
        client, verdict = case.client, case.search.verdict or ()
        if len({w.key for w in self._own(client)}.union(verdict)) > self._options.max_objects:
            self._hold(case, f"more than {self._options.max_objects} objects would be withheld")
            return
        domains = []
        for key in verdict:
            domain = self._domain_for(case, key)
            self._build_of[domain] = client.build_domain
            self._facts.setdefault(domain, {})[key] = case.values[key]
            self._verdicts += 1
            domains.append(domain)
            self._log_verdict(case.values[key], domain)
        for domain in dict.fromkeys(domains):
            self._write(domain)
        self._close(case)

    def _domain_for(self, case: _Case, key: Key) -> str:
        """All clients of the build; if one of them has accepted the object, only those in the place of the client."""
        client, type_url = case.client, case.nack.type_url
        refused = case.values[key].refused
        for other in self._clients.values():
            if other.build_domain != client.build_domain or other is client or type_url in other.refused:
                continue
            accepted = other.accepted.get(type_url)
            changed = self._world.history.since(accepted.revision) if accepted is not None else None
            if accepted is None or changed is None or self._value(key, changed, accepted) != refused:
                continue
            if any(("config", *c) == key for r in other.stream.client_state(type_url).values() for c in r.configs):
                return client.scope_domain
        return client.build_domain

    def _is_local(self, client: Client, nack: Nack) -> bool:
        """True if another client in the same place has accepted the very resources: the reason is with this one."""
        for other in self._clients.values():
            if (
                other is not client
                and other.scope_domain == client.scope_domain
                and nack.resources
                and all(other.has_accepted(resource) for resource in nack.resources)
            ):
                self._note_held(client, nack, f"{other.proxy.name}, with the same build, has accepted the same")
                return True
        return False

    def _hold(self, case: _Case, why: str) -> None:
        """Give up."""
        for nack in case.client.refused.values() or (case.nack,):
            self._note_held(case.client, nack, why)
        self._close(case)

    def _note_held(self, client: Client, nack: Nack, why: str) -> None:
        client.held[nack.type_url] = why
        known = self._given_up.setdefault(client.id, {})
        if len(known) > MAX_REMEMBERED:
            known.clear()
        known.update(dict.fromkeys(nack.resources, why))
        log.error(
            "refused resources are on hold until they change",
            proxy=client.proxy.name,
            type=RESOURCE_TYPES[nack.type_url].short,
            resources=list(nack.names[:10]),
            why=why,
            reason=nack.reason[:2000],
        )

    def _close(self, case: _Case) -> None:
        """End a case and its trial; another client of the build that refuses something may have the next one."""
        build = case.client.build_domain
        self._cases.pop(case.client.scope_domain, None)
        if case.pushed:
            self._outbox.append(Delete(SOURCE, ("quarantine", case.client.trial_domain)))
            self._news.set()
        for client in self._clients.values():
            if client.build_domain == build and client.refused:
                client.release()

    # -- what is withheld

    def _own(self, client: Client) -> tuple[Withheld, ...]:
        """The verdicts that concern a client."""
        facts = {**self._facts.get(client.build_domain, {}), **self._facts.get(client.scope_domain, {})}
        return tuple(facts.values())

    def _withheld_from(self, client: Client) -> tuple[Withheld, ...]:
        """What is withheld from a client in the World as it is now."""
        found = (self._world.withheld.peek(domain) for domain in client.proxy.domains)
        return next(filter(None, found), ())

    def _write(self, domain: str) -> None:
        """Write the verdicts of a domain; those of a build concern its scopes as well."""
        build = self._build_of[domain]
        for name in [domain, *(d for d, b in self._build_of.items() if b == build != d and domain == build)]:
            facts = {**self._facts.get(build, {}), **self._facts.get(name, {})} if self._facts.get(name) else {}
            if facts:
                self._put(Quarantine(name, tuple(facts.values())))
            else:
                self._facts.pop(name, None)
                self._outbox.append(Delete(SOURCE, ("quarantine", name)))
                self._news.set()

    def _put(self, quarantine: Quarantine) -> None:
        self._outbox.append(Upsert(SOURCE, quarantine))
        self._news.set()

    def _log_verdict(self, withheld: Withheld, domain: str) -> None:
        refused = withheld.refused[0] if withheld.refused else None
        log.warning(
            "object refused: withheld until it changes",
            object=name_of(withheld.key),
            origin=str(getattr(refused, "origin", "")),
            domain=domain,
            proxy=withheld.refusal.proxy,
            type=RESOURCE_TYPES[withheld.refusal.type_url].short,
            served="its last accepted version" if withheld.served else "left out",
            reason=withheld.refusal.words[:2000],
        )


_FOUNDATIONS = frozenset(("Gateway", "ServiceEntry", "WorkloadEntry", "WorkloadGroup", "Sidecar"))
"""Kinds without whose objects a resource may not exist."""

_ROUTES = frozenset(("VirtualService", "DestinationRule"))


def _rank(key: Key) -> int:
    """The place of a suspect among others, by its kind; 0 for those that others build on."""
    if key[0] != "config" or key[1] in _FOUNDATIONS:
        return 0
    return 1 if key[1] in _ROUTES else 2


def name_of(key: Key) -> str:
    """An item as logs and pages name it, ``VirtualService/shop/reviews``."""
    return str(ConfigKey(*key[1:])) if key[0] == "config" else "/".join(key)
