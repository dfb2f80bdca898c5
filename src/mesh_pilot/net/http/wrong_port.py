"""The response to HTTP/2 clients on a port that serves HTTP/1.1: mostly gRPC clients with a wrong address.

A gRPC client shows the status message of its call to the user, so the right address is in that message. Other HTTP/2
clients get a 505 with the same text.
"""

from __future__ import annotations

from urllib.parse import quote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import trio
from grpclib.const import Status
from h2.errors import ErrorCodes

from mesh_pilot.net.http.tls import TlsStream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every HTTP/2 client (RFC 9113, 3.4)."""

_ANSWERS = 10
"""Calls answered before the connection is closed: a client may retry with other versions of a service."""

_GOODBYE_SECONDS = 2.0

_MOST_BYTES = 256 * 1024
"""Bytes read from a client. Without a limit h2 would buffer a frame of up to 16 MB."""

_READ_SIZE = 16 * 1024
_LINGER_BYTES = 8 * 1024 * 1024


async def refuse_http2(stream: trio.SocketStream | TlsStream, received: bytes, text: str, *, seconds: float) -> None:
    """Answer requests with ``text`` for at most ``seconds``, then send a GOAWAY; the caller closes the stream.

    ``received`` is what was read already, from the preface on. Costs no more than one HTTP/2 connection's windows.
    Raises trio.BrokenResourceError if the client is gone.
    """
    config = h2.config.H2Configuration(client_side=False, header_encoding=None)
    connection = h2.connection.H2Connection(config)
    connection.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: _ANSWERS})
    connection.initiate_connection()
    data = received
    answers_left = _ANSWERS
    bytes_left = _MOST_BYTES
    with trio.move_on_after(seconds):
        while data and answers_left > 0 and bytes_left > 0:
            bytes_left -= len(data)
            try:
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        answers_left = answers_left - 1 if _answer(connection, event, text) else 0
            except h2.exceptions.ProtocolError:
                break
            await stream.send_all(connection.data_to_send())
            if answers_left > 0:
                data = await stream.receive_some(_READ_SIZE)
    with trio.move_on_after(_GOODBYE_SECONDS):
        connection.close_connection(additional_data=text.encode())
        await stream.send_all(connection.data_to_send())
        await linger(stream)


async def linger(stream: trio.SocketStream | TlsStream) -> None:
    """Half-close, and read what the client still sends. Closing with unread bytes would reset the connection, and the
    client's system would drop a response that it has not read."""
    await stream.send_eof()
    size = 0
    while size < _LINGER_BYTES and (data := await stream.receive_some(_READ_SIZE)):
        size += len(data)


def _answer(connection: h2.connection.H2Connection, request: h2.events.RequestReceived, text: str) -> bool:
    """Answer a request; true if it is a gRPC call, after which others may follow."""
    stream_id = request.stream_id
    assert stream_id is not None
    headers = dict(request.headers or ())
    if headers.get(b"content-type", b"").startswith(b"application/grpc"):
        status = str(Status.UNIMPLEMENTED.value)
        trailers = [
            (":status", "200"),
            ("content-type", "application/grpc"),
            ("grpc-status", status),
            ("grpc-message", quote(text, safe=" !\"#$&'()*+,/:;<=>?@[]^_`{|}~")),
        ]
        connection.send_headers(stream_id, trailers, end_stream=True)
        if request.stream_ended is None:
            connection.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        return True
    body = f"{text}\n".encode()
    plain = [
        (":status", "505"),
        ("content-type", "text/plain; charset=utf-8"),
        ("content-length", str(len(body))),
        ("x-content-type-options", "nosniff"),
    ]
    connection.send_headers(stream_id, plain)
    connection.send_data(stream_id, body, end_stream=True)
    return False
