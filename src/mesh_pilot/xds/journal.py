"""What a stream tells of itself: whom it serves, what it sent, what was accepted and refused."""

from __future__ import annotations

from typing import Protocol

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.xds.messages import Nack, Response


class Journal(Protocol):
    """Who is told what happens on a stream; adds the times that the stream does not know."""

    def connected(self, proxy: Proxy) -> None: ...

    def sent(self, response: Response) -> None: ...

    def acked(self, type_url: str, nonce: str, version: str) -> None: ...

    def rejected(self, nack: Nack) -> None: ...

    def unserved(self, type_url: str) -> None:
        """The client asks, for the first time on the stream, for a type that is not served."""


class _NoJournal:
    def connected(self, proxy: Proxy) -> None: ...

    def sent(self, response: Response) -> None: ...

    def acked(self, type_url: str, nonce: str, version: str) -> None: ...

    def rejected(self, nack: Nack) -> None: ...

    def unserved(self, type_url: str) -> None: ...


NO_JOURNAL: Journal = _NoJournal()
