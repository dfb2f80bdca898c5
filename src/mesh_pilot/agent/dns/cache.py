"""Answers of name servers, kept for as long as they say, and longer for when none answers (RFC 2308, 8767)."""

from __future__ import annotations

from collections import OrderedDict

import attrs
from dns.rcode import Rcode

from mesh_pilot.agent.dns.messages import DnsAnswer

MAX_ANSWERS = 4096
MAX_BYTES = 4 * 2**20
STALE_SECONDS = 86_400.0
"""The time for which an answer is still used after it has expired, while no name server answers."""
STALE_TTL = 30
"""The time to live that clients see in such an answer."""


@attrs.frozen
class KeptAnswer:
    """An answer in the cache."""

    answer: DnsAnswer
    since: float

    def is_fresh(self, now: float) -> bool:
        return now < self.since + self.answer.ttl

    def message(self, now: float) -> bytes:
        """The message with what is left of its times to live."""
        if self.is_fresh(now):
            return self.answer.aged(int(now - self.since))
        return self.answer.aged(2**31, at_least=STALE_TTL)


class AnswerCache:
    """The answers used last, of at most MAX_ANSWERS and MAX_BYTES. The clock is the caller's."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, KeptAnswer] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def size(self) -> int:
        """Bytes of the queries and answers."""
        return self._bytes

    def get(self, query: bytes, now: float) -> KeptAnswer | None:
        """The answer to a query, fresh or stale."""
        found = self._answers.get(query)
        if found is None:
            return None
        if now > found.since + found.answer.ttl + STALE_SECONDS:
            self._drop(query)
            return None
        self._answers.move_to_end(query)
        return found

    def put(self, query: bytes, answer: DnsAnswer, now: float) -> None:
        """Keep an answer, if it says something about the name."""
        if answer.code not in (Rcode.NOERROR, Rcode.NXDOMAIN) or answer.is_truncated:
            return
        self._drop(query)
        self._answers[query] = KeptAnswer(answer, now)
        self._bytes += len(query) + len(answer.message)
        while len(self._answers) > MAX_ANSWERS or self._bytes > MAX_BYTES:
            self._drop(next(iter(self._answers)))

    def _drop(self, query: bytes) -> None:
        found = self._answers.pop(query, None)
        if found is not None:
            self._bytes -= len(query) + len(found.answer.message)
