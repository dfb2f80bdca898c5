"""Answers about tokens, remembered for seconds by the token's hash: a client that retries costs one question."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Generic, TypeVar

import trio

from mesh_pilot.identity.trust.callers import AuthenticationError

T = TypeVar("T")

MAX_ANSWERS = 10_000


class RecentAnswers(Generic[T]):
    """Mutable state: what each token proved, or why it was refused, and until when that counts; oldest first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answers: OrderedDict[bytes, tuple[float, T | AuthenticationError]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<RecentAnswers {len(self._answers)}>"

    def get(self, token: str) -> T | None:
        """The proof of a token; None if that has to be asked. Raises the AuthenticationError that was put."""
        until, answer = self._answers.get(_hash(token), (0.0, None))
        if answer is None or trio.current_time() >= until:
            return None
        if isinstance(answer, AuthenticationError):
            raise AuthenticationError(answer.reason, str(answer))
        return answer

    def put(self, token: str, answer: T | AuthenticationError) -> None:
        key = _hash(token)
        self._answers[key] = (trio.current_time() + self._seconds, answer)
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
