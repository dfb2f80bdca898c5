"""A chore: work that is asked for now and then, at once or within some time, and that rests in between."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import attrs
import trio


@attrs.define
class Chore:
    """Work that runs once for all requests since it last began. State: when it is due, on Trio's clock."""

    work: Callable[[], Awaitable[None]]
    share: float
    """The largest share of the time that it may take."""
    rest_seconds: float = math.inf
    """The longest rest, whatever the share."""
    runs: int = 0
    """The times that it ran to its end."""
    _due_at: float = math.inf
    _asked: trio.Event = attrs.field(factory=trio.Event)
    _rested: trio.Event = attrs.field(factory=trio.Event)
    """Set while it does not work."""

    def __attrs_post_init__(self) -> None:
        self._rested.set()

    def ask(self, within_seconds: float = 0.0) -> None:
        """Have it run within some time; a request while it runs has it run once more."""
        due_at = trio.current_time() + within_seconds
        if due_at < self._due_at:
            self._due_at = due_at
            self._asked.set()

    async def wait_rested(self) -> None:
        """Wait until it does not work."""
        await self._rested.wait()

    async def run(self) -> None:
        """Work whenever it is due, until cancelled."""
        while True:
            while trio.current_time() < self._due_at:
                self._asked = trio.Event()
                with trio.move_on_at(self._due_at):
                    await self._asked.wait()
            self._due_at = math.inf
            began = trio.current_time()
            self._rested = trio.Event()
            try:
                await self.work()
            finally:
                self._rested.set()
            self.runs += 1
            await trio.sleep(min((trio.current_time() - began) * (1 / self.share - 1), self.rest_seconds))
