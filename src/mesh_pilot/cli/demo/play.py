"""Running the demo from its start to its end, and what ends it early."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from mesh_pilot.cli.consul_process import ConsulProcessError, find_consul
from mesh_pilot.cli.demo.stage import Stage, stage
from mesh_pilot.cli.demo.story import StoryError, tell, traffic
from mesh_pilot.cli.demo.traffic import Tally
from mesh_pilot.cli.envoy_process import EnvoyError, find_envoy
from mesh_pilot.cli.logs import LogFormat, LogLevels, configure

STOPPED = 130
"""Exit code where it was stopped before the end, as shells have it."""


def play(*, keep: bool, with_consul: bool) -> int:
    """Run the demo; returns the exit code. Raises ClickException if a program that it needs is missing."""
    try:
        find_envoy()
        if with_consul:
            find_consul()
    except (EnvoyError, ConsulProcessError) as error:
        raise click.ClickException(str(error)) from None
    configure(LogLevels(logging.ERROR), LogFormat.TEXT, sys.stderr)
    return trio.run(_run, keep, with_consul)


async def _run(keep: bool, with_consul: bool) -> int:
    """Returns the exit code."""
    finished = trio.Event()
    disappointments: list[str] = []
    with trio.CancelScope() as scope:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_on_signal, scope)
                await _show(Screen(), keep, finished, with_consul)
                nursery.cancel_scope.cancel()
        except* (StoryError, EnvoyError, ConsulProcessError) as errors:
            disappointments = [str(error) for error in leaves(errors)]
    for text in disappointments:
        click.echo(f"mesh-pilot: the demo did not go as it should: {text}", err=True)
    if disappointments:
        return 1
    return 0 if finished.is_set() else STOPPED


async def _end_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)
        scope.cancel()


async def _show(screen: Screen, keep: bool, finished: trio.Event, with_consul: bool) -> None:
    async with stage(with_consul=with_consul) as running:
        async with traffic(running) as tally:
            await tell(running, tally, screen)
        finished.set()
        if keep:
            _say_what_to_try(running, screen)
            await trio.sleep_forever()
        screen.say("now it ends, and its web page with it; mesh-pilot demo --keep leaves it running")


def leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    """The exceptions in a group, those of groups within it included."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def _say_what_to_try(running: Stage, screen: Screen) -> None:
    screen.step("It stays up until Ctrl-C. Try")
    for door in running.doors:
        screen.say(f"curl -H 'Host: {door.host}' http://{door.address}/")
    screen.say(f"$EDITOR {running.sample.traffic}")
    screen.say(f"mesh-pilot proxy-status --pilot {running.plane.addresses.http}")
    screen.say(f"open http://{running.plane.addresses.http}/")


class Screen:
    """Writes to the standard output. State: the number of the step that is being shown."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._step = 0

    def step(self, title: str) -> None:
        self._step += 1
        self._console.print(f"\n[bold]{self._step}. {title}[/bold]")

    def say(self, text: str) -> None:
        """A fact, indented under its step. The text is shown as it is."""
        self._console.print(f"   {text}", markup=False)

    def good(self, text: str) -> None:
        self._console.print("   [green]ok[/green] ", end="")
        self._console.print(text, markup=False)

    @contextmanager
    def answers(self, tally: Tally) -> Iterator[None]:
        """Show who answers while the block runs: a table that moves on a terminal, and its last state in any case."""
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
