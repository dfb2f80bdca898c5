"""The source of key sets: fetches the keys that RequestAuthentications and Policies name.

Keys are fetched when a policy first names them, and again every 20 minutes. While that fails, the last good ones stay
in force; if there never were any, proxies reject every token of that issuer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import attrs
import structlog
import trio

from mesh_pilot.api.istio.authentication.v1alpha1 import Policy
from mesh_pilot.api.istio.security.v1beta1 import RequestAuthentication
from mesh_pilot.identity.trust.key_set_fetch import KeySetRef, fetch_keys
from mesh_pilot.istio.meaning.legacy_policies import token_rules
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Delete, EventSender, Item, KeySet, Replace, Synced, Upsert, item_key, key_set_of
from mesh_pilot.net.fetching import Fetcher
from mesh_pilot.net.fetching.refreshing import Refresh, RefreshStatistics, Rounds, refresh_statistics
from mesh_pilot.net.fetching.turns import Turns

REFRESH_SECONDS = 1200.0
"""The age at which keys are fetched again; Istio's own."""
TIMEOUT_SECONDS = 5.0
"""The time for a fetch if the policy has no timeout."""
MAX_TIMEOUT_SECONDS = 30.0
"""The longest time for a fetch, whatever the policy says."""
AT_ONCE, EACH = 32, 4
"""Fetches at the same time: in all, and of one namespace."""

Fetch = Callable[[KeySetRef, float], Awaitable[str]]
"""Fetches a key set within so many seconds. Raises FetchError."""

log = structlog.get_logger(scope="sources")


@attrs.frozen
class KeySetNeed:
    """A key set as policies ask for it."""

    seconds: float
    """The time for a fetch: the longest timeout."""
    namespaces: frozenset[str]
    """The namespaces of the policies."""


class KeySetDemand(Protocol):
    """The key sets that are needed. Whoever changes them calls `KeySource.wake`."""

    def wanted_key_sets(self) -> Mapping[KeySetRef, KeySetNeed]:
        """The key sets."""

    def is_complete(self) -> bool:
        """True once all that may need a key set is known."""


@attrs.define(eq=False)
class _KeySetRefresh(Refresh):
    """A key set that is needed. State: its keys, and how the last try went."""

    wanted: KeySetRef
    timeout_seconds: float
    keys: str = ""

    @property
    def is_in_force(self) -> bool:
        return bool(self.keys)


