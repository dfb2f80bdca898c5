"""The source of key sets: fetches the keys that RequestAuthentications and Policies name.

Keys are fetched when a policy first names them, and again every 20 minutes. While that fails, the last good ones stay
in force; if there never were any, proxies reject every token of that issuer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import attrs
import httpx
import structlog
import trio

from mesh_pilot.api.istio.authentication.v1alpha1 import Policy
from mesh_pilot.api.istio.security.v1beta1 import RequestAuthentication
from mesh_pilot.config.legacy_policies import token_rules
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Delete, Item, KeySet, Replace, Synced, Upsert, item_key, key_set_of
from mesh_pilot.sources.base import EventSender
from mesh_pilot.sources.jwks.fetch import FetchError, KeySetRef, fetch_keys
from mesh_pilot.sources.refreshing import Refresh, RefreshStatistics, refresh_statistics

REFRESH_SECONDS = 1200.0
"""The age at which keys are fetched again; Istio's own."""
TIMEOUT_SECONDS = 5.0
"""The timeout of a request if the policy has none."""

Fetch = Callable[[httpx.AsyncClient, KeySetRef, float], Awaitable[str]]

log = structlog.get_logger(scope="sources")


def _new_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(follow_redirects=True)


class KeySetDemand(Protocol):
    """The key sets that are needed. Whoever changes them calls `KeySource.wake`."""

    def wanted_key_sets(self) -> Mapping[KeySetRef, float]:
        """The key sets, each with the timeout of a request in seconds."""

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
    """Implements ``sources.base.Source``, ``Placed`` and ``Seeded``.

    State: a refresh for each key set that policies name, and the keys that an earlier run had.
    """

    name = "jwks"
    place = "the key sets of policies"

    def __init__(
        self, demand: KeySetDemand, *, fetch: Fetch = fetch_keys, client: Callable[[], httpx.AsyncClient] = _new_client
    ) -> None:
        """``client`` makes the HTTP client of a fetch; each fetch has its own."""
        self._demand = demand
        self._fetch = fetch
        self._client = client
        self._refreshes: dict[KeySetRef, _KeySetRefresh] = {}
        self._seeded: dict[KeySetRef, str] = {}
        self._wake = trio.Event()
        self._synced = False
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
                for new, timeout in wanted.items():
                    if new not in self._refreshes:
                        refresh = _KeySetRefresh(str(new), new, timeout, keys=known.pop(new, ""))
                        self._refreshes[new] = refresh
                        if refresh.keys and new not in sent:
                            await events.send(Upsert(self.name, KeySet(new.issuer, new.url, refresh.keys)))
                        nursery.start_soon(self._refresh, refresh, events)
                    self._refreshes[new].timeout_seconds = timeout
                if is_all_known:
                    for unneeded in known.keys() & sent:
                        await events.send(Delete(self.name, item_key(KeySet(unneeded.issuer, unneeded.url))))
                    known.clear()
                    self._seeded.clear()
                # A seeded picture is full without what other sources have not told yet: new keys need not wait.
                if not self._synced and (is_all_known or is_seeded) and all(f.tried for f in self._refreshes.values()):
                    self._synced = True
                    await events.send(Synced(self.name))
                await self._wake.wait()

    async def _refresh(self, refresh: _KeySetRefresh, events: EventSender) -> None:
        async def fetch() -> float:
            try:
                async with self._client() as client:
                    keys = await self._fetch(client, refresh.wanted, refresh.timeout_seconds)
            except FetchError:
                self._failed += 1
                raise
            self._fetched += 1
            if keys != refresh.keys:
                refresh.keys = keys
                await events.send(Upsert(self.name, KeySet(refresh.wanted.issuer, refresh.wanted.url, keys)))
            return REFRESH_SECONDS

        def report(reason: str) -> None:
            if not reason:
                log.info("JWKS fetch recovered", of=refresh.of)
                return
            stays = "the last good ones stay in force" if refresh.keys else "its tokens are rejected"
            log.warning("JWKS fetch failed", of=refresh.of, reason=reason, meanwhile=stays)

        await refresh.run(fetch, report, self.wake)


def wanted_by(policies: Iterable[Config]) -> Mapping[KeySetRef, float]:
    """The key sets that RequestAuthentications and Policies name, each with its longest timeout in seconds."""
    found: dict[KeySetRef, float] = {}
    for config in policies:
        spec: RequestAuthentication | Policy = config.spec
        for rule in token_rules(spec) if isinstance(spec, Policy) else spec.jwt_rules:
            if not rule.jwks:
                wanted = KeySetRef(*key_set_of(rule.issuer, rule.jwks_uri))
                timeout = rule.timeout.total_seconds() if rule.timeout else TIMEOUT_SECONDS
                found[wanted] = max(found.get(wanted, 0.0), timeout)
    return found
