"""The budget for a peer's control frames: a token bucket of work. Neither clock nor network.

Frames such as PING, SETTINGS or RST_STREAM cost their sender nine bytes and us many microseconds. nghttp2, Envoy and
Go's ``net/http2`` all bound them, and close a connection that exceeds the bounds with GOAWAY ENHANCE_YOUR_CALM (RFC
9113, 10.5). Here each such frame has a price in units of about 20 µs of work. A connection may spend a burst and then
a rate. What we send to it earns units, because a client answers it with WINDOW_UPDATEs and with the PINGs and
SETTINGS by which gRPC measures bandwidth. A peer that reads what it requested never exceeds its budget.
"""

from __future__ import annotations

from enum import IntEnum

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from mesh_pilot.net.rpc.rate_limits import TokenBucket

__all__ = ["EnhanceYourCalm", "FrameBudget", "FrameKind", "largest", "price"]


class EnhanceYourCalm(ProtocolError):
    """The peer exceeded its budget: its connection is closed. The text lists its frames and is sent to the peer."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


class FrameKind(IntEnum):
    """The types of HTTP/2 frames (RFC 9113, 6)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


MAX_BLOCK = 32 * 1024
"""Bytes of a header block, compressed; uncompressed, MAX_HEADER_LIST_SIZE bounds it."""

_LARGEST: dict[int, int] = {
    FrameKind.DATA: 1024 * 1024,  # large messages come in few frames
    FrameKind.HEADERS: MAX_BLOCK,
    FrameKind.CONTINUATION: MAX_BLOCK,
    FrameKind.SETTINGS: 64 * 6,  # there are less than ten settings, nghttp2 takes 32
}
_LARGEST_OTHER = 16 * 1024


def largest(kind: int) -> int:
    """The largest payload of a frame of this type that is accepted."""
    return _LARGEST.get(kind, _LARGEST_OTHER)


RESET_UNITS = 5
"""Price of RST_STREAM: the stream was opened, given a task, and cancelled."""
SETTINGS_UNITS = 5
STREAMS_PER_UNIT = 4
"""Open streams that add one unit to the price of SETTINGS: a new INITIAL_WINDOW_SIZE touches all of them."""
REFUSED_UNITS = 5
"""Price of HEADERS that open a stream which is refused."""
CONTINUATION_UNITS = 5
FREE_BLOCK = 512
"""Bytes of a header block, compressed, that cost nothing; an ADS client sends less than 200."""
BLOCK_BYTES_PER_UNIT = 32
"""Header blocks are decompressed header by header, in Python: a block of 2 KB may hold a thousand headers."""
UNKNOWN_BYTES_PER_UNIT = 4096
SMALL_DATA = 32
"""DATA below this size costs a unit; the message that it completes earns one."""
UNITS_PER_MESSAGE = 3
"""Units earned by each message that we send: gRPC answers with at most a PING and two WINDOW_UPDATEs."""
UNITS_PER_RECEIVED = 1
"""Units earned by each message that we receive whole."""
BYTES_PER_UNIT = 1024
"""Bytes sent that earn a unit. Go, the most eager client, sends two WINDOW_UPDATEs for 4 KB."""


def price(kind: int, size: int, *, ack: bool = False, streams: int = 0) -> float:
    """The price, in units, of a frame of ``size`` bytes on a connection with this number of open ``streams``."""
    match kind:
        case FrameKind.DATA:
            return 1 if size < SMALL_DATA else 0
        case FrameKind.HEADERS:
            return max(0, size - FREE_BLOCK) // BLOCK_BYTES_PER_UNIT
        case FrameKind.SETTINGS if not ack:
            return SETTINGS_UNITS + streams // STREAMS_PER_UNIT
        case FrameKind.RST_STREAM:
            return RESET_UNITS
        case FrameKind.CONTINUATION:
            return CONTINUATION_UNITS + size // BLOCK_BYTES_PER_UNIT
    return 1 + size // UNKNOWN_BYTES_PER_UNIT


class FrameBudget(TokenBucket):
    """The budget of one connection. State: the tokens, and the charges by kind, which a GOAWAY lists."""

    __slots__ = ("_charged",)

    def __init__(self, rate: float, burst: float) -> None:
        super().__init__(rate, burst)
        self._charged: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<FrameBudget {self.tokens:.0f} units left, charged {self._charged}>"

    def spend(self, units: float, what: str, now: float) -> None:
        """Charge ``units`` for ``what``. Raises EnhanceYourCalm when the tokens do not suffice."""
        self._charged[what] = self._charged.get(what, 0) + 1
        if not self.take(units, now):
            most = sorted(self._charged.items(), key=lambda item: -item[1])[:3]
            frames = ", ".join(f"{count} {name}" for name, count in most)
            raise EnhanceYourCalm(f"too many frames that make work and carry nothing: {frames} so far")

    def sent(self, size: int) -> None:
        """Earn units with ``size`` bytes of DATA that we sent."""
        self.tokens += size / BYTES_PER_UNIT

    def sent_message(self) -> None:
        """Earn units with a message that we sent whole."""
        self.tokens += UNITS_PER_MESSAGE

    def received_message(self) -> None:
        """Earn a unit with a message that we received whole."""
        self.tokens += UNITS_PER_RECEIVED
