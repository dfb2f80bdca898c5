"""Attacks that fill what there is only so much of: ``python limit_attacks.py PORT SECONDS ATTACK COUNT FOLDER``.

What the plane ends returns. FOLDER has ``own.pem``, the root, and ``1.pem`` and ``1.key``, a client's certificate.
Prints one line of JSON at its end: how many connections or streams were begun, and with what reasons they ended.
"""

from __future__ import annotations

import json
import math
import resource
import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest
from google.protobuf.json_format import ParseDict

from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.net.rpc import (
    CLIENT_LIMITS,
    Cardinality,
    CertificateFiles,
    GRPCError,
    RpcError,
    client_tls,
    open_channel,
)

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
STREAMS = 100
"""What one connection may have."""
PATIENT_SECONDS = 40.0
AGAIN_SECONDS = 0.1
MOST_AGAIN = 50
"""Connections that come again, each tenth of a second."""

told: Counter[str] = Counter()


def connections(begin: bytes) -> Callable[[int, float, int, Path], None]:
    """Connections that send this, and read nothing."""

    def attack(port: int, end: float, count: int, _: Path) -> None:
        poll, held = select.poll(), {}

        def come() -> None:
            with suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", port), 5)
                sock.settimeout(0.05)
                held[sock.fileno()] = sock
                poll.register(sock, select.POLLRDHUP)
                told["begun"] += 1
                sock.sendall(begin)

        for _first in range(count):
            come()
        while time.monotonic() < end:
            for number, _event in poll.poll(0):
                poll.unregister(number)
                held.pop(number).close()
                told["ended"] += 1
            for _more in range(min(MOST_AGAIN, count - len(held))):
                come()
            time.sleep(AGAIN_SECONDS)

    return attack


def streams(
    claimed: Callable[[int], dict[str, Any]], *, plaintext: bool = False
) -> Callable[[int, float, int, Path], None]:
    """Streams of one identity, or of none, whose nodes claim this. Those of none end when all are served."""

    async def hold(port: int, end: float, count: int, folder: Path) -> None:
        shown = CertificateFiles(certificate=folder / "1.pem", key=folder / "1.key", trusted=folder / "own.pem")
        tls = None if plaintext else client_tls(shown, check_hostname=False)

        async def stream(channel: Any, number: int) -> None:
            node = {"id": "sidecar~127.0.0.1~evil.evil~evil.svc.cluster.local"} | claimed(number)
            request = DiscoveryRequest(type_url=CLUSTER, node=ParseDict(node, Node())).SerializeToString()
            while True:
                told["begun"] += 1
                try:
                    async with channel.request(ADS, Cardinality.STREAM_STREAM, bytes, bytes) as call:
                        await call.send_message(request)
                        while await call.recv_message() is not None:
                            told["responses"] += 1
                except GRPCError as error:
                    told[f"{error.status.name}: {error.message}"[:300]] += 1
                await trio.sleep(0.5)

        async def connection(first: int) -> None:
            while True:
                with suppress(RpcError, GRPCError):
                    async with (
                        open_channel(f"127.0.0.1:{port}", tls=tls, limits=CLIENT_LIMITS) as channel,
                        trio.open_nursery() as nursery,
                    ):
                        for number in range(first, min(first + STREAMS, count)):
                            nursery.start_soon(stream, channel, number)
                await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            for number in range(math.ceil(count / STREAMS)):
                nursery.start_soon(connection, number * STREAMS)
            await trio.sleep(end - time.monotonic())
            while plaintext and told["responses"] < count and time.monotonic() < end + PATIENT_SECONDS:  # noqa: ASYNC110
                await trio.sleep(AGAIN_SECONDS)
            nursery.cancel_scope.cancel()

    def attack(port: int, end: float, count: int, folder: Path) -> None:
        trio.run(hold, port, end, count, folder)

    return attack


ATTACKS: dict[str, Callable[[int, float, int, Path], None]] = {
    "silent": connections(b""),
    "half_a_hello": connections(b"\x16\x03\x01\x02\x00\x01"),
    "unread": connections(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 200),
    "idle_grpc": connections(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"),
    "fleet": streams(
        lambda number: {"id": f"sidecar~10.1.{number % 250}.1~w-{number}.evil~evil.svc.cluster.local"}, plaintext=True
    ),
    "streams": streams(lambda _: {}),
    "localities": streams(lambda number: {"locality": {"region": f"r{number}"}}),
    "entries": streams(lambda number: {"metadata": {"AUTO_REGISTER_GROUP": "any", "NETWORK": f"n{number}"}}),
}


def main() -> None:
    port, seconds, attack, count, folder = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    ATTACKS[attack](int(port), time.monotonic() + float(seconds), int(count), Path(folder))
    print(json.dumps(dict(told)))


if __name__ == "__main__":
    main()
