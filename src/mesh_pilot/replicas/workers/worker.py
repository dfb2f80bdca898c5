"""A worker other than the first, which does as that one says: its World follows that of the first."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import structlog
import trio

from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.replicas.workers.frames import Applied, Drain, LogStatistics, Roots
from mesh_pilot.replicas.workers.questions import Answer
from mesh_pilot.replicas.workers.slot import WorkerSlot
from mesh_pilot.world import Reducer

log = structlog.get_logger(scope="bootstrap")


class Worker:
    """The tasks of a worker besides serving proxies. State: whether it is to end."""

    def __init__(
        self, slot: WorkerSlot, reducer: Reducer, trust: TrustStore, answer: Answer, log_statistics: Callable[[], None]
    ) -> None:
        self.over = trio.Event()
        self._slot = slot
        self._reducer = reducer
        self._trust = trust
        self._answer = answer
        self._log_statistics = log_statistics

    def __repr__(self) -> str:
        return f"<Worker{' ends' if self.over.is_set() else ''}>"

    async def follow(self) -> None:
        """Do as the first worker says, until it is gone."""
        link = self._slot.link
        await link.run(self._take, self._answer)
        if not self.over.is_set():
            log.warning("the first worker is gone, this one ends", reason=link.reason or "the socket is closed")
        self.over.set()
        self._slot.told.set()

    async def end_on_signal(self, signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            self._slot.link.put(Drain())
            self.over.set()

    def _take(self, message: object) -> None:
        match message:
            case Applied(revision=revision, events=events):
                shift = trio.current_time() - time.monotonic()
                self._reducer.replay(events, revision, message.first_event_at + shift, message.published_at + shift)
            case Roots(bundles=bundles, domains=domains):
                self._trust.set_domains(domains)
                self._trust.replace_foreign(bundles)
                self._slot.told.set()
            case LogStatistics():
                self._log_statistics()
            case Drain():
                self.over.set()
            case _:
                log.error("a message to a worker is not understood", kind=type(message).__name__)
