"""Runs the demo and ends it early on a signal or an error."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator

import click
import trio

from mesh_pilot.agent.envoy.binary import EnvoyError, find_envoy
from mesh_pilot.cli.demo.consul_process import ConsulProcessError, find_consul
from mesh_pilot.cli.demo.stage import Stage, stage
from mesh_pilot.cli.demo.story import Screen, StoryError, run_story, traffic
from mesh_pilot.cli.lib.logs import LogFormat, LogLevels, configure
from mesh_pilot.cli.lib.options import one_line

STOPPED = 130
"""Exit code if it was stopped before the end, as in shells."""


def play(*, keep: bool, with_consul: bool) -> int:
    """Run the demo; returns the exit code. Raises ClickException if a program that it needs is missing."""
    with one_line(EnvoyError, ConsulProcessError):
        find_envoy()
        if with_consul:
            find_consul()
    configure(LogLevels(logging.ERROR), LogFormat.TEXT, sys.stderr)
    return trio.run(_run, keep, with_consul)


async def _run(keep: bool, with_consul: bool) -> int:
    """Returns the exit code."""
    finished = trio.Event()
    failures: list[str] = []
    with trio.CancelScope() as scope:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_on_signal, scope)
                await _show(Screen(), keep, finished, with_consul)
                nursery.cancel_scope.cancel()
        except* (StoryError, EnvoyError, ConsulProcessError) as errors:
            failures = [str(error) for error in leaves(errors)]
    for text in failures:
        click.echo(f"mesh-pilot: the demo did not go as it should: {text}", err=True)
    if failures:
        return 1
    return 0 if finished.is_set() else STOPPED


async def _end_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)
        scope.cancel()


async def _show(screen: Screen, keep: bool, finished: trio.Event, with_consul: bool) -> None:
    async with stage(with_consul=with_consul) as running:
        async with traffic(running) as tally:
            await run_story(running, tally, screen)
        finished.set()
        if keep:
            _show_suggestions(running, screen)
            await trio.sleep_forever()
        screen.write("now it ends, and its web page with it; mesh-pilot demo --keep leaves it running")


def leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    """The exceptions in a group and its nested groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def _show_suggestions(running: Stage, screen: Screen) -> None:
    screen.step("It stays up until Ctrl-C. Try")
    for door in running.doors:
        screen.write(f"curl -H 'Host: {door.host}' http://{door.address}/")
    screen.write(f"$EDITOR {running.sample.traffic}")
    screen.write(f"mesh-pilot proxy-status --pilot {running.plane.addresses.http}")
    screen.write(f"open http://{running.plane.addresses.http}/")
