"""For how long the recorder of the state holds up the event loop.

A task asks to be woken every two milliseconds and notes how late it is, while the first picture of N services is
written, and then bursts of endpoint changes. Without state nothing is written: the difference is the recorder's.
Usage: python -m bench.recorder_lag [--services 10000] [--burst 999] [--bursts 10]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import trio

from mesh_pilot.app.control_plane import control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.lib.process import long_lived, set_aside
from mesh_pilot.model.events import Endpoints, EventSender, Item, Replace, Synced, Upsert
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service, ServiceKey
from mesh_pilot.safety.state.settings import StateSettings

TICK_SECONDS = 0.002
ANYWHERE = "127.0.0.1:0"


@attrs.frozen
class Standing:
    items: int = 0
    rejected: int = 0
    synced: bool = True
    waiting_for: str = ""


class Given:
    """A source whose items the bench makes. State: where its events go."""

    name = "given"
    place = "the bench"

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = tuple(items)
        self.events: EventSender | None = None

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.events = events
        await events.send(Replace(self.name, (), self._items))
        await events.send(Synced(self.name))
        task_status.started()
        await trio.sleep_forever()

    def statistics(self) -> Standing:
        return Standing()


def service(number: int) -> Service:
    return Service(f"s{number}.test", "default", (Port(80, "http", Protocol.HTTP),))


def endpoints(number: int, port: int) -> Endpoints:
    found = tuple(Endpoint(f"10.{number >> 8 & 255}.{number & 255}.{n}", port, "http") for n in range(10))
    return Endpoints(ServiceKey(f"s{number}.test", "default"), found)


@asynccontextmanager
async def late() -> AsyncIterator[list[float]]:
    """By how many seconds the loop was late, again and again while the block runs.

    The time that threads of ours waited for a core, which other processes had, is taken off.
    """
    found: list[float] = []

    async def tick() -> None:
        while True:
            starved = starved_seconds()
            asked = time.perf_counter()
            await trio.sleep(TICK_SECONDS)
            took = time.perf_counter() - asked
            found.append(max(0.0, took - TICK_SECONDS - (starved_seconds() - starved)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        yield found
        nursery.cancel_scope.cancel()


def starved_seconds() -> float:
    """For how long threads of this process were ready to run and others ran instead; 0 where the system can't say."""
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):
            total += int(task.read_text().split()[1])
    return total / 1e9


def told(what: str, found: list[float]) -> None:
    ordered = sorted(found)
    points = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "most": 1.0}
    values = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in points.items()}
    print(
        f"  {what:32} {len(found):5} ticks ",
        "  ".join(f"{name} {value * 1000:7.2f} ms" for name, value in values.items()),
    )


async def measure(folder: Path | None, services: int, burst: int, bursts: int) -> None:
    source = Given([item for n in range(services) for item in (service(n), endpoints(n, 80))])
    settings = Settings(
        grpc_addr=ANYWHERE,
        secure_grpc_addr=ANYWHERE,
        http_addr=ANYWHERE,
        monitoring_addr=ANYWHERE,
        shutdown_seconds=0.1,
        state=StateSettings(folder=folder) if folder else None,
    )
    began = time.process_time()
    with long_lived():
        async with control_plane(settings, more_sources=[source]) as plane:
            await plane.wait_ready()
            set_aside()
            await _measure(source, burst, bursts)
    print(f"  CPU {time.process_time() - began:.2f} s")


async def _measure(source: Given, burst: int, bursts: int) -> None:
    assert source.events is not None
    async with late() as found:
        await trio.sleep(3)
    told("after the first picture", found)
    async with late() as found:
        for number in range(bursts):
            for n in range(burst):
                await source.events.send(Upsert("given", endpoints(n, 81 + number)))
            await trio.sleep(0.7)
    told(f"{bursts} bursts of {burst} endpoints", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=10_000)
    parser.add_argument("--burst", type=int, default=999)
    parser.add_argument("--bursts", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, state in (("without state", None), ("with state", Path(folder))):
            print(name)
            trio.run(measure, state, asked.services, asked.burst, asked.bursts)


if __name__ == "__main__":
    main()
