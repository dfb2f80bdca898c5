"""Statistics of servers, channels and connections."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

__all__ = ["ConnectionStatistics", "ServerStatistics"]


@frozen(kw_only=True)
class ConnectionStatistics:
    """One connection of a server, or the one of a channel."""

    peer: str
    """The other side's address."""
    streams_open: int
    """Streams (calls) that run now."""
    streams_total: int
    """Streams ever opened."""
    messages_received: int
    """Whole messages that handlers or callers took."""
    messages_sent: int
    """Messages handed to the socket or the buffer before it."""
    bytes_received: int
    """Bytes read from the socket, TLS and HTTP/2 framing included."""
    bytes_sent: int
    """Bytes the socket took, TLS and HTTP/2 framing included."""
    bytes_waiting: int
    """Bytes that the socket has not taken yet."""
    draining: bool
    """True if a GOAWAY was sent or received: no more streams on this connection."""


@frozen(kw_only=True)
class ServerStatistics:
    """A server; totals include the connections that are gone."""

    connections_open: int = 0
    """Connections that are there now, TLS handshakes under way included."""
    connections_total: int = 0
    """Connections ever accepted."""
    connections_cut: int = 0
    """Connections that we closed because the peer made too much work, did not read or did not answer."""
    connections_retired: Mapping[str, int] = MappingProxyType({})
    """Connections that we ended because of their ``age``, or because the client's ``certificate`` ended."""
    connections_refused: Mapping[str, int] = MappingProxyType({})
    """Connections that were closed at the limit: new ones (``total``), and those that made room for new ones, because
    they were ``stalled`` or the newest of whoever had more than half (``share``)."""
    failed_handshakes: Mapping[str, int] = MappingProxyType({})
    """Connections that ended in the TLS handshake, by reason."""
    oversized_headers: int = 0
    """Calls that were refused because their headers were too large."""
    streams_open: int = 0
    """Streams (calls) that run now."""
    streams_total: int = 0
    """Streams ever opened."""
    messages_received: int = 0
    """Whole messages that handlers took."""
    messages_sent: int = 0
    """Messages that the sockets, or the buffers before them, took."""
    bytes_received: int = 0
    """Bytes read from sockets, TLS and HTTP/2 framing included."""
    bytes_sent: int = 0
    """Bytes that sockets took, TLS and HTTP/2 framing included."""
    draining: bool = False
    """True if the server accepts no more connections and streams."""

    @property
    def handshakes_failed(self) -> int:
        """Connections that ended in the TLS handshake."""
        return sum(self.failed_handshakes.values())
