"""The cache of DNS answers knows its size: what it lets go leaves nothing behind."""

from __future__ import annotations

from dns.rcode import Rcode

from mesh_pilot.agent.dns.cache import STALE_SECONDS, AnswerCache
from mesh_pilot.agent.dns.messages import DnsAnswer

QUERIES = [f"query {number}".encode() for number in range(7)]


def test_the_size_is_that_of_what_is_kept_however_often_it_was_replaced() -> None:
    cache = AnswerCache()
    for number in range(200):
        answer = DnsAnswer(b"x" * (number % 50), Rcode.NOERROR, False, ttl=60)
        cache.put(QUERIES[number % 7], answer, float(number))
    kept = {query: found for query in QUERIES if (found := cache.get(query, 200.0)) is not None}
    assert len(kept) == len(cache) == 7
    assert cache.size == sum(len(query) + len(found.answer.message) for query, found in kept.items())
    for query in QUERIES:
        assert cache.get(query, 300.0 + STALE_SECONDS) is None
    assert (len(cache), cache.size) == (0, 0)