class KeySource:
    """Implements ``sources.base.contract.Source``, ``Placed`` and ``Seeded``.

    State: a refresh for each key set that policies name, and the keys that an earlier run had.
    """

    name = "jwks"
    place = "the key sets of policies"

    def __init__(self, demand: KeySetDemand, *, fetch: Fetch | None = None) -> None:
        self._demand = demand
        self._fetch = fetch or partial(fetch_keys, Fetcher())
        self._refreshes: dict[KeySetRef, _KeySetRefresh] = {}
        self._seeded: dict[KeySetRef, str] = {}
        self._wake = trio.Event()
        self._synced = False
        self._rounds = Rounds(self._tried, Turns(AT_ONCE, EACH))
        self._fetched = 0
        self._failed = 0

    def __repr__(self) -> str:
        return f"<KeySource of {len(self._refreshes)} key sets {'synced' if self._synced else 'not synced'}>"

    def seed(self, items: Sequence[Item]) -> None:
        """The key sets of an earlier run: each is in force until it is fetched again, or no longer needed."""
        self._seeded = {KeySetRef(item.issuer, item.url): item.keys for item in items if isinstance(item, KeySet)}

    def wake(self) -> None:
        """The demand may have changed."""
        self._wake.set()

    def _tried(self) -> None:
        if not self._synced and all(each.tried for each in self._refreshes.values()):
            self.wake()

    def statistics(self) -> RefreshStatistics:
        found = refresh_statistics(self._refreshes.values(), "keys", synced=self._synced)
        return attrs.evolve(found, fetched=self._fetched, failed=self._failed)

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send key sets until cancelled; what is known is kept for the next run."""
        self._synced = False
        is_seeded = bool(self._seeded)
        known = self._seeded | {wanted: refresh.keys for wanted, refresh in self._refreshes.items()}
        self._refreshes.clear()
        self._rounds.begin()
        is_all_known = self._demand.is_complete()
        sent = known.keys() & self._demand.wanted_key_sets().keys() if is_all_known else {*known}
        in_force = tuple(KeySet(w.issuer, w.url, keys) for w, keys in known.items() if keys and w in sent)
        await events.send(Replace(self.name, ("keys",), in_force))
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._wake = trio.Event()
                is_all_known = self._demand.is_complete()
                wanted = self._demand.wanted_key_sets()
                for gone in [w for w in self._refreshes if w not in wanted]:
                    refresh = self._refreshes.pop(gone)
                    refresh.scope.cancel()
                    await events.send(Delete(self.name, item_key(KeySet(gone.issuer, gone.url))))
                for new, asked in wanted.items():
                    if new not in self._refreshes:
                        refresh = _KeySetRefresh(str(new), new, asked.seconds, keys=known.pop(new, ""))
                        self._refreshes[new] = refresh
                        if refresh.keys and new not in sent:
                            await events.send(Upsert(self.name, KeySet(new.issuer, new.url, refresh.keys)))
                        nursery.start_soon(self._refresh, refresh, events)
                    self._refreshes[new].timeout_seconds = asked.seconds
                    self._refreshes[new].owners = asked.namespaces
                if is_all_known:
                    for unneeded in known.keys() & sent:
                        await events.send(Delete(self.name, item_key(KeySet(unneeded.issuer, unneeded.url))))
                    known.clear()
                    self._seeded.clear()
                # A seeded picture is full without what other sources have not told yet: new keys need not wait.
                is_due = not self._synced and (is_all_known or is_seeded)
                if is_due and self._rounds.is_first_over(self._refreshes.values()):
                    self._synced = True
                    await events.send(Synced(self.name))
                await self._rounds.wait(self._wake, synced=self._synced)

    async def _refresh(self, refresh: _KeySetRefresh, events: EventSender) -> None:
        async def take(keys: str) -> float:
            self._fetched += 1
            if keys != refresh.keys:
                refresh.keys = keys
                await events.send(Upsert(self.name, KeySet(refresh.wanted.issuer, refresh.wanted.url, keys)))
            return REFRESH_SECONDS

        async def failed(reason: str, is_new: bool) -> None:
            self._failed += 1
            if is_new:
                stays = "the last good ones are kept" if refresh.keys else "the issuer's tokens are rejected"
                log.warning("JWKS fetch failed", of=refresh.of, reason=reason, meanwhile=stays)

        await self._rounds.run(
            refresh,
            lambda: self._fetch(refresh.wanted, refresh.timeout_seconds),
            take,
            failed,
            lambda: log.info("JWKS fetch recovered", of=refresh.of),
        )


def wanted_by(policies: Iterable[Config]) -> Mapping[KeySetRef, KeySetNeed]:
    """The key sets that RequestAuthentications and Policies name."""
    seconds: dict[KeySetRef, float] = {}
    namespaces: dict[KeySetRef, set[str]] = {}
    for config in policies:
        spec: RequestAuthentication | Policy = config.spec
        for rule in token_rules(spec) if isinstance(spec, Policy) else spec.jwt_rules:
            if not rule.jwks:
                wanted = KeySetRef(*key_set_of(rule.issuer, rule.jwks_uri))
                timeout = rule.timeout.total_seconds() if rule.timeout else TIMEOUT_SECONDS
                seconds[wanted] = max(seconds.get(wanted, 0.0), min(timeout, MAX_TIMEOUT_SECONDS))
                namespaces.setdefault(wanted, set()).add(config.namespace)
    return {wanted: KeySetNeed(seconds[wanted], frozenset(namespaces[wanted])) for wanted in seconds}
