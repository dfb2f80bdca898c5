"""The findings of the analyzers, as fresh as they are cheap.

They look at all objects, so in a large mesh they take seconds: they run when somebody watches and something has
changed, and never for more than a twentieth of the time.
"""

from __future__ import annotations

import trio

from mesh_pilot.explain.analysis.analyze import analyze_picture
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.analysis import picture_now

REST = 19
"""Rests between two runs, in times of what the last one took."""

PATIENCE_SECONDS = 0.5
"""The wait of an answer for a run under way; after that it has the findings of the run before."""


class Findings:
    """State: the latest findings, of which revision and fleet they are, whether somebody asked for newer ones, and
    whether the task rests."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self.messages: tuple[AnalysisMessage, ...] = ()
        self.revision: int | None = None
        """Theirs; None before the first."""
        self.runs = 0
        self._of: tuple[object, ...] = ()
        self._asked = trio.Event()
        self._done = trio.Event()
        self._is_resting = False

    def __repr__(self) -> str:
        return f"<Findings {len(self.messages)} at revision {self.revision}>"

    async def ask(self) -> None:
        """Somebody watches: have newer findings made if there may be any, and wait briefly for them."""
        if self._key() == self._of:
            return
        self._asked.set()
        if not self._is_resting:
            with trio.move_on_after(PATIENCE_SECONDS):
                await self._done.wait()

    async def run(self) -> None:
        """Make findings when they are asked for, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            of, revision, began = self._key(), self._state.world.revision, trio.current_time()
            found = await trio.to_thread.run_sync(analyze_picture, await picture_now(self._state))
            self.messages, self.revision, self._of = tuple(found), revision, of
            self.runs += 1
            self._done.set()
            self._done = trio.Event()
            self._is_resting = True
            await trio.sleep(REST * (trio.current_time() - began))
            self._is_resting = False

    def _key(self) -> tuple[object, ...]:
        """All that findings depend on."""
        status = self._state.xds.status
        return self._state.world.revision, status.totals.streams_total, status.streams_ended
