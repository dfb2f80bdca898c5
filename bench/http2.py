"""One gRPC stream on its own connection, with as little HTTP/2 as that takes: the swarm is not to be measured.

Windows are opened as far as they go at the start, response headers are not decoded, messages are handed over as bytes.
Source of the framing: RFC 9113; of the messages in it: the document "gRPC over HTTP2".
"""

from __future__ import annotations

import socket
from collections import deque

from hpack import Encoder

_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW = 0, 1, 4, 6, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_LARGEST_WINDOW = 2**31 - 1
_TOP_UP = 2**29
"""Bytes received after which the windows are opened again."""
_STREAM = 1
RECEIVE = 1 << 18


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def opening(path: str, authority: str) -> bytes:
    """All that a client sends before its first message."""
    settings = (4).to_bytes(2, "big") + _LARGEST_WINDOW.to_bytes(4, "big")
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", authority)]
    headers = Encoder().encode([*fields, ("te", "trailers"), ("content-type", "application/grpc")])
    return b"".join(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            frame(_SETTINGS, 0, 0, settings),
            frame(_WINDOW, 0, 0, (_LARGEST_WINDOW - 65535).to_bytes(4, "big")),
            frame(_HEADERS, _END_HEADERS, _STREAM, headers),
        )
    )


class GrpcStream:
    """A connected stream; give its socket to a selector and call ``receive`` when it is readable.

    Mutable state: what was received of a frame and of a message, and what waits for the server's windows to be sent.
    """

    def __init__(self, address: tuple[str, int], path: str) -> None:
        self.socket = socket.create_connection(address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ended = False
        """True if the server ended the stream or the connection."""
        self._frames = bytearray()
        self._message = bytearray()
        self._received = 0
        self._connection_window = 65535
        self._stream_window = 65535
        self._initial_window = 65535
        self._largest_frame = 16384
        self._waiting: deque[bytes] = deque()
        self.socket.sendall(opening(path, f"{address[0]}:{address[1]}"))

    def close(self) -> None:
        self.socket.close()

    def send(self, message: bytes) -> None:
        """Queue a message and send what the windows allow. Blocks only while the server does not read its socket."""
        data = b"\0" + len(message).to_bytes(4, "big") + message
        size = self._largest_frame
        self._waiting.extend(data[at : at + size] for at in range(0, len(data), size))
        self._send_waiting()

    def _send_waiting(self) -> None:
        out = []
        while self._waiting and len(self._waiting[0]) <= min(self._connection_window, self._stream_window):
            payload = self._waiting.popleft()
            self._connection_window -= len(payload)
            self._stream_window -= len(payload)
            out.append(frame(_DATA, 0, _STREAM, payload))
        if out:
            self._write(b"".join(out))

    def _write(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            self.ended = True

    def receive(self) -> list[bytes]:
        """Read once from the socket; the messages that are complete now."""
        try:
            data = self.socket.recv(RECEIVE)
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return []
        frames, messages = self._frames, list[bytes]()
        frames += data
        at, held = 0, len(frames)
        while held - at >= 9 and held - at >= (size := 9 + int.from_bytes(frames[at : at + 3], "big")):
            kind = frames[at + 3]
            if kind == _DATA:
                self._message += memoryview(frames)[at + 9 : at + size]
                self._received += size - 9
                self._take_messages(messages)
            else:
                on_connection = not any(frames[at + 5 : at + 9])
                self._control(kind, frames[at + 4], bytes(frames[at + 9 : at + size]), on_connection)
            at += size
        del frames[:at]
        if self._received > _TOP_UP:
            more = self._received.to_bytes(4, "big")
            self._write(frame(_WINDOW, 0, 0, more) + frame(_WINDOW, 0, _STREAM, more))
            self._received = 0
        return messages

    def _take_messages(self, messages: list[bytes]) -> None:
        held = self._message
        while len(held) >= 5 and len(held) >= (size := 5 + int.from_bytes(held[1:5], "big")):
            messages.append(bytes(memoryview(held)[5:size]))
            del held[:size]

    def _control(self, kind: int, flags: int, payload: bytes, on_connection: bool) -> None:
        match kind:
            case 1:  # HEADERS: with END_STREAM they are trailers
                self.ended = self.ended or bool(flags & _END_STREAM)
            case 3 | 7:  # RST_STREAM, GOAWAY
                self.ended = True
            case 4 if not flags & _ACK:
                self._settings(payload)
                self._write(frame(_SETTINGS, _ACK, 0, b""))
            case 6 if not flags & _ACK:
                self._write(frame(_PING, _ACK, 0, payload))
            case 8:
                if on_connection:
                    self._connection_window += int.from_bytes(payload, "big")
                else:
                    self._stream_window += int.from_bytes(payload, "big")
                self._send_waiting()

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            value = int.from_bytes(payload[at + 2 : at + 6], "big")
            if payload[at : at + 2] == b"\0\4":
                self._stream_window += value - self._initial_window
                self._initial_window = value
        self._send_waiting()
