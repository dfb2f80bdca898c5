"""Where a conversation about a type stands, for people."""

from __future__ import annotations

from enum import Enum

import attrs


class Phase(Enum):
    """Where the conversation about a type stands."""

    IDLE = "idle"
    """Nothing sent on this stream yet."""
    UNACKED = "un-ACKed"
    ACKED = "ACKed"
    NACKED = "NACKed"


@attrs.frozen
class SubscriptionStatistics:
    """One type of one stream, for people."""

    type_url: str
    phase: Phase
    wildcard: bool
    names: int
    """Names subscribed besides the wildcard."""
    held: int
    """Resources that the client was sent and should still have."""
    version: str
    """Last version sent."""
    nonce: str
    """Last nonce sent."""
    acked_version: str
    acked_nonce: str
    in_doubt: int
    """Resources of refused responses that the client may or may not have."""
