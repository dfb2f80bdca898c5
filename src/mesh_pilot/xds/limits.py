"""Limits on log lines and on the scopes that a peer can make us generate resources for. No clock and no I/O."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable

from mesh_pilot.model.bounds import Bounds, check
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.rpc.token_bucket import TokenBucket

MAX_SUBJECTS = 10_000
"""Subjects of log lines that are remembered; for others a line is written as if it were the first."""


class LogLimiter:
    """Admits the first line about a subject, then one in ``seconds``, and only so many lines about all subjects.

    Mutable state: for each subject, least recently written first, when its last line was written and how many were
    suppressed since; how many lines of all there may still be; the total of suppressed lines.
    """

    def __init__(self, *, seconds: float = 60.0, rate: float = 10.0, burst: float = 200.0) -> None:
        """``rate`` and ``burst`` bound the lines of all subjects together, per second and at once."""
        self._seconds = seconds
        self._all = TokenBucket(rate, burst)
        self._written: OrderedDict[Hashable, float] = OrderedDict()
        self._suppressed: dict[Hashable, int] = {}
        self.suppressed = 0
        """Lines suppressed since the start."""

    def __repr__(self) -> str:
        return f"<LogLimiter {len(self._written)} subjects, {self.suppressed} suppressed>"

    def admit(self, subject: Hashable, now: float) -> int | None:
        """The number of lines about a subject suppressed since the last one; None to suppress this one too."""
        written = self._written.get(subject)
        is_due = written is None or now >= written + self._seconds
        if not is_due or not self._all.take(1, now):
            self.suppressed += 1
            if written is not None:
                self._suppressed[subject] = self._suppressed.get(subject, 0) + 1
            return None
        self._written[subject] = now
        self._written.move_to_end(subject)
        if len(self._written) > MAX_SUBJECTS:
            oldest, _ = self._written.popitem(last=False)
            self._suppressed.pop(oldest, None)
        return self._suppressed.pop(subject, 0)


class PeerScopes:
    """Counts the scopes of the open streams from each address: resources for one are not shared with another.

    Mutable state: for each peer how many streams have each scope, and for each stream both.
    """

    def __init__(self, scope_of: Callable[[Proxy], Hashable], bounds: Bounds) -> None:
        self._scope_of = scope_of
        self._bounds = bounds
        self._peers: dict[str, Counter[Hashable]] = {}
        self._streams: dict[Hashable, tuple[str, Hashable]] = {}

    def __repr__(self) -> str:
        return f"<PeerScopes {len(self._streams)} streams of {len(self._peers)} peers>"

    def enter(self, stream: Hashable, address: str, proxy: Proxy) -> None:
        """A stream's proxy is known. Raises BoundError if that is one scope too many for the peer at this address."""
        host = host_of(address)
        scope = self._scope_of(proxy)
        found = self._peers.get(host, Counter())
        if scope not in found:
            what = f"scopes (namespaces, DNS domains, localities, ...) claimed by proxies at {host}"
            check(self._bounds, "max_scopes_per_peer", what, len(found) + 1)
        found[scope] += 1
        self._peers[host] = found
        self._streams[stream] = (host, scope)

    def leave(self, stream: Hashable) -> None:
        """A stream is over, whether its proxy was known or not."""
        host, scope = self._streams.pop(stream, ("", None))
        found = self._peers.get(host)
        if found is None:
            return
        found[scope] -= 1
        if found[scope] <= 0:
            del found[scope]
        if not found:
            del self._peers[host]


def host_of(address: str) -> str:
    """The address of a peer without its port."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() else address
