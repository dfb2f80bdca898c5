"""The cost of open web pages to pushes: the same pushes with and without pages that look at the plane.

A page is here what the plane sees of one: a stream of events, and after each event, at most every two seconds, the
requests of its view. No browser runs, because it would share the cores with the plane. Rounds with and without pages
take turns, and the times are from an edit to its arrival at each proxy.

    python -m bench.page --services 1000 --proxies 200 --pages 5 --rounds 5 --pushes 10

``--services 20 --proxies 4 --rounds 1 --pushes 3`` is a smoke test.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
import trio

from bench.crew import Crew
from bench.mesh import HOT_SERVICE, Mesh, edit_marker
from bench.server import OwnServer, own_server

REFRESH_SECONDS = 2.0
"""Between two readings of a view, as in ``app.js``."""

PATIENCE_SECONDS = 60.0

VIEWS: Sequence[Sequence[str]] = (
    ("now",),
    ("proxies?state=ill&sort=severity&limit=100", "proxy-groups"),
    ("services?limit=100",),
    ("graph",),
    ("objects?limit=100",),
)
"""The requests of the views, to be followed by pages in turn."""


async def look(base: str, view: Sequence[str]) -> None:
    """Be a page, forever."""
    limits = httpx.Timeout(PATIENCE_SECONDS)
    async with httpx.AsyncClient(trust_env=False, timeout=limits) as client, trio.open_nursery() as nursery:
        changed = trio.Event()

        async def read() -> None:
            nonlocal changed
            while True:
                for path in view:
                    (await client.get(f"{base}/api/v1/{path}")).read()
                await trio.sleep(REFRESH_SECONDS)
                await changed.wait()
                changed = trio.Event()

        nursery.start_soon(read)
        while True:
            async with client.stream("GET", f"{base}/api/v1/events") as events:
                async for line in events.aiter_lines():
                    if line.startswith("event:"):
                        changed.set()


async def look_all(base: str, count: int) -> None:
    """Be so many pages, forever."""
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(look, base, VIEWS[number % len(VIEWS)])


@contextmanager
def pages(base: str, count: int) -> Iterator[None]:
    """So many open pages, in their own process."""
    if not count:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", "bench.page", "--look", base, "--pages", str(count)])
    try:
        time.sleep(3)
        yield
        assert process.poll() is None, "the pages have ended"
    finally:
        process.kill()
        process.wait()


def push(server: OwnServer, crew: Crew, mesh: Mesh, edit: int) -> list[float]:
    """One edit of endpoints; the seconds until each proxy had it."""
    crew.expect([("EDS", edit_marker(edit), 1)])
    began = server.store.write(HOT_SERVICE, mesh.service(0, edit=edit, edited=1))
    times = crew.collect(PATIENCE_SECONDS)
    assert not times.missing
    return [at - began for at in times.at]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--proxies", type=int, default=200)
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pushes", type=int, default=10, help="in each round")
    parser.add_argument("--look", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.look:
        trio.run(look_all, given.look, given.pages)
    mesh = Mesh(services=given.services, virtual_services=min(100, given.services))
    print(f"{mesh.label}, {given.proxies} proxies, {os.cpu_count()} CPUs")
    found: dict[int, list[float]] = {0: [], given.pages: []}
    edit = 0
    with own_server("mesh-pilot", mesh.files()) as server:
        server.start()
        with Crew(server.address) as crew:
            crew.open(given.proxies, "delta", ["ns0"])
            crew.complete(PATIENCE_SECONDS)
            for _ in range(given.rounds):
                for count, times in found.items():
                    with pages(f"http://{server.http}", count):
                        for _ in range(given.pushes):
                            edit += 1
                            times += push(server, crew, mesh, edit)
                            time.sleep(0.3)
    p50, p99 = ({count: _quantile(times, part) for count, times in found.items()} for part in (50, 99))
    for count in found:
        print(f"{count} pages: median {1000 * p50[count]:.1f} ms, p99 {1000 * p99[count]:.1f} ms")
    print(f"ratio: median {p50[given.pages] / p50[0]:.3f}, p99 {p99[given.pages] / p99[0]:.3f}")


def _quantile(times: Sequence[float], part: int) -> float:
    return statistics.quantiles(times, n=100)[part - 1]


if __name__ == "__main__":
    main()
