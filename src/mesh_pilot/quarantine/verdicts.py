"""The verdicts in force: which items are withheld from which domain."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import attrs
import structlog

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, Event, Quarantine, Upsert, Withheld
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.quarantine.clients import Client
from mesh_pilot.quarantine.hints import named_fields
from mesh_pilot.world import World

log = structlog.get_logger(scope="quarantine")

SOURCE = "quarantine"
"""The name of quarantine as a source of events."""

Key = tuple[str, ...]


class Verdicts:
    """Mutable state: for each domain of a build or a scope, its own verdicts.

    The World is told, for each such domain, what is withheld there: the verdicts on its build and its own.
    """

    def __init__(self) -> None:
        self._own: dict[str, dict[Key, Withheld]] = {}
        self._build_of: dict[str, str] = {}
        """The domain of the build, for each domain with verdicts of its own."""

    def __len__(self) -> int:
        return len({key for own in self._own.values() for key in own})

    def domains(self) -> tuple[str, ...]:
        return tuple(self._own)

    def all(self) -> list[Withheld]:
        """The verdicts of all domains."""
        return [withheld for own in self._own.values() for withheld in own.values()]

    def on(self, client: Client) -> tuple[Withheld, ...]:
        """The verdicts that concern a client."""
        return self._in(client.scope_domain, client.build_domain)

    def _in(self, domain: str, build: str) -> tuple[Withheld, ...]:
        return tuple({**self._own.get(build, {}), **self._own.get(domain, {})}.values())

    def add(self, client: Client, verdicts: Iterable[tuple[Withheld, str]]) -> Iterator[Event]:
        """Withhold items found at a client, each in a domain, of its build or of its scope."""
        touched = {}
        for found, domain in verdicts:
            withheld = attrs.evolve(found, fields=named_fields(found.refused, found.refusal.words))
            self._build_of[domain] = client.build_domain
            self._own.setdefault(domain, {})[withheld.key] = withheld
            touched[domain] = client.build_domain
            _log_verdict(withheld, domain)
        for domain in touched:
            yield from self._events(domain)

    def restore(self, kept: Iterable[Quarantine]) -> Iterator[Event]:
        """Take the verdicts of an earlier run: what was withheld in each domain, as the World was told."""
        told = {each.domain: each.withheld for each in kept if each.withheld and not each.is_trial}
        for domain, withheld in told.items():
            build = next(each.refusal.build for each in withheld)
            of_build = {each.key: each for each in told.get(build, ())} if domain != build else {}
            self._build_of[domain] = build
            self._own[domain] = {each.key: each for each in withheld if of_build.get(each.key) != each}
            yield Upsert(SOURCE, Quarantine(domain, withheld))

    def revised(self, world: World, changed: Collection[Key]) -> Iterator[Event]:
        """End the verdicts on items that have changed."""
        if not self._own:
            return
        if ("rollout",) in changed:  # old values are in force, or no longer
            changed = {key: None for own in self._own.values() for key in own}
        for key in changed:
            for domain, own in list(self._own.items()):
                if key in own and own[key].refused not in world.values_in_force(key):
                    del own[key]
                    log.info("object changed: quarantine ended", object=name_of(key), domain=domain)
                    yield from self._events(domain)

    def _events(self, domain: str) -> Iterator[Event]:
        """The events after a change in a domain: verdicts on a build count in its scopes, too."""
        build = self._build_of[domain]
        scopes = [d for d, b in self._build_of.items() if b == build != d] if domain == build else []
        for each in (domain, *scopes):
            if self._own.get(each):
                yield Upsert(SOURCE, Quarantine(each, self._in(each, build)))
            else:
                self._own.pop(each, None)
                del self._build_of[each]
                yield Delete(SOURCE, ("quarantine", each))


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
        domain=domain,
        proxy=refusal.proxy,
        type=RESOURCE_TYPES[refusal.type_url].short,
        served=withheld.in_its_place,
        reason=refusal.words,
    )
