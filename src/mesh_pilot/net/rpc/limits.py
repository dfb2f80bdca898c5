"""Bounds that servers and channels enforce on their peers."""

from __future__ import annotations

import math

from attrs import field, frozen, validators

__all__ = ["CLIENT_LIMITS", "SERVER_LIMITS", "Limits"]

_positive = validators.gt(0)
_positive_seconds = validators.gt(0.0)


@frozen(kw_only=True)
class Limits:
    """Bounds of one server or channel. Sizes are in bytes, times in seconds."""

    max_message_size: int = field(default=64 * 1024 * 1024, validator=_positive)
    """The largest message accepted; a larger one ends its stream with RESOURCE_EXHAUSTED before it is buffered."""

    max_concurrent_streams: int = field(default=100, validator=_positive)
    """Streams that one connection may have open; more are refused with REFUSED_STREAM.

    100 is the least that RFC 9113 recommends. An Envoy needs one, or one for each type without ADS; a proxy in front of
    the server opens another connection when it has as many.
    """

    frame_rate: float = field(default=200.0, validator=_positive_seconds)
    """Units a second of the budget for frames that make work and carry nothing; see `budget`."""

    frame_burst: float = field(default=1000.0, validator=_positive_seconds)
    """Units that a connection may spend at once. A peer that exceeds its budget gets GOAWAY ENHANCE_YOUR_CALM."""

    stream_rate: float = field(default=1000.0, validator=validators.ge(0.0))
    """Streams a second that a server admits over all connections; more wait, the connections in turn. 0: any number."""

    stream_burst: float = field(default=10.0, validator=validators.ge(1.0))
    """Streams that a server admits at once."""

    connection_rate: float = field(default=500.0, validator=validators.ge(0.0))
    """Connections a second that a server accepts; more wait in the listener's backlog. 0: any number."""

    connection_burst: float = field(default=500.0, validator=validators.ge(1.0))
    """Connections that a server accepts at once."""

    stream_window: int = field(default=4 * 1024 * 1024, validator=validators.and_(_positive, validators.lt(2**31)))
    """Bytes a peer may send on one stream before we have read them."""

    connection_window: int = field(
        default=16 * 1024 * 1024, validator=validators.and_(validators.ge(65535), validators.lt(2**31))
    )
    """Bytes a peer may send on all streams of a connection before we have read them."""

    write_buffer: int = field(default=64 * 1024, validator=_positive)
    """Bytes that wait for the socket before senders are paused; they resume at a quarter of it."""

    handshake_timeout_seconds: float = field(default=10.0, validator=_positive_seconds)
    """The time that the TLS handshake may take, and then the time until the first bytes of HTTP/2."""

    keepalive_interval_seconds: float = field(default=30.0, validator=_positive_seconds)
    """A connection silent for this long is sent a PING; ``math.inf`` sends none."""

    keepalive_timeout_seconds: float = field(default=10.0, validator=_positive_seconds)
    """A connection that stays silent this long after a PING is closed."""

    max_connections: float = field(default=math.inf, validator=_positive_seconds)
    """Connections that a server has open at the same time; at the limit one is ended for a new one, see
    :mod:`mesh_pilot.net.rpc.shares`. Where the process may open few files, there are fewer."""

    max_handshakes: float = field(default=math.inf, validator=_positive_seconds)
    """TLS handshakes under way at the same time; more wait, in order, for as long as a handshake may take. The first of
    them takes the place of the one whose peer has been silent longest, after ``silence_seconds`` of that."""

    silence_seconds: float = field(default=2.0, validator=_positive_seconds)
    """The time that a peer has for each step of the handshake while others wait for a turn."""

    max_connection_age_seconds: float = field(default=math.inf, validator=_positive_seconds)
    """A server retires (GOAWAY) a connection this old, give or take a tenth, so that clients spread over replicas;
    ``math.inf`` never."""

    max_connection_age_grace_seconds: float = field(default=10.0, validator=validators.ge(0.0))
    """The time for which the streams of a connection that is too old may go on before they are cut."""

    retirement_rate: float = field(default=100.0, validator=_positive_seconds)
    """Connections a second that a server retires for their age; the rest become older than the limit."""


SERVER_LIMITS = Limits(stream_window=1024 * 1024, connection_window=4 * 1024 * 1024)
"""The default of servers."""

CLIENT_LIMITS = Limits(keepalive_interval_seconds=330.0)
"""The default of channels. gRPC servers disconnect clients that ping more often than every 5 minutes."""
