"""Values of the history of revisions: what a revision came to, and where each proxy is."""

from __future__ import annotations

from datetime import datetime

import attrs


@attrs.frozen
class RevisionNack:
    """A refusal of what followed from a revision."""

    at: datetime
    proxy: str
    """Name of the client, ``web-1.shop``."""
    type: str
    """Short, ``CDS``."""
    names: tuple[str, ...]
    """The refused resources; empty when it is unknown which."""
    configs: tuple[str, ...]
    """The objects that those resources were made from."""
    reason: str
    """As the client puts it."""


@attrs.frozen
class RevisionOutcome:
    """The effects of a revision on proxies, so far."""

    revision: int
    proxies: int
    """Streams that were sent something because of it."""
    waiting: int
    """Streams that may still be sent something, or have not answered."""
    bytes: int
    """Bytes sent; of a response that merges several revisions, they count for the newest."""
    acked_seconds: float | None
    """From its publication until the last of the streams, so far, had answered everything; None: none has."""
    nacks: tuple[RevisionNack, ...]
    """The first refusals."""
    nacked: int
    """Refusals in all."""
    is_over: bool
    """Nothing more is counted: every stream has answered or is gone, or too many revisions came since."""


@attrs.frozen
class ProxyRevision:
    """The revision that a connected proxy is at."""

    revision: int | None
    """The last of which it has, and has accepted, everything; None for the latest, 0 for none yet."""
    is_refusing: bool
    """True while it refuses something, and so stays where it was."""
