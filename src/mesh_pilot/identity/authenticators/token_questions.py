"""Questions to a server about whose a token is: a few at a time, and answers are remembered for seconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import structlog
import trio

from mesh_pilot.identity.authenticators.recent_answers import RecentAnswers
from mesh_pilot.identity.authenticators.shared_client import SharedClient
from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable
from mesh_pilot.net.rpc.rate_limits import LogLimiter

TIMEOUT_SECONDS = 5.0
"""The longest time for the questions about one caller, the wait for their turn included."""

log = structlog.get_logger(scope="security")

T = TypeVar("T")
Names = tuple[str, str]
"""Namespace and name of a service account."""


class TokenQuestions(Generic[T]):
    """Mutable state: recent answers, the client, the limits on questions and log lines, and how many were asked."""

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[T]],
        *,
        failures: tuple[type[Exception], ...],
        trouble: str,
        refusal: str,
        at_once: int,
        remembered_seconds: float,
    ) -> None:
        """`failures`: of questions without an answer. `trouble`: for the log. `refusal`: what the caller is told."""
        self._client = SharedClient(make)
        self._failures = failures
        self._trouble = trouble
        self._refusal = refusal
        self._recent: RecentAnswers[Names] = RecentAnswers(remembered_seconds)
        self._turns = trio.CapacityLimiter(at_once)
        self._lines = LogLimiter()
        self.count = 0

    async def names(self, token: str, ask: Callable[[T], Awaitable[Names]]) -> Names:
        """Whose a token is, as the server says or said. Raises AuthenticationError and AuthenticatorUnavailable."""
        names = self._recent.get(token)
        if names is None:
            try:
                names = await self._asked(ask)
            except AuthenticationError as error:
                self._recent.put(token, error)
                raise
            self._recent.put(token, names)
        return names

    async def _asked(self, ask: Callable[[T], Awaitable[Names]]) -> Names:
        reason = f"no answer in {TIMEOUT_SECONDS:g} s"
        with trio.move_on_after(TIMEOUT_SECONDS):
            try:
                async with self._client.use() as client, self._turns:
                    self.count += 1
                    return await ask(client)
            except self._failures as error:
                reason = str(error)
        if (suppressed := self._lines.admit(reason, trio.current_time())) is not None:
            log.warning(self._trouble, reason=reason, suppressed=suppressed)
        raise AuthenticatorUnavailable(self._refusal)
