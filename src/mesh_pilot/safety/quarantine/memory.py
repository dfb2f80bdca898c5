"""The memory of quarantine: who is connected, what those had accepted that have left, who may have how many trials."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from mesh_pilot.net.rpc.rate_limits import TokenBucket
from mesh_pilot.safety.quarantine.clients import Client, Served
from mesh_pilot.xds.ads.messages import Nack

MAX_REMEMBERED = 1000
"""Places and domains that are remembered, and refused resources of one client."""


class Memory:
    """Mutable state: the connected clients, what those that have left had accepted, and the trials that remain."""

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        """The connected clients whose proxies are known, by the number of their stream."""
        self._streams: dict[str, set[int]] = {}
        """The streams of each proxy that is connected, by its own domain."""
        self._left: dict[tuple[Hashable, str], Served] = {}
        """The accepted resources of clients that have left, by place and type."""
        self._buckets: dict[str, TokenBucket] = {}
        """The remaining trials, by the domain of the verdict."""

    def __repr__(self) -> str:
        return f"<Memory of {len(self.clients)} clients>"

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.clients.values())

    def joined(self, client: Client) -> None:
        """A client is connected, and its proxy known."""
        self.clients[client.id] = client
        self._streams.setdefault(client.own_domain, set()).add(client.id)

    def has_stream(self, own_domain: str) -> bool:
        """True if a proxy is connected; asked whenever a client leaves, so it looks at no other."""
        return own_domain in self._streams

    def left(self, client: int) -> Client | None:
        """A client is gone; what it had accepted tells what the next one in its place had."""
        found = self.clients.pop(client, None)
        if found is None:
            return None
        streams = self._streams[found.own_domain]
        streams.discard(client)
        if not streams:
            del self._streams[found.own_domain]
        for type_url, served in found.accepted.items():
            self._left[found.place, type_url] = served
        while len(self._left) > MAX_REMEMBERED:
            del self._left[next(iter(self._left))]
        return found

    def accepted_by(self, client: Client, nack: Nack, now: float) -> Served | None:
        """The state that a client has accepted; if none yet, that of others in its place. None if that is not known.

        Only others of its party count: the rest may not say what there was to accept.
        """
        type_url = nack.type_url
        of_place = [client, *(c for c in self if c.place == client.place)]
        if nack.is_warming:
            in_use = (each.in_use(type_url, now) for each in of_place)
            return next((served for served in in_use if served is not None), None)
        if (own := client.accepted.get(type_url)) is not None:
            return own
        others = (c.accepted.get(type_url) for c in of_place)
        left = self._left.get((client.place, type_url))
        return max((s for s in (*others, left) if s is not None), key=lambda s: s.revision, default=None)

    def may_try(self, domain: str, per_minute: float, now: float) -> bool:
        """True if a domain may have another trial, which then counts."""
        bucket = self._buckets.setdefault(domain, TokenBucket(per_minute / 60, per_minute))
        while len(self._buckets) > MAX_REMEMBERED:
            del self._buckets[next(iter(self._buckets))]
        return bucket.take(1, now)
