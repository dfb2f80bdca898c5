"""The last response of a subscription, the client's answer, and what it may have of responses that it refused."""

from __future__ import annotations

from collections.abc import Container, Iterable

import attrs

from mesh_pilot.engine.snapshots import EMPTY, NO_NAMES, Snapshot
from mesh_pilot.xds.ads.messages import Phase, Response
from mesh_pilot.xds.ads.pending_response import content_digest


@attrs.define(eq=False)
class LastResponse:
    """The last response, and the last one that was accepted. Mutable."""

    outstanding: Response | None = None
    """The response that waits for its ACK."""
    nonce: str = ""
    version: str = ""
    acked_nonce: str = ""
    acked_version: str = ""
    phase: Phase = Phase.IDLE

    def accept(self) -> None:
        self.acked_nonce, self.acked_version = self.nonce, self.version
        self.outstanding = None
        self.phase = Phase.ACKED

    def refuse(self) -> Response | None:
        """Returns the response if it was still un-ACKed."""
        refused, self.outstanding = self.outstanding, None
        if refused is not None:
            self.phase = Phase.NACKED
        return refused


@attrs.frozen
class NackedVersion:
    """The version of a name in a response that the client refused: it may or may not have it."""

    group: int
    """Digest of that response's content."""
    version: str
    """Empty for a removal."""


@attrs.define(eq=False)
class Doubts:
    """The things of which it is unknown whether the client has them. Mutable."""

    nacked: dict[str, NackedVersion] = attrs.field(factory=dict)
    """Names in responses that the client refused."""
    before: Snapshot = EMPTY
    """Where responses hold everything: what the client held before the last one."""
    never_had: frozenset[str] = NO_NAMES
    """Where responses hold everything: names that the client was sent only in responses that it refused."""

    def add(self, refused: Response, names: Iterable[str]) -> None:
        """A response was refused; doubtful are these names of it."""
        group = content_digest(refused.resources, refused.removed)
        versions = {resource.name: resource.version for resource in refused.resources}
        self.nacked.update((name, NackedVersion(group, versions.get(name, ""))) for name in names)

    def retain(self, names: Container[str]) -> None:
        self.nacked = {name: nacked for name, nacked in self.nacked.items() if name in names}
