"""The steps of the demo, under continuous traffic: start, change a rule, break it, lose a backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mesh_pilot.cli.demo.envoy_process import EnvoyProcess
from mesh_pilot.cli.demo.stage import Stage
from mesh_pilot.cli.demo.traffic import Tally, keep_asking
from mesh_pilot.explain.analysis.object_problems import rejected_lines

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""Timeout for steps that should take a second or two."""

WINDOW_REQUESTS = 200
"""Requests through each Envoy in a table."""

SLACK = 9.0
"""Tolerated deviation of a split of that many random choices, in per cent: over four standard deviations."""


class StoryError(Exception):
    """A step of the demo did not have the expected result."""


@asynccontextmanager
async def traffic(stage: Stage) -> AsyncIterator[Tally]:
    """Requests through every Envoy for the length of the block."""
    tally = Tally()
    async with trio.open_nursery() as nursery:
        for door in stage.doors:
            tally.answers[door.name] = Counter()
            nursery.start_soon(keep_asking, door, tally)
        yield tally
        nursery.cancel_scope.cancel()


async def run_story(stage: Stage, tally: Tally, screen: Screen) -> None:
    """All steps. Raises StoryError if one fails."""
    await _show_start(stage, screen)
    await _show_split(tally, screen, "The VirtualService says: 90 % to v1, 10 % to v2", v2_percent=10)
    change_ms = await _change(stage, tally, screen)
    await _break(stage, tally, screen)
    ejected_seconds = await _lose_a_backend(stage, tally, screen)
    screen.step("In the end")
    screen.write(f"a changed rule was with every Envoy after {change_ms:.0f} ms")
    screen.write("a broken file broke nothing")
    screen.write(f"a dead backend was out after {ejected_seconds:.1f} s")
    await _count(stage, tally, screen)


async def _show_start(stage: Stage, screen: Screen) -> None:
    where = stage.plane.addresses
    screen.step("Start: a control plane, three backends, two Envoys")
    screen.write(f"control plane  xDS on {where.grpc}, web page http://{where.http}/")
    screen.write(f"configuration  {stage.sample.config}")
    ports = ", ".join(f"{name} on {backend.port}" for name, backend in stage.backends.items())
    screen.write(f"backends       {ports}")
    for door in stage.doors:
        listed = await stage.envoys[door.name].get("/server_info")
        version = listed.json()["version"].split("/")[1]
        screen.write(f"{door.name:<14} Envoy {version}: http://{door.address}/ with host {door.host}")


async def _show_split(tally: Tally, screen: Screen, title: str, *, v2_percent: float) -> None:
    screen.step(title)
    await _watch(tally, screen)
    _expect(abs(tally.share("v2") - v2_percent) < SLACK, f"v2 got {tally.share('v2'):.0f} %, not {v2_percent:.0f} %")


async def _change(stage: Stage, tally: Tally, screen: Screen) -> float:
    """Returns how many milliseconds passed from the save to the last ACK."""
    screen.step("Edit it to 50 / 50 and save")
    before = stage.route_versions()
    saved = datetime.now(UTC)
    stage.sample.edit(stage.sample.traffic, ("weight: 90", "weight: 50"), ("weight: 10", "weight: 50"))
    taken = await _soon(_now(lambda: stage.routes_taken_since(before)), "both Envoys take the new routes")
    after_ms = {name: (at - saved).total_seconds() * 1000 for name, at in sorted(taken.items())}
    for name, milliseconds in after_ms.items():
        screen.good(f"{name}: accepted (ACK) {milliseconds:.0f} ms after the save")
    await _watch(tally, screen)
    _expect(abs(tally.share("v2") - 50) < SLACK, f"v2 got {tally.share('v2'):.0f} %, not 50 %")
    return max(after_ms.values())


async def _break(stage: Stage, tally: Tally, screen: Screen) -> None:
    screen.step("Break the YAML: weight: 50 becomes weight: half")
    world, asked = stage.plane.state.world, tally.requests
    stage.sample.edit(stage.sample.traffic, ("weight: 50", "weight: half"))
    refused = await _soon(_now(world.rejections), "the error is found")
    for line in (line for rejected in refused for line in rejected_lines(rejected)):
        place = line["where"].removeprefix(f"{stage.sample.config}/")
        screen.good(f"refused: {place}: {line.get('object')}: {line.get('field')}: {line['reason']}")
    await _watch(tally, screen)
    _expect(abs(tally.share("v2") - 50) < SLACK, "the last good version is not kept")
    screen.good(f"traffic continues with the last good version: {tally.requests - asked} requests since, none failed")
    stage.sample.edit(stage.sample.traffic, ("weight: half", "weight: 50"))
    await _soon(_now(lambda: not world.rejections()), "the corrected file is taken")
    screen.good("corrected: the error is gone")


