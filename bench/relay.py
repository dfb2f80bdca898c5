"""The cost of the agent between Envoy and control plane: the same pushes to a client that is connected directly, and
to one behind the relay of an agent, which is a separate process.

Each push is one edit, and both clients get it in one run; the time is from the edit to the arrival. Half of the edits
change an endpoint, half add a service, which State of the World answers with all clusters.

    python -m bench.relay --services 1000 --endpoints 100 --pushes 30

``--services 20 --pushes 5`` is a smoke test.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from bench.client import PATHS, Client, Counts
from bench.mesh import EXTRA, HOT_SERVICE, Mesh, edit_marker
from bench.server import OwnServer, Server, own_server
from bench.stores import Folder
from mesh_pilot.net.rpc import Cardinality, ClientCall, open_channel

PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.3
"""Between pushes: debounce, and the writing of answers to disk."""


@attrs.define
class Arrivals:
    """The arrivals of pushes at one client."""

    client: Client
    marker: bytes = b""
    at: float = 0.0
    changed: trio.Event = attrs.field(factory=trio.Event)
    both: trio.Event = attrs.field(factory=trio.Event)
    """Set once the other client has it, too: reading one's response must not delay the other's arrival."""

    async def run(self, address: str, task_status: trio.TaskStatus[None]) -> None:
        """Be an Envoy, forever; started once it has everything."""
        started = False
        async with open_channel(address) as channel:
            path, bidirectional = PATHS[self.client.variant], Cardinality.STREAM_STREAM
            async with channel.request(path, bidirectional, bytes, bytes) as call, trio.open_nursery() as nursery:
                await call.send_request()
                send, receive = trio.open_memory_channel[bytes](1000)
                nursery.start_soon(_send_all, call, receive)
                self.client.connected(send.send_nowait, keep=False)
                async for response in call:
                    now = time.monotonic()
                    if self.marker and self.marker in response:
                        self.at, self.marker = now, b""
                        self.changed.set()
                        await self.both.wait()
                    self.client.received(response, now)
                    if self.client.is_complete and not started:
                        started = True
                        task_status.started()

    def expect(self, marker: bytes) -> None:
        self.marker, self.changed, self.both = marker, trio.Event(), trio.Event()


async def _send_all(call: ClientCall[bytes, bytes], messages: trio.MemoryReceiveChannel[bytes]) -> None:
    async for message in messages:
        await call.send_message(message)


@attrs.frozen
class Pushes:
    """What was measured of one kind of push."""

    kind: str
    direct: list[float]
    relayed: list[float]
    agent_cpu: float
    """CPU seconds of the agent in all."""

    def line(self) -> str:
        added = [there - here for here, there in zip(self.direct, self.relayed, strict=True)]
        ratios = [there / here for here, there in zip(self.direct, self.relayed, strict=True)]
        return (
            f"{self.kind:32} direct {1000 * statistics.median(self.direct):7.1f} ms"
            f"  relayed {1000 * statistics.median(self.relayed):7.1f} ms"
            f"  added {1000 * statistics.median(added):6.2f} ms  ratio {statistics.median(ratios):5.3f}"
            f"  agent's CPU {1000 * self.agent_cpu / len(self.direct):6.2f} ms a push"
        )


async def measure(server: Server, agent: Server, mesh: Mesh, variant: str, pushes: int) -> list[Pushes]:
    """Both kinds of push, each so often."""
    found = []
    async with trio.open_nursery() as nursery:
        clients = [Arrivals(Client(index, variant, "ns0", Counts())) for index in (1, 2)]
        for each, address in zip(clients, (server.address, agent.address), strict=True):
            await nursery.start(each.run, address)
        for kind in ("an endpoint", "a service more"):
            await trio.sleep(2)
            before = agent.cpu_seconds()
            times: tuple[list[float], list[float]] = ([], [])
            for edit in range(1, pushes + 1):
                marker = edit_marker(edit) if kind == "an endpoint" else f"extra{edit}."
                for each in clients:
                    each.expect(marker.encode())
                if kind == "an endpoint":
                    began = server.store.write(HOT_SERVICE, mesh.service(0, edit=edit, edited=1))
                else:
                    began = server.store.write(EXTRA, mesh.extra(edit))
                with trio.fail_after(PATIENCE_SECONDS):
                    for each, into in zip(clients, times, strict=True):
                        await each.changed.wait()
                        into.append(each.at - began)
                for each in clients:
                    each.both.set()
                await trio.sleep(PAUSE_SECONDS)
            await trio.sleep(1)
            found.append(Pushes(f"{variant}: {kind}", *times, agent.cpu_seconds() - before))
        nursery.cancel_scope.cancel()
    return found


@contextmanager
def relay_process(plane: str, folder: Path) -> Iterator[Server]:
    """The relay of an agent as a process: connection, stream, answers on disk; nothing else of the agent."""
    socket = folder / "xds.sock"
    process = subprocess.Popen([sys.executable, "-m", "bench.relay_process", plane, str(folder)])
    try:
        deadline = time.monotonic() + 20
        while not socket.exists():
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError("the relay does not start")
            time.sleep(0.05)
        yield Server("agent", f"unix://{socket}", process.pid, Folder(folder))
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--pushes", type=int, default=30)
    parser.add_argument("--variants", nargs="+", default=["sotw", "delta"])
    given = parser.parse_args()
    mesh = Mesh(services=given.services, endpoints=given.endpoints, virtual_services=min(100, given.services))
    print(f"{mesh.label}, {os.cpu_count()} CPUs")
    server: OwnServer
    with own_server("mesh-pilot", mesh.files()) as server:
        server.start()
        for variant in given.variants:
            with tempfile.TemporaryDirectory() as folder, relay_process(server.address, Path(folder)) as agent:
                idle = agent.memory()[0]
                for pushes in trio.run(measure, server, agent, mesh, variant, given.pushes):
                    print(pushes.line(), flush=True)
                now, most = agent.memory()
                print(f"{variant}: agent's relay: {idle:.0f} MB idle, {now:.0f} MB after, {most:.0f} MB at most")


if __name__ == "__main__":
    main()
