"""What a change of endpoints costs a client above the wire: CPU of the control plane, in this process.

    python -m bench.pushes --services 1000 --clients 100 --variant sotw --compare HEAD~20
    python -m bench.pushes --profile

Sessions over one World, with quarantine and rollouts as a control plane has them. Their calls have no wire: what is
sent is accepted at once, with bytes that the first client has made. So the figure is what a push costs from the wake-up
of a stream until its ACK is noted, the switches of its tasks included; the reducer's part is told apart. With
``--compare`` this revision and another one take turns, in processes of their own.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import math
import os
import pstats
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bench.client import PATHS, Client, Counts
from bench.mesh import Mesh
from bench.server import ROOT, checkout
from mesh_pilot.cli.lib.logs import LogFormat, configure
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.istio.reading import yaml
from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.model.config import ConfigError, Origin
from mesh_pilot.model.events import Synced, Upsert
from mesh_pilot.model.log_levels import parse_levels
from mesh_pilot.net.rpc import Handler
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.rollout.controller import RolloutController
from mesh_pilot.world import World
from mesh_pilot.xds.ads.server import XdsServer

SOURCE = "bench"
PROFILED = 20
"""Changes whose function calls are counted."""


def upserts(text: str) -> Iterator[Upsert]:
    """The objects in a file as events."""
    for document in yaml.load(text, Origin(SOURCE)):
        assert not isinstance(document, ConfigError)
        yield Upsert(SOURCE, decode_document(document, origin=Origin(SOURCE), default_namespace="ns0"))


class ShortCall:
    """A call without a wire. A client talks as Envoy does until it has everything; then it accepts what it is sent.

    Its answer arrives in another pass of the loop, as one does that comes over a wire.
    """

    def __init__(self, number: int, variant: str, acks: dict[bytes, bytes], wire: Wire) -> None:
        self.peer = SimpleNamespace(
            address=f"127.0.0.1:{number}",
            tls=False,
            since=datetime.now(UTC),
            certificate_end=math.inf,
            spiffe_ids=(),
        )
        self.client = Client(number, variant, "ns0", Counts())
        self.is_complete = False
        """True: from now on it only accepts."""
        self._acks = acks
        """The answers that were given to messages: they are the same for all clients."""
        self._wire = wire
        self._inbox: deque[bytes] = deque()
        self._arrivals = trio.lowlevel.ParkingLot()
        self._take: Callable[[bytes], bool] = lambda message: False
        self._on_news: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self.client.connected(self._answer, keep=False)

    def when_retiring(self, callback: object) -> None: ...

    @property
    def has_message(self) -> bool:
        return bool(self._inbox)

    @property
    def is_readable(self) -> bool:
        return self.has_message

    def receive_at_once(self, take: Callable[[bytes], bool], on_news: Callable[[], None], /) -> None:
        self._take, self._on_news = take, on_news

    def send_at_once(self, message: bytes, /) -> bool:
        self._send(message)
        return True

    async def recv_message(self) -> bytes:
        while not self._inbox:
            await self._arrivals.park()
        return self._inbox.popleft()

    async def send_message(self, message: bytes, /) -> None:
        self._send(message)

    def _send(self, message: bytes) -> None:
        if not self.is_complete:
            self.client.received(message, 0)
            return
        ack = self._acks.get(message)
        if ack is None:
            self.client.received(message, 0)
            self._acks[message] = self._wire.latest
            return
        self._answer(bytes(memoryview(ack)))  # a copy, as each client's bytes are its own

    def _answer(self, request: bytes) -> None:
        if not self.is_complete:
            self._keep(request)
        else:
            self._wire.carry(self, request)

    def arrive(self, request: bytes) -> None:
        """The client's answer is there."""
        if self._inbox or not self._take(request):
            self._keep(request)

    def _keep(self, request: bytes) -> None:
        self._inbox.append(request)
        self._arrivals.unpark()
        self._on_news()


class Wire:
    """Carries answers to their calls in the next pass of the loop, as the server's one reader does."""

    def __init__(self) -> None:
        self.latest = b""
        self._carried: deque[tuple[ShortCall, bytes]] = deque()
        self._arrivals = trio.lowlevel.ParkingLot()

    def carry(self, call: ShortCall, request: bytes) -> None:
        self.latest = request
        self._carried.append((call, request))
        self._arrivals.unpark()

    async def run(self) -> None:
        while True:
            while self._carried:
                call, request = self._carried.popleft()
                call.arrive(request)
            await self._arrivals.park()


