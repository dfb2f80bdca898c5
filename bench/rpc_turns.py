"""Turns a second of the gRPC server: on each of N streams the server sends a message, the client answers, and so on.

The client is a process of its own that speaks just enough HTTP/2 with frames built beforehand, so that the server is
what is measured. Usage: python bench/rpc_turns.py [--streams 30] [--size 500] [--seconds 3]
"""

from __future__ import annotations

import argparse
import selectors
import socket
import struct
import sys
import time
from functools import partial

import trio
from hpack import Encoder
from hyperframe.frame import HeadersFrame, SettingsFrame, WindowUpdateFrame

from mesh_pilot.net.rpc import Cardinality, Handler, ServerStream, open_listeners, serve

PATH = "/bench.Turns/Run"


class Turns:
    """Sends a message, waits for the answer, again."""

    def __init__(self, size: int) -> None:
        self.message = bytes(size)
        self.turns = 0

    def __mapping__(self) -> dict[str, Handler]:
        return {PATH: Handler(self.run, Cardinality.STREAM_STREAM, bytes, bytes)}

    async def run(self, stream: ServerStream[bytes, bytes]) -> None:
        while True:
            await stream.send_message(self.message)
            await stream.recv_message()
            self.turns += 1


def opening() -> bytes:
    """All that a client sends before its first message."""
    settings = SettingsFrame(0)
    settings.settings = {SettingsFrame.INITIAL_WINDOW_SIZE: 2**31 - 1}
    window = WindowUpdateFrame(0)
    window.window_increment = 2**31 - 1 - 65535
    headers = HeadersFrame(1)
    headers.flags.add("END_HEADERS")
    fields = [(":method", "POST"), (":scheme", "http"), (":path", PATH), (":authority", "bench")]
    headers.data = Encoder().encode([*fields, ("te", "trailers"), ("content-type", "application/grpc")])
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings.serialize() + window.serialize() + headers.serialize()


def client(port: int, streams: int, size: int) -> None:
    """Answer every message of every stream, a connection each, until the server hangs up."""
    answer = (
        struct.pack(">I", size + 5)[1:] + b"\0\0" + struct.pack(">I", 1) + struct.pack(">BI", 0, size) + bytes(size)
    )
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(opening())
        selector.register(sock, selectors.EVENT_READ, bytearray())
    while selector.get_map():
        for key, _ in selector.select():
            connection, buffer = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            try:
                received = connection.recv(65536)
            except ConnectionResetError:
                received = b""
            if not received:
                selector.unregister(connection)
                continue
            buffer += received
            while len(buffer) >= 9 and len(buffer) >= (end := 9 + int.from_bytes(buffer[:3], "big")):
                if buffer[3] == 0:
                    connection.sendall(answer)
                del buffer[:end]


async def main(streams: int, size: int, seconds: float) -> None:
    """Run the server here, the client in another process, and print the figure."""
    service = Turns(size)
    async with trio.open_nursery() as nursery:
        listeners = await open_listeners("127.0.0.1:0")
        server = await nursery.start(partial(serve, [service], listeners))
        port = server.addresses[0].rpartition(":")[2]
        command = [sys.executable, __file__, "--client", port, "--streams", str(streams), "--size", str(size)]
        await nursery.start(trio.run_process, command)
        await trio.sleep(0.7)
        before, cpu, clock = service.turns, time.process_time(), time.perf_counter()
        await trio.sleep(seconds)
        turns, cpu, clock = service.turns - before, time.process_time() - cpu, time.perf_counter() - clock
        print(
            f"{turns / clock:,.0f} turns/s on {streams} streams of {size} bytes; {cpu / turns * 1e6:.1f} µs CPU a turn"
        )
        await server.drain(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=30)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments.client, arguments.streams, arguments.size)
    else:
        trio.run(main, arguments.streams, arguments.size, arguments.seconds)
