"""The limit on the scopes that a peer can make us generate resources for. No clock and no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from mesh_pilot.identity.trust.callers import host_of
from mesh_pilot.model.bounds import Bounds, check
from mesh_pilot.model.proxy import Proxy


def owner_of(identity: str, address: str) -> str:
    """The owner of a stream: the identity that is proven, else the address that it comes from."""
    return identity or host_of(address)


class PeerScopes:
    """Counts the scopes of the open streams of each identity, or of each address where none is proven: resources for
    one scope are not shared with another.

    Mutable state: for each owner how many streams have each scope, and for each stream both.
    """

    def __init__(self, scope_of: Callable[[Proxy], Hashable], bounds: Bounds) -> None:
        self._scope_of = scope_of
        self._bounds = bounds
        self._owners: dict[str, Counter[Hashable]] = {}
        self._streams: dict[Hashable, tuple[str, Hashable]] = {}

    def __repr__(self) -> str:
        return f"<PeerScopes {len(self._streams)} streams of {len(self._owners)} peers>"

    def enter(self, stream: Hashable, address: str, proxy: Proxy) -> None:
        """A stream's proxy is known. Raises BoundError if that is one scope too many for whose it is."""
        owner = owner_of(proxy.identity, address)
        scope = self._scope_of(proxy)
        found = self._owners.get(owner, Counter())
        if scope not in found:
            what = f"scopes (namespaces, DNS domains, localities, ...) claimed by proxies of {owner}"
            check(self._bounds, "max_scopes_per_peer", what, len(found) + 1)
        found[scope] += 1
        self._owners[owner] = found
        self._streams[stream] = (owner, scope)

    def leave(self, stream: Hashable) -> None:
        """A stream is over, whether its proxy was known or not."""
        owner, scope = self._streams.pop(stream, ("", None))
        found = self._owners.get(owner)
        if found is None:
            return
        found[scope] -= 1
        if found[scope] <= 0:
            del found[scope]
        if not found:
            del self._owners[owner]
