"""The answer to each query: from the mesh's names, from the cache, or from name servers.

``at_once`` answers what needs no waiting; ``resolve`` all the rest. Queries that are the same for name servers share
one exchange: also one that comes back to us in a loop waits for it, and ends with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import trio
from dns.rcode import Rcode
from dns.rdata import Rdata
from dns.rdatatype import RdataType

from mesh_pilot.agent.dns.cache import AnswerCache
from mesh_pilot.agent.dns.messages import (
    MAX_SIZE,
    DnsAnswer,
    DnsQuery,
    for_client,
    pointer_data,
    port_data,
    write_answer,
)
from mesh_pilot.agent.dns.name_servers import NameServers, NoAnswer
from mesh_pilot.agent.dns.names import MeshNames

TTL_SECONDS = 30
"""The time to live of the mesh's names, as with Istio."""
STALE_AFTER_SECONDS = 1.8
"""A client that could have a stale answer waits this long for a fresh one (RFC 8767)."""
MAX_EXCHANGES = 256
"""Different queries that name servers are asked at a time."""
_USABLE = (Rcode.NOERROR, Rcode.NXDOMAIN)
_ANSWERED: dict[int, tuple[RdataType, ...]] = {
    RdataType.A: (RdataType.A,),
    RdataType.AAAA: (RdataType.AAAA,),
    RdataType.ANY: (RdataType.A, RdataType.AAAA),
    RdataType.HTTPS: (),
    RdataType.SVCB: (),
}
"""The records of a host of the mesh, by the type that is asked for. HTTPS and SVCB could lead past the mesh."""


@attrs.define
class AnswerCounts:
    """The answers given so far, by where they are from."""

    mesh: int = 0
    cached: int = 0
    stale: int = 0
    forwarded: int = 0
    failed: int = 0
    """No name server answered: SERVFAIL."""
    refused: int = 0
    """Malformed, or not served."""
    overloaded: int = 0
    """Too many different queries at a time: SERVFAIL."""


@attrs.define(eq=False)
class _Exchange:
    """A query that name servers are asked, for all who wait."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: DnsAnswer | None = None


class Resolver:
    """Answers queries. ``names`` is replaced when the name table changes."""

    def __init__(self, name_servers: NameServers, nursery: trio.Nursery) -> None:
        """``nursery``: where name servers are asked, also when the client that was first has gone."""
        self.names = MeshNames({})
        self.cache = AnswerCache()
        self.counts = AnswerCounts()
        self._name_servers = name_servers
        self._nursery = nursery
        self._exchanges: dict[bytes, _Exchange] = {}
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Resolver {len(self.names)} names, {len(self.cache)} cached, {len(self._exchanges)} exchanges>"

    def at_once(self, query: DnsQuery, limit: int = MAX_SIZE) -> bytes | None:
        """The answer of at most ``limit`` bytes; None if a name server must be asked."""
        if query.refusal is not None:
            self.counts.refused += 1
            return write_answer(query, code=query.refusal)
        if not query.is_plain:
            return None
        own = self._of_the_mesh(query, limit)
        if own is not None:
            self.counts.mesh += 1
            return own
        now = trio.current_time()
        kept = self.cache.get(query.upstream, now)
        if kept is None or not kept.is_fresh(now):
            return None
        self.counts.cached += 1
        return self._passed_on(kept.message(now), kept.answer.code, query, limit)

    async def resolve(self, query: DnsQuery, limit: int = MAX_SIZE) -> bytes:
        """The answer of name servers, of at most ``limit`` bytes; a stale one or SERVFAIL if there is none."""
        kept = self.cache.get(query.upstream, trio.current_time()) if query.is_plain else None
        exchange = self._exchanges.get(query.upstream)
        if exchange is None and len(self._exchanges) < MAX_EXCHANGES:
            exchange = self._exchanges[query.upstream] = _Exchange()
            self._nursery.start_soon(self._ask, query, exchange)
        if exchange is not None:
            with trio.move_on_after(STALE_AFTER_SECONDS if kept else math.inf):
                await exchange.done.wait()
            if (answer := exchange.answer) is not None and (answer.code in _USABLE or kept is None):
                self.counts.forwarded += 1
                return self._passed_on(answer.message, answer.code, query, limit)
        if kept is not None:
            self.counts.stale += 1
            return self._passed_on(kept.message(trio.current_time()), kept.answer.code, query, limit)
        if exchange is None:
            self.counts.overloaded += 1
        else:
            self.counts.failed += 1
        return write_answer(query, code=Rcode.SERVFAIL)

    async def _ask(self, query: DnsQuery, exchange: _Exchange) -> None:
        try:
            exchange.answer = await self._name_servers.ask(query.upstream)
            if query.is_plain:
                self.cache.put(query.upstream, exchange.answer, trio.current_time())
        except NoAnswer:
            pass
        finally:
            del self._exchanges[query.upstream]
            exchange.done.set()

    def _passed_on(self, message: bytes, code: int, query: DnsQuery, limit: int) -> bytes:
        if code == Rcode.NXDOMAIN and self.names.find(query.name):
            return write_answer(query, limit=limit)  # the name is; it has no such records
        return for_client(message, query, limit=limit)

    def _of_the_mesh(self, query: DnsQuery, limit: int) -> bytes | None:
        if query.type == RdataType.PTR:
            return self._hosts(query, limit)
        if query.type == RdataType.SRV:
            return self._ports(query, limit)
        kinds = _ANSWERED.get(query.type)
        found = self.names.find(query.name) if kinds is not None else None
        if kinds is None or found is None:
            return None
        data = self._in_turn([data for data in self.names.data_of(found) if data.rdtype in kinds])
        return write_answer(query, data, ttl=TTL_SECONDS, limit=limit)

    def _ports(self, query: DnsQuery, limit: int) -> bytes | None:
        found = self.names.find_service(query.name)
        if found is None:
            return None
        name, ports = found
        host = query.name if not query.name.startswith("_") else query.name.split(".", 2)[2]
        additional = [(host, data) for data in self.names.data_of(name)]
        data = [port_data(host, port) for port in ports]
        return write_answer(query, data, ttl=TTL_SECONDS, limit=limit, additional=additional)

    def _hosts(self, query: DnsQuery, limit: int) -> bytes | None:
        hosts = self.names.hosts_of(query.name)
        if hosts is None:
            return None
        data = [pointer_data(host) for host in hosts if not host.startswith("*")]
        code = Rcode.NOERROR if data else Rcode.NXDOMAIN
        return write_answer(query, data, ttl=TTL_SECONDS, limit=limit, code=code)

    def _in_turn(self, data: list[Rdata]) -> Sequence[Rdata]:
        """Each query has another address first."""
        if len(data) < 2:
            return data
        self._turn += 1
        first = self._turn % len(data)
        return [*data[first:], *data[:first]]
