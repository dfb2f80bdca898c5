"""Something was registered, changed or went, and Consul does not say which service: finding out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio

from mesh_pilot.sources.consul.api import Answer, ConsulError
from mesh_pilot.sources.consul.crowd import Crowd
from mesh_pilot.sources.consul.settings import Timing

_SETTLE_SECONDS = 0.1
_SUMMARY_SHARE = 0.2
_SWEEP_SHARE = 0.25
"""The most of the time that may go into summaries and sweeps, so that others get at Consul too."""


class Sweeper:
    """Has those services read that may have changed. State: what changed last, and the summary that was seen last.

    First those tell of themselves that hold a query. Then a summary of all services is compared with the one before:
    it shows who has other instances than before. Where neither explains the change, all are read, one after the other;
    and as changes may hide behind each other, that is done some time after an explained one too.
    """

    def __init__(self, crowd: Crowd, summary: Callable[[], Awaitable[Answer]], timing: Timing) -> None:
        self._crowd = crowd
        self._summary = summary
        self._lazy_seconds = timing.sweep_seconds
        self._changed = trio.Event()
        self._index = 0
        self._seen: dict[str, object] | None = None
        self.sweeps = 0

    def __repr__(self) -> str:
        return f"<Sweeper after {self.sweeps} sweeps>"

    def want(self, index: int) -> None:
        """Something changed at `index`; 0: it is not known when, and a summary would not show it."""
        self._index = index
        self._changed.set()

    async def run(self) -> None:
        """Look for what changed whenever something did, until cancelled."""
        await self._look()
        while True:
            await self._changed.wait()
            with trio.move_on_after(self._lazy_seconds):
                while await self._is_explained():
                    await self._changed.wait()
            await self._resting(self._crowd.sweep, _SWEEP_SHARE)
            self.sweeps += 1

    async def _is_explained(self) -> bool:
        """Whether the service was found that changed, as far as is known; or there are newer changes to look into."""
        self._changed = trio.Event()
        await trio.sleep(_SETTLE_SECONDS)
        index = self._index
        if index and not self._crowd.has_told(index):
            await self._resting(self._look, _SUMMARY_SHARE)
        return self._changed.is_set() or self._crowd.has_told(index)

    async def _look(self) -> None:
        """Have the services read whose summary differs from the last one."""
        try:
            answer = await self._summary()
        except ConsulError:
            return
        entries = answer.data if isinstance(answer.data, list) else []
        found = {str(entry.get("Name")): _outline(entry) for entry in entries if isinstance(entry, Mapping)}
        if self._seen is not None:
            await self._crowd.call_and_wait([name for name in found if found[name] != self._seen.get(name)])
        self._seen = found

    async def _resting(self, work: Callable[[], Awaitable[None]], share: float) -> None:
        """Work, and then rest so that the work takes this share of the time; new changes wait meanwhile."""
        began = trio.current_time()
        await work()
        await trio.sleep((trio.current_time() - began) * (1 / share - 1))


def _outline(entry: Mapping[str, object]) -> object:
    """What a summary says of a service's instances; states of checks are told otherwise."""
    return {key: value for key, value in entry.items() if not key.startswith("Checks")}
