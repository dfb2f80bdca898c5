"""The bounds a server or channel holds its peers to."""

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

    max_concurrent_streams: int = field(default=1000, validator=_positive)
    """Streams that one connection may have open; more are refused with REFUSED_STREAM."""

    stream_window: int = field(default=4 * 1024 * 1024, validator=validators.and_(_positive, validators.lt(2**31)))
    """Bytes a peer may send on one stream before we have read them."""

    connection_window: int = field(
        default=16 * 1024 * 1024, validator=validators.and_(validators.ge(65535), validators.lt(2**31))
    )
    """Bytes a peer may send on all streams of a connection before we have read them."""

    write_buffer: int = field(default=64 * 1024, validator=_positive)
    """Bytes that wait for the socket before senders are paused; they resume at a quarter of it."""

    handshake_timeout_seconds: float = field(default=10.0, validator=_positive_seconds)
    """How long the TLS handshake may take, and then how long until the first bytes of HTTP/2."""

    keepalive_interval_seconds: float = field(default=30.0, validator=_positive_seconds)
    """A connection silent for this long is sent a PING; ``math.inf`` sends none."""

    keepalive_timeout_seconds: float = field(default=10.0, validator=_positive_seconds)
    """A connection that stays silent this long after a PING is closed."""

    max_connection_age_seconds: float = field(default=math.inf, validator=_positive_seconds)
    """A server drains (GOAWAY) a connection this old, so that clients spread over replicas; ``math.inf`` never."""

    max_connection_age_grace_seconds: float = field(default=10.0, validator=validators.ge(0.0))
    """How long the streams of a connection that is too old may go on before they are cut."""


SERVER_LIMITS = Limits()
"""What a server has unless told otherwise."""

CLIENT_LIMITS = Limits(keepalive_interval_seconds=330.0)
"""What a channel has unless told otherwise: gRPC servers hang up on clients that ping more than every 5 minutes."""
