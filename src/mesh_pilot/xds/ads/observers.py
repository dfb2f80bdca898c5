"""The observers of streams, outside of this room: quarantine and rollouts, auto-registration, traces.

Each learns of what it needs, and of nothing else: a push that is not traced costs no call. The observer of all that
happens on one stream is ``observing``, which passes it on to these. Streams, called clients here, are known by the
number of their connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.xds.ads.messages import Nack
from mesh_pilot.xds.ads.stream import Stream


class AnswerObserver(Protocol):
    """Learns what clients accept and refuse. Clients are known by the number of their connection."""

    def joining(self, client: int, proxy: Proxy) -> Proxy:
        """A proxy that connects, as it should be known from now on."""
        ...

    def joined(self, client: int, proxy: Proxy, stream: Stream, release: Callable[[], None]) -> None:
        """``release`` ends the pause of a client that keeps refusing."""

    def sent(self, client: int, type_url: str) -> None: ...

    def accepted(self, client: int, type_url: str) -> None: ...

    def refused(self, client: int, nack: Nack) -> bool:
        """Returns True if something is done about it, so that there should be no pause."""
        ...

    def warms(self, client: int, nack: Nack) -> None:
        """A client does not use what it has accepted of a type though it has had the time, and nothing explains it."""

    def is_interested(self, client: int) -> bool:
        """True if ``settled`` should be called."""
        ...

    def settled(self, client: int) -> None:
        """There is nothing more to send to a client, and it has answered everything."""

    def trial_of(self, client: int) -> str:
        """The type of which it is being found out what a client refuses; empty if it is not."""
        ...

    def left(self, client: int) -> None: ...


class _NoAnswerObserver:
    def joining(self, client: int, proxy: Proxy) -> Proxy:
        return proxy

    def joined(self, client: int, proxy: Proxy, stream: Stream, release: Callable[[], None]) -> None: ...

    def sent(self, client: int, type_url: str) -> None: ...

    def accepted(self, client: int, type_url: str) -> None: ...

    def refused(self, client: int, nack: Nack) -> bool:
        return False

    def warms(self, client: int, nack: Nack) -> None: ...

    def is_interested(self, client: int) -> bool:
        return False

    def settled(self, client: int) -> None: ...

    def trial_of(self, client: int) -> str:
        return ""

    def left(self, client: int) -> None: ...


NO_ANSWER_OBSERVER = _NoAnswerObserver()


class WorkloadObserver:
    """Learns which workloads have streams, known by the number of their connection. This one does nothing."""

    def joining(self, client: int, proxy: Proxy, peer: str) -> None:
        """A proxy, or its agent, connects from an address. Raises StreamError to refuse it."""

    def reported(self, client: int, error: str | None) -> None:
        """The health of its application: why it is ill, None if it is well."""

    def left(self, client: int) -> None:
        """A stream is over, whether it had joined or not."""


class PushObserver(Protocol):
    """Learns of each response that follows from a revision. Clients are known by the number of their connection."""

    def pushing(
        self, revision: int, client: int, proxy: str, type_url: str, *, resources: int, size: int, began: float
    ) -> None: ...

    def written(self, client: int, type_url: str, at: float) -> None: ...

    def answered(self, client: int, type_url: str, at: float, error: str | None) -> None: ...

    def left(self, client: int, at: float) -> None: ...
