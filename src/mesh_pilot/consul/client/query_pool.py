"""The query pool: few blocking queries for many services, and how the services without one learn of changes.

A service with a slot has a blocking query at Consul. If there are more services than slots, those that changed last
have them. The others are pending: they are read again when a query that covers many services shows a change (see
``change_finder``), or after ``reread_seconds``.

A slot is free again once its query was answered, not before: Consul keeps the connection of a query that its client
gave up until the query would have ended anyway, and counts it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
import trio

from mesh_pilot.consul.client.api import Answer
from mesh_pilot.consul.client.settings import Consistency, ConsulSettings

RESERVED_QUERIES = 5
"""Queries that need no slot: the catalog, the configs in KV, and the three that cover all services."""

MESH_QUERIES = 7
"""Further ones, for config entries and intentions, where these are read."""

_REFRESH_WORKERS = 4
_MAX_INDEXES = 256
_LAG_SECONDS = 0.5
"""The lag of a server that answers a stale read; Consul's documentation says some tens of milliseconds, commonly."""


class PooledQuery(Protocol):
    """A question to Consul that can wait for a change."""

    async def __call__(self, index: int, wait_seconds: float) -> Answer:
        """The present answer, or the next one that differs from that at `index`. Raises ConsulError."""


@attrs.define(eq=False)
class PooledService:
    """A service that shares the queries of a pool."""

    name: str
    is_known: bool = False
    """True once it was read."""
    due: trio.Event = attrs.field(factory=trio.Event)
    """Set when it is to be read again."""
    is_urgent: bool = False
    """True if it is due because it has changed."""
    refreshed: trio.Event = attrs.field(factory=trio.Event)
    """Set once it has been read after it was due, or is gone."""


