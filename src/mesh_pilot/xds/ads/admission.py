"""Admission of streams: a place among those that are open, and evidence of who calls.

All servers of streams whose first message has a node use this: the discovery services, and those that take reports.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable
from mesh_pilot.model.bounds import Bounds, check
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.net.rpc import ServerStream
from mesh_pilot.net.rpc.shares import Shares
from mesh_pilot.xds.ads.limits import owner_of
from mesh_pilot.xds.ads.messages import Code, StreamError

RawStream = ServerStream[bytes, bytes]

Admit = Callable[[Proxy], Proxy]
"""Notes the identity of a proxy, given what its call proves; raises AuthenticationError to refuse it."""

Authenticate = Callable[[RawStream], Awaitable[Admit]]
"""Finds out who makes a call. Raises AuthenticationError to refuse it, AuthenticatorUnavailable if that is unknown."""


async def admission(authenticate: Authenticate | None, call: RawStream) -> Admit:
    """Find out who makes a call; without ``authenticate`` callers are whoever they say. Raises StreamError, as does the
    result to refuse a proxy."""
    if authenticate is None:
        return lambda proxy: proxy
    try:
        admit = await authenticate(call)
    except AuthenticationError as error:
        raise StreamError(Code.UNAUTHENTICATED, str(error)) from error
    except AuthenticatorUnavailable as error:
        raise StreamError(Code.UNAVAILABLE, str(error)) from error

    def admitted(proxy: Proxy) -> Proxy:
        try:
            return admit(proxy)
        except AuthenticationError as error:
            raise StreamError(Code.UNAUTHENTICATED, str(error)) from error

    return admitted


class StreamPlaces:
    """The places of open streams, by owner. Mutable state: the shares; each entry is the scope of a stream."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.shares: Shares[trio.CancelScope] = Shares(bounds.max_streams or math.inf)

    def __repr__(self) -> str:
        return f"<StreamPlaces {self.shares!r}>"

    def __len__(self) -> int:
        return len(self.shares)

    @contextmanager
    def place(self, call: RawStream) -> Iterator[trio.CancelScope]:
        """A place among the streams, for the block; at the limit another stream ends for it, or this one is refused.

        Raises BoundError, or StreamError when the place was taken for another stream. Until its proxy is known a stream
        is its peer's.
        """
        shares = self.shares
        # As its proxy will have it: an identity with two owners could have all places, and neither more than half.
        owner = owner_of(next(iter(call.peer.spiffe_ids), ""), call.peer.address)
        if shares.is_full:
            other = shares.giving_way(owner)
            if other is None:
                check(self._bounds, "max_streams", "streams", len(shares) + 1)
            else:
                shares.remove(other)
                other.cancel()
        with trio.CancelScope() as place:
            shares.add(place, owner)
            try:
                yield place
            finally:
                shares.remove(place)
        if place.cancelled_caught:
            reason = f"{shares.limit:,} streams are open (--max-streams): this one has made room for another"
            raise StreamError(Code.RESOURCE_EXHAUSTED, reason, bound="max_streams")
