"""The waits between retries."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs


@attrs.define
class Backoff:
    """The waits between retries: exponential, with full jitter.

        backoff = Backoff()
        while True:
            try:
                await connect_and_read()  # calls backoff.reset() once it has worked
            except OSError:
                await trio.sleep(backoff.next_seconds())

    The n-th wait is a random share of ``first_seconds * 2**n``, which never exceeds ``limit_seconds``. Many clients of
    one server that failed together so come back spread out.
    """

    first_seconds: float = 1.0
    limit_seconds: float = 30.0
    random: Callable[[], float] = random.random
    """A number from 0 up to 1."""
    tries: int = attrs.field(default=0, init=False)
    """Waits given since the last reset."""

    @property
    def ceiling_seconds(self) -> float:
        """The longest the next wait can be."""
        return min(self.limit_seconds, self.first_seconds * 2.0 ** min(self.tries, 64))

    def next_seconds(self) -> float:
        """The time to wait now; the next one is of a range twice as wide."""
        ceiling = self.ceiling_seconds
        self.tries += 1
        return ceiling * self.random()

    def reset(self) -> None:
        """Call it after a success: the next wait is of the first range again."""
        self.tries = 0
