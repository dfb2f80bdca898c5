"""The reports of quarantine: its log, and what pages and metrics show of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import structlog

from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.safety.quarantine.clients import Client
from mesh_pilot.xds.ads.messages import Nack

log = structlog.get_logger(scope="quarantine")


@attrs.frozen
class Held:
    """A refusal that nothing is done about: the client keeps what it had until the refused resources change."""

    proxy: str
    type_url: str
    resources: tuple[str, ...]
    words: str
    """The client's reason."""
    why: str
    """Why nothing is done."""


@attrs.frozen
class QuarantineStatistics:
    objects: int
    """Objects withheld from some clients now."""
    held: int
    """Refusals that nothing is done about."""
    verdicts: int
    """Objects that were withheld since the start."""
    trials: int
    """Trials since the start."""
    synced: bool = True
    """True: the picture is always full."""


class Reports:
    """Mutable state: two counters, and the lines of the log that there may still be."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.convicted = 0
        """Objects that were withheld since the start."""
        self.trials = 0
        """Trials since the start."""
        self._clock = clock
        self._lines = LogLimiter()

    def looking(self, client: Client, nack: Nack, suspects: int) -> None:
        """A case has been opened."""
        self._write(log.info, "looking for the refused object", client, nack, suspects=suspects)

    def on_hold(self, client: Client, nack: Nack, why: str) -> None:
        """Nothing is done about a refusal."""
        self._write(
            log.error,
            "refused resources are on hold until they change",
            client,
            nack,
            resources=list(nack.names[:10]),
            why=why,
            reason=nack.reason,
        )

    def _write(self, write: Callable[..., None], event: str, client: Client, nack: Nack, **fields: object) -> None:
        """Write a line, unless there are too many: a client may refuse forever."""
        proxy, short = client.proxy.name, RESOURCE_TYPES[nack.type_url].short
        suppressed = self._lines.admit((event, proxy, short), self._clock())
        if suppressed is not None:
            write(event, proxy=proxy, type=short, **fields, **({"suppressed": suppressed} if suppressed else {}))


def held_by(clients: Iterable[Client]) -> tuple[Held, ...]:
    """Refusals that nothing is done about."""
    return tuple(
        Held(client.proxy.name, type_url, nack.names, nack.reason, client.held[type_url])
        for client in clients
        for type_url, nack in client.refused.items()
        if type_url in client.held
    )