async def _lose_a_backend(stage: Stage, tally: Tally, screen: Screen) -> float:
    """Returns how many seconds passed until both Envoys had ejected it."""
    screen.step("Kill v2-b: retries cover for it until outlier detection ejects it")
    killed = trio.current_time()
    stage.backends["v2-b"].stop()
    for name, envoy in stage.envoys.items():
        await _soon(partial(_has_ejected, envoy), f"{name} ejects the dead backend")
        screen.good(f"{name}: ejected {trio.current_time() - killed:.1f} s after the kill")
    ejected = trio.current_time()
    await _watch(tally, screen)
    _expect(not any(counter["v2-b"] for counter in tally.answers.values()), "the dead answer")
    return ejected - killed


async def _count(stage: Stage, tally: Tally, screen: Screen) -> None:
    sent = stage.plane.state.xds.status.statistics()
    pushes, acks, rejects = (sum(counts.values()) for counts in (sent.pushes, sent.acks, sent.rejects))
    screen.write(f"{tally.requests} requests through Envoy, {len(tally.failures)} failed")
    screen.write(f"{pushes} pushes, {acks} accepted by Envoy, {rejects} refused")
    refused = {name: await envoy.rejected() for name, envoy in stage.envoys.items()}
    _expect(not tally.failures, f"requests failed, such as {tally.failures[:1]}")
    _expect(not any(refused.values()), f"Envoy refused updates: {refused}")


async def _watch(tally: Tally, screen: Screen) -> None:
    """Show who answers the next requests. A window begins after the requests that were under way."""
    await trio.sleep(0.1)
    tally.restart()
    with screen.answers(tally):
        await _soon(_now(lambda: tally.fewest >= WINDOW_REQUESTS), "enough requests are answered")
    _expect(not tally.failures, f"a request failed: {tally.failures[:1]}")


async def _has_ejected(envoy: EnvoyProcess) -> bool:
    return any((await envoy.stats(r"outlier_detection\.ejections_active$")).values())


async def _soon(ask: Callable[[], Awaitable[T | None]], what: str) -> T:
    """The answer, once it is neither None nor false."""
    with trio.move_on_after(PATIENCE_SECONDS):
        while not (found := await ask()):  # noqa: ASYNC110  some of it happens in Envoy
            await trio.sleep(0.01)
        return found
    raise StoryError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")


def _now(ask: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    """A question that is answered without waiting, for ``_soon``."""

    async def answer() -> T:
        return ask()

    return answer


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise StoryError(otherwise)


class Screen:
    """Writes to standard output. State: the number of the current step."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._step = 0

    def step(self, title: str) -> None:
        self._step += 1
        self._console.print(f"\n[bold]{self._step}. {title}[/bold]")

    def write(self, text: str) -> None:
        """A line under the current step, without markup."""
        self._console.print(f"   {text}", markup=False)

    def good(self, text: str) -> None:
        self._console.print("   [green]ok[/green] ", end="")
        self._console.print(text, markup=False)

    @contextmanager
    def answers(self, tally: Tally) -> Iterator[None]:
        """Show the answers by backend while the block runs: a live table on a terminal, else its last state."""
        if self._console.is_terminal:
            with Live(get_renderable=lambda: _table(tally), console=self._console, refresh_per_second=10):
                yield
        else:
            yield
            self._console.print(_table(tally))


def _table(tally: Tally) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("   answered by")
    for door in tally.answers:
        table.add_column(f"via {door}", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    everything = sum(counter.total() for counter in tally.answers.values())
    for name in sorted({name for counter in tally.answers.values() for name in counter}):
        counts = [counter[name] for counter in tally.answers.values()]
        share = 100 * sum(counts) / everything
        table.add_row(f"   {name}", *map(str, counts), f"{share:.0f} %", "#" * round(share / 4))
    return table
