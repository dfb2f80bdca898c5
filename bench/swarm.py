"""The swarm: a process with many clients, told what to do by lines of JSON on its standard input, one answer a line.

Not for people: ``crew.py`` starts it. Times are of ``time.monotonic()``, which all processes of a machine share.
"""

from __future__ import annotations

import gc
import json
import resource
import selectors
import sys
import time
from collections.abc import Callable
from typing import Any

import attrs

from bench.client import PATHS, Client, Counts, Role
from bench.held import Condition, dangling
from bench.http2 import GrpcStream
from bench.wire import CDS, EDS, LDS, RDS, SHORT, TYPES, VHDS


class Swarm:
    """All clients of one process. Mutable state: the clients, their streams, and what they are watched for."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)
        self.counts = Counts()
        self.clients: list[Client] = []
        self.streams: dict[Client, GrpcStream] = {}
        self.lost = 0
        """Streams that the server ended."""
        self._selector = selectors.DefaultSelector()
        self._conditions: list[Condition] = []
        self._met: dict[Client, float] = {}
        self._watched: set[Client] = set()
        self._heard_at = 0.0

    # -- the clients

    def open(self, count: int, variant: str, namespaces: list[str]) -> None:
        """More clients, connected one after the other, spread over namespaces."""
        for _ in range(count):
            index = len(self.clients)
            client = Client(index, variant, namespaces[index % len(namespaces)], self.counts)
            self.clients.append(client)
            self._connect(client, keep=False)
            self.pump(0)

    def disconnect(self) -> None:
        for client in list(self.streams):
            self._drop(client)
        self.lost = 0

    def reconnect(self, keep: bool) -> None:
        for client in self.clients:
            self._connect(client, keep=keep)
            self.pump(0)

    def set_role(self, index: int, role: str) -> None:
        client = self.clients[index]
        client.role = Role(role)
        stream = self.streams[client]
        is_read = stream.socket in self._selector.get_map()
        if client.role is Role.STUCK and is_read:
            self._selector.unregister(stream.socket)
        elif client.role is not Role.STUCK and not is_read:
            self._selector.register(stream.socket, selectors.EVENT_READ, client)

    def _connect(self, client: Client, *, keep: bool) -> None:
        stream = GrpcStream(self.address, PATHS[client.variant])
        self.streams[client] = stream
        self._selector.register(stream.socket, selectors.EVENT_READ, client)
        client.connected(stream.send, keep=keep)

    def _drop(self, client: Client) -> None:
        stream = self.streams.pop(client)
        if stream.socket in self._selector.get_map():
            self._selector.unregister(stream.socket)
        stream.close()

    # -- the loop

    def pump(self, seconds: float) -> None:
        """Take in what has come, waiting at most so long for it."""
        for key, _ in self._selector.select(seconds):
            client: Client = key.data
            stream = self.streams[client]
            for data in stream.receive():
                self._heard_at = time.monotonic()
                type_url = client.received(data, self._heard_at)
                if self._conditions and client in self._watched and client not in self._met:
                    self._look(client, type_url)
            if stream.ended:
                self.lost += 1
                self._drop(client)

    def _look(self, client: Client, type_url: str) -> None:
        """True if a client has now what is waited for."""
        if any(c.type_url == type_url for c in self._conditions) and all(
            client.types[c.type_url].held.meets(c) for c in self._conditions
        ):
            self._met[client] = time.monotonic()

    def pump_until(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done() and (left := deadline - time.monotonic()) > 0:
            self.pump(min(left, 0.05))

    # -- what may be asked for

    def expect(self, conditions: list[list[Any]], namespace: str) -> None:
        """Note from now on when each client (of a namespace, or all) has this; a client that stalls or refuses is not
        waited for."""
        self._conditions = [Condition(TYPES[kind], marker.encode(), count) for kind, marker, count in conditions]
        self._met = {}
        self._watched = {c for c in self.clients if c.role is Role.NORMAL and namespace in ("", c.namespace)}

    def collect(self, seconds: float) -> dict[str, Any]:
        """Wait until all have it."""
        self.pump_until(lambda: len(self._met) >= len(self._watched), seconds)
        times = [self._met[client] for client in self._watched if client in self._met]
        self._conditions = []
        return {"times": times, "missing": len(self._watched) - len(times)}

    def complete(self, seconds: float) -> dict[str, Any]:
        """Wait until every client has all that it was told of on its stream."""
        waited = [client for client in self.clients if client.role is Role.NORMAL]
        self.pump_until(lambda: all(client.complete_at for client in waited), seconds)
        times = [client.complete_at for client in waited if client.complete_at]
        return {"times": times, "missing": len(waited) - len(times)}

    def quiet(self, quiet_seconds: float, seconds: float) -> dict[str, Any]:
        """Wait until nothing has come for a while."""
        start = time.monotonic()
        self.pump_until(lambda: time.monotonic() - max(self._heard_at, start) >= quiet_seconds, seconds)
        return {"last": [client.last_at for client in self.clients if client.last_at]}

    def count(self, reset: bool) -> dict[str, Any]:
        told = attrs.asdict(self.counts)
        told["by_type"] = {SHORT[url]: count for url, count in self.counts.by_type.items()}
        told |= {"lost": self.lost, "connected": len(self.streams), "cpu": time.process_time()}
        if reset:
            for field in attrs.fields(Counts):
                empty = Counts()
                setattr(self.counts, field.name, getattr(empty, field.name))
        return told

    def check(self) -> dict[str, Any]:
        """Every client against itself: references that lead nowhere, and how many different states there are."""
        states: dict[tuple[Any, ...], int] = {}
        for client in self.clients:
            if client.role is Role.NORMAL:
                key = tuple(client.types[t].held for t in (CDS, EDS, LDS, RDS, VHDS))
                states[key] = states.get(key, 0) + 1
        problems = [problem for state in states for problem in dangling(*state)]
        sizes = [[len(held.items) for held in state] for state in states]
        return {"states": len(states), "sizes": sizes[:4], "problems": problems[:20], "problem_count": len(problems)}


def main() -> None:
    """Do what comes on standard input until it ends."""
    host, _, port = sys.argv[1].rpartition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 20_000)), hard))
    gc.set_threshold(100_000, 20, 20)
    swarm = Swarm(host, int(port))
    lines = selectors.DefaultSelector()
    lines.register(sys.stdin.buffer.fileno(), selectors.EVENT_READ)
    reader = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    while True:
        if not lines.select(0):
            swarm.pump(0.01)
            continue
        line = reader.readline()
        if not line:
            return
        command = json.loads(line)
        answer = getattr(swarm, command.pop("do"))(**command)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