class QueryPool:
    """Shares out the queries of a source.

    State: `services`, those that take part; `_slotted`, those with a slot; `_recent`, those that changed, the last one
    last; `_changed_at`, indexes of recent changes.
    """

    def __init__(self, settings: ConsulSettings) -> None:
        self._timing = settings.timing
        self._is_stale = settings.consistency is Consistency.STALE
        starts = max(min(settings.max_starts, settings.max_queries // 4), 1)
        self._starts = trio.CapacityLimiter(starts)
        reserved = RESERVED_QUERIES + (MESH_QUERIES if settings.mesh and not settings.peer else 0)
        self.slots = max(settings.max_queries - starts - reserved, 1)
        """The number of services that may have a query; all queries have at most ``max_queries`` connections."""
        self.services: dict[str, PooledService] = {}
        self._slotted: dict[str, PooledService] = {}
        self._recent: dict[str, PooledService] = {}
        self._changed_at: deque[int] = deque(maxlen=_MAX_INDEXES)
        self.under_way = 0
        """Queries that Consul has not answered yet."""
        self.failures = 0
        """Queries that failed so far."""
        self.troubles: dict[str, str] = {}
        """The last failure of each query that fails now, by what it asks for."""

    def __repr__(self) -> str:
        return f"<QueryPool of {len(self.services)}, {len(self._slotted)} of {self.slots} slots taken>"

    @property
    def pending(self) -> int:
        """The number of services without a slot."""
        return len(self.services) - len(self._slotted)

    @property
    def is_known(self) -> bool:
        """True if any service was read."""
        return any(service.is_known for service in self.services.values())

    @contextmanager
    def service(self, name: str) -> Iterator[PooledService]:
        """A service that takes part for the length of the block."""
        self.services[name] = service = PooledService(name)
        try:
            yield service
        finally:
            del self.services[name]
            self._slotted.pop(name, None)
            self._recent.pop(name, None)
            service.refreshed.set()

    async def read(self, query: PooledQuery) -> Answer:
        """The present answer; few queries at a time. Raises ConsulError."""
        async with self._starts:
            return await self._ask(query, 0, 0.0)

    async def block(self, query: PooledQuery, index: int, most_seconds: float | None) -> Answer:
        """The answer once it has changed, or after a while. Raises ConsulError."""
        wait = self._timing.wait_seconds * random.uniform(0.75, 1)
        return await self._ask(query, index, wait if most_seconds is None else min(wait, most_seconds))

    async def next(self, service: PooledService, query: PooledQuery, index: int, most_seconds: float | None) -> Answer:
        """The answer for a service once it may have changed, or after a while. Raises ConsulError."""
        if self._take_slot(service):
            service.due = trio.Event()
            service.refreshed.set()  # from here on its query shows each change
            answer = await self.block(query, index, most_seconds)
            if answer.index == index:
                self._yield_slot(service)
            return answer
        reread_seconds = max(self._timing.reread_seconds, len(self.services) * self._timing.reread_each_seconds)
        patience = reread_seconds * random.uniform(0.75, 1)
        with trio.move_on_after(patience if most_seconds is None else most_seconds):
            await service.due.wait()
        service.due = trio.Event()
        is_urgent, service.is_urgent = service.is_urgent, False
        answer = await self.read(query)
        if is_urgent and self._is_stale and answer.index == index:
            # The server that answered may not have seen the change yet.
            await trio.sleep(_LAG_SECONDS)
            answer = await self.read(query)
        return answer

    def is_pending(self, name: str) -> bool:
        """True if a service was read and has no slot."""
        service = self.services.get(name)
        return service is not None and service.is_known and name not in self._slotted

    def note_failure(self, service: PooledService) -> None:
        """A service could not be read: whoever waits for it continues to others."""
        service.refreshed.set()

    def note_read(self, service: PooledService, index: int, *, is_changed: bool) -> None:
        """A service was read; its answer is that of `index`."""
        if is_changed:
            self._recent.pop(service.name, None)
            self._recent[service.name] = service
            self._changed_at.append(index)
        service.is_known = True
        service.refreshed.set()

    def explains(self, index: int) -> bool:
        """True if some service is known to have changed at `index`."""
        return index in self._changed_at

    def mark_changed(self, names: Iterable[str]) -> None:
        """These services have changed: those that are pending are read at once."""
        for name in names:
            if name in self.services:
                self.services[name].is_urgent = True
                self.services[name].due.set()

    async def refresh(self, names: Iterable[str]) -> None:
        """Have the pending ones of these services read, as they have changed or may have; returns once each was tried.

        A few at a time, so that others need not wait for it.
        """
        queue = iter([self.services[name] for name in names if name in self.services])

        async def work() -> None:
            for service in queue:
                if self.services.get(service.name) is service and self.is_pending(service.name):
                    if service.refreshed.is_set():
                        service.refreshed = trio.Event()  # else somebody waits for it already
                    service.is_urgent = True
                    service.due.set()
                    await service.refreshed.wait()

        async with trio.open_nursery() as nursery:
            for _ in range(_REFRESH_WORKERS):
                nursery.start_soon(work)

    async def refresh_all(self) -> None:
        """Have every pending service read."""
        await self.refresh(list(self.services))

    def _take_slot(self, service: PooledService) -> bool:
        """True if the service has a slot, or takes one that is free."""
        if len(self._slotted) < self.slots:
            self._slotted[service.name] = service
        return service.name in self._slotted

    def _yield_slot(self, service: PooledService) -> None:
        """The service did not change while its query blocked: one that changed later takes its slot."""
        # Of those that changed last at most as many as there are slots have one: this does not walk all services.
        own = service.name
        latest = next((name for name in reversed(self._recent) if name == own or name not in self._slotted), own)
        if latest != own:
            del self._slotted[own]
            self._recent[latest].due.set()

    async def _ask(self, query: PooledQuery, index: int, wait_seconds: float) -> Answer:
        self.under_way += 1
        try:
            return await query(index, wait_seconds)
        finally:
            self.under_way -= 1
