"""The verdicts in force: which versions of objects are withheld from which clients.

A verdict is one of a domain: a proxy, the proxies of a proven identity, or those of a build. A proxy that had accepted
something made of a version when a verdict of a wider domain came *keeps* that version, until it refuses it itself.

Keeps are remembered by proxy, not by stream: a proxy that reconnects must have the object at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta

import attrs
import structlog

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, Event, Item, Quarantine, Upsert, Withheld
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.safety.quarantine.clients import Client, in_words, is_unproven, party_in
from mesh_pilot.safety.quarantine.hints import may_be_the_machine, named_fields
from mesh_pilot.world import World

log = structlog.get_logger(scope="quarantine")

SOURCE = "quarantine"
"""The name of quarantine as a source of events."""

SHARE = 4
"""No party causes more than one group in so many."""

MAX_LEFT = 1000
"""Proxies that have left and whose own verdicts and keeps are remembered, a quarter of them at most of one party."""

RETRIED_AFTER = timedelta(minutes=10)
"""The age at which a refusal for a machine's reason is forgotten when its proxy disconnects."""

Key = tuple[str, ...]


class Verdicts:
    """Mutable state: for each domain its own verdicts, what proxies keep, and what the World was told.

    The World is told, for each domain with its own verdicts, all that is withheld there: that of wider domains too.
    """

    def __init__(self, max_groups: int) -> None:
        self._max_groups = max_groups
        self._own: dict[str, dict[Key, Withheld]] = {}
        self._keeps: dict[str, dict[Key, tuple[Item, ...]]] = {}
        """The versions that a proxy has accepted and that are withheld from others, by the proxy's domain."""
        self._within: dict[str, tuple[str, ...]] = {}
        """The wider domains of each domain with its own verdicts, the narrowest first."""
        self._told: dict[str, tuple[Withheld, ...]] = {}
        self._left: dict[str, None] = {}
        """The own domains of proxies that have left, in the order of leaving."""

    def __len__(self) -> int:
        return len({key for own in self._own.values() for key in own})

    def domains(self) -> tuple[str, ...]:
        """The domains that the World knows, also those of proxies from which less is withheld than from others."""
        return tuple(self._told)

    def within(self, domain: str) -> tuple[str, ...]:
        return self._within.get(domain, ())

    def all(self) -> list[Withheld]:
        """The verdicts of all domains."""
        return [withheld for _, withheld in self.by_domain()]

    def by_domain(self) -> list[tuple[str, Withheld]]:
        """The verdicts, each with the domain that it is about."""
        return [(domain, withheld) for domain, own in self._own.items() for withheld in own.values()]

    def on(self, client: Client) -> tuple[Withheld, ...]:
        """The items withheld from a client."""
        own, *within = client.proxy.domains[1:]
        return self._in(own, within)

    def _in(self, domain: str, within: Iterable[str]) -> tuple[Withheld, ...]:
        found: dict[Key, Withheld] = {}
        for wider in within:
            found = {**self._own.get(wider, {}), **found}
        keeps = self._keeps.get(domain, {})
        found = {key: each for key, each in found.items() if keeps.get(key) != each.refused}
        found |= self._own.get(domain, {})
        return tuple(found[key] for key in sorted(found))

    def has_room(self, client: Client) -> bool:
        """True if something more may be withheld from a client: if that makes no group, or its party has few."""
        told = [*self._told.values()]
        mine = self._told.get(client.own_domain) or self._told.get(client.domain)
        if mine and told.count(mine) == 1:
            return True
        of_party = [found for domain, found in self._told.items() if party_in(domain) == client.party]
        most = max(1, self._max_groups // SHARE)
        if _different(told) >= self._max_groups or _different(of_party) >= most:
            return False
        # Addresses are cheap: all unproven clients together leave half to those that prove who they are.
        unproven = [found for domain, found in self._told.items() if is_unproven(domain)]
        return bool(client.proxy.identity) or _different(unproven) < max(1, self._max_groups // 2)

    # -- writing

    def add(
        self, client: Client, verdicts: Iterable[Withheld], domain: str, keepers: Mapping[Key, Collection[Client]]
    ) -> Iterator[Event]:
        """Withhold items that a client refuses from one of its domains. Each of ``keepers`` has accepted one."""
        *_, build = within = client.proxy.domains[1:]
        touched = [domain]
        for found in verdicts:
            withheld = attrs.evolve(found, fields=named_fields(found.refused, found.refusal.words))
            domains = [domain]
            if domain == client.domain != client.own_domain and self._is_refused_by_others(client, withheld):
                domains.append(build)
            for each in domains:
                self._own.setdefault(each, {})[withheld.key] = withheld
                self._within[each] = within[within.index(each) + 1 :]
                _log_verdict(withheld, each)
            touched += domains
            for controller in keepers.get(withheld.key, ()):
                if controller.own_domain != client.own_domain and domains[-1] in controller.proxy.domains:
                    self._keeps.setdefault(controller.own_domain, {})[withheld.key] = withheld.refused
                    self._within[controller.own_domain] = controller.proxy.domains[2:]
                    touched.append(controller.own_domain)
            if self._keeps.get(client.own_domain, {}).pop(withheld.key, None) is not None:
                touched.append(client.own_domain)
        yield from self._tell(touched)

    def _is_refused_by_others(self, client: Client, withheld: Withheld) -> bool:
        """True if the proxies of another identity, of the same build, refuse the same version."""
        return any(
            own[withheld.key].refused == withheld.refused
            for domain, own in self._own.items()
            if withheld.key in own
            and domain not in client.proxy.domains
            and self._within[domain] == (client.build_domain,)
            and domain.startswith("identity ")
        )

    def restore(self, kept: Iterable[Quarantine]) -> Iterator[Event]:
        """Take the verdicts of an earlier run: what was withheld in each domain, as the World was told."""
        told = {each.domain: each for each in kept if not each.is_trial and party_in(each.domain) is not None}
        for domain, each in told.items():
            wider = {w.key: w for d in reversed(each.within) if d in told for w in told[d].withheld}
            self._within[domain] = each.within
            self._own[domain] = {w.key: w for w in each.withheld if wider.get(w.key) != w}
            mine = {w.key for w in each.withheld}
            if keeps := {key: w.refused for key, w in wider.items() if key not in mine}:
                self._keeps[domain] = keeps
            self._told[domain] = each.withheld
            if domain.startswith("proxy "):
                self._left[domain] = None
            yield Upsert(SOURCE, each)

    def revised(self, world: World, changed: Collection[Key]) -> Iterator[Event]:
        """End the verdicts on items that have changed."""
        if not self._own:
            return
        is_rollout = ("rollout",) in changed  # old values are in force, or no longer
        over: dict[Key, bool] = {}
        touched: list[str] = []
        for domain, own in self._own.items():
            for key in [*own] if is_rollout else [key for key in own if key in changed]:
                if own[key].refused not in world.values_in_force(key):
                    if key not in over:
                        log.info("object changed: quarantine ended", object=name_of(key), domain=in_words(domain))
                    over[key] = True
                    del own[key]
                    touched.append(domain)
        for domain, keeps in self._keeps.items():
            for key in [key for key in keeps if key in over]:
                del keeps[key]
                touched.append(domain)
        yield from self._tell(touched)

    def joined(self, client: Client) -> None:
        self._left.pop(client.own_domain, None)

    def left(self, client: Client, now: datetime) -> Iterator[Event]:
        """A proxy has no stream any more. Of those that have left some are remembered, of each party a few."""
        if client.own_domain not in self._within:
            return
        # Its port may be free when it returns, and its file there; not at once, while Envoy restarts.
        own = self._own.get(client.own_domain, {})
        old = [key for key, each in own.items() if now - each.refusal.at >= RETRIED_AFTER]
        for key in [key for key in old if may_be_the_machine(own[key].refusal.words)]:
            del own[key]
        yield from self._tell([client.own_domain])
        if client.own_domain not in self._within:
            return
        self._left[client.own_domain] = None
        of_party = [domain for domain in self._left if party_in(domain) == client.party]
        forgotten = of_party[: max(0, len(of_party) - MAX_LEFT // SHARE)]
        forgotten += [*self._left][: max(0, len(self._left) - len(forgotten) - MAX_LEFT)]
        for domain in dict.fromkeys(forgotten):
            del self._left[domain]
            self._own.pop(domain, None)
            self._keeps.pop(domain, None)
        yield from self._tell(forgotten)

    def _tell(self, touched: Iterable[str]) -> Iterator[Event]:
        """The events after a change of some domains: verdicts of a domain count in all narrower ones."""
        found = dict.fromkeys(touched)
        if any(not domain.startswith("proxy ") for domain in found):
            found |= {d: None for d, within in self._within.items() if not found.keys().isdisjoint(within)}
        for domain in sorted(found, key=lambda each: len(self._within.get(each, ()))):
            if self._own.get(domain) or self._keeps.get(domain):
                withheld = self._in(domain, self._within[domain])
                if not self._own.get(domain) and self._is_too_special(withheld):
                    withheld = ()
                if self._told.get(domain) != withheld:
                    self._told[domain] = withheld
                    yield Upsert(SOURCE, Quarantine(domain, withheld, within=self._within[domain]))
                continue
            for known in (self._own, self._keeps, self._within, self._left):
                known.pop(domain, None)
            if self._told.pop(domain, None) is not None:
                yield Delete(SOURCE, ("quarantine", domain))

    def _is_too_special(self, withheld: tuple[Withheld, ...]) -> bool:
        """True if what is left for proxies that keep something would make a group too many: they keep everything."""
        told = [*self._told.values()]
        return withheld not in told and _different(told) >= self._max_groups


def _different(told: Iterable[tuple[Withheld, ...]]) -> int:
    """The number of groups of domains: those from which the same is withheld are one group."""
    found: list[tuple[Withheld, ...]] = []
    for each in told:
        if each and each not in found:
            found.append(each)
    return len(found)


def name_of(key: Key) -> str:
    """An item as logs and pages name it, ``VirtualService/shop/reviews``."""
    return str(ConfigKey(*key[1:])) if key[0] == "config" else "/".join(key)


def _log_verdict(withheld: Withheld, domain: str) -> None:
    refusal = withheld.refusal
    log.warning(
        "object refused: withheld until it changes",
        object=name_of(withheld.key),
        origin=withheld.origin,
        fields=list(withheld.fields),
        domain=in_words(domain),
        proxy=refusal.proxy,
        type=RESOURCE_TYPES[refusal.type_url].short,
        served=withheld.in_its_place,
        reason=refusal.words,
    )