class Plane:
    """A World of services, an xDS server on it with what a control plane has around it, and its clients."""

    def __init__(self, mesh: Mesh, variant: str, clients: int, clock: MockClock) -> None:
        self.mesh = mesh
        self.clock = clock
        self.world = World()
        self.world.expect(SOURCE)
        self.world.apply([*(event for text in mesh.files().values() for event in upserts(text)), Synced(SOURCE)])
        catalog = WorldCatalog(self.world)
        self.quarantine = QuarantineController(self.world, catalog.scope_of)
        self.rollouts = RolloutController(self.world, self.quarantine)
        self.server = XdsServer(catalog, identifier="bench", answers=self.rollouts)
        acks: dict[bytes, bytes] = {}
        self.wire = Wire()
        self.calls = [ShortCall(number, variant, acks, self.wire) for number in range(clients)]
        self.handler = cast(Handler, self.server.__mapping__()[PATHS[variant]])

    async def connect(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.wire.run)
        for call in self.calls:
            call.begin()
            nursery.start_soon(self.handler.func, call)
        await wait_all_tasks_blocked(0.05)
        for call in self.calls:
            assert call.client.is_complete, call.client
            call.is_complete = True
        self.clock.jump(60)  # no first response is watched any more
        await wait_all_tasks_blocked()

    async def change(self, edit: int, profiler: cProfile.Profile | None = None) -> tuple[float, float]:
        """Another endpoint of the first service: the CPU seconds of the reducer, and of all clients together."""
        (event,) = upserts(self.mesh.service(0, edit=edit, edited=1))
        acks = self.server.status.totals.acks.total()
        began = time.process_time()
        revision = self.world.apply([event])
        self.rollouts.revised(revision.changed)
        self.quarantine.revised(revision.changed)
        self.server.status.published(trio.current_time(), revision.number)
        applied = time.process_time()
        if profiler is not None:
            profiler.enable()
        await wait_all_tasks_blocked()
        done = time.process_time()
        if profiler is not None:
            profiler.disable()
        assert self.server.status.totals.acks.total() == acks + len(self.calls)
        return applied - began, done - applied


async def measure(
    services: int, clients: int, variant: str, changes: int, clock: MockClock, *, profile: bool
) -> dict[str, float]:
    """Microseconds of CPU: a client's for a change, and the reducer's for a change, the least of all changes; and the
    function calls that a change costs a client."""
    plane = Plane(Mesh(services=services, virtual_services=services), variant, clients, clock)
    async with trio.open_nursery() as nursery:
        await plane.connect(nursery)
        for edit in range(1, 6):
            await plane.change(edit)
        gc.collect()
        gc.freeze()
        spent = [await plane.change(edit) for edit in range(6, 6 + changes)]
        profiler = cProfile.Profile(time.process_time)
        for edit in range(6 + changes, 6 + changes + PROFILED):
            await plane.change(edit, profiler)
        stats = pstats.Stats(profiler, stream=sys.stderr)
        if profile:
            stats.sort_stats("tottime").print_stats(45)
        nursery.cancel_scope.cancel()
    reducer, streams = zip(*spent, strict=True)
    return {
        "client": min(streams) / clients * 1e6,
        "reducer": min(reducer) * 1e6,
        "calls": cast(int, stats.total_calls) / PROFILED / clients,  # type: ignore[attr-defined]
    }


def in_process(source: Path, options: list[str]) -> dict[str, float]:
    """One measurement of the code in a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    command = [sys.executable, "-m", "bench.pushes", *options, "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(revision: str, rounds: int, options: list[str]) -> dict[str, list[dict[str, float]]]:
    """This code and that of a revision in turns."""
    found: dict[str, list[dict[str, float]]] = {"here": [], revision: []}
    with checkout(revision) as tree:
        for _ in range(rounds):
            found["here"].append(in_process(ROOT, options))
            found[revision].append(in_process(tree, options))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--variant", choices=PATHS, default="delta")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--compare", metavar="REVISION", help="measure this git revision, too")
    parser.add_argument("--rounds", type=int, default=3, help="with --compare: how often each")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    configure(parse_levels("warning"), LogFormat.TEXT, sys.stderr)
    if given.compare:
        names = ("services", "clients", "variant", "changes")
        options = [f"--{name}={getattr(given, name)}" for name in names]
        for name, rounds in compare(given.compare, given.rounds, options).items():
            show(name, {key: min(each[key] for each in rounds) for key in rounds[0]})
        return
    clock = MockClock()
    found = trio.run(measure_with, given, clock, clock=clock)
    if given.json:
        print(json.dumps(found))
    else:
        show("here", found)


async def measure_with(given: Any, clock: MockClock) -> dict[str, float]:
    return await measure(given.services, given.clients, given.variant, given.changes, clock, profile=given.profile)


def show(name: str, found: dict[str, float]) -> None:
    client, reducer, calls = found["client"], found["reducer"], found["calls"]
    print(
        f"{name}: {client:.1f} µs CPU, {calls:.0f} calls a client for a change; the reducer {reducer:.0f} µs a change"
    )


if __name__ == "__main__":
    main()
