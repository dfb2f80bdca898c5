"""Running the demo from its start to its end, and what ends it early."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator

import click
import trio

from mesh_pilot.cli.consul_process import ConsulProcessError, find_consul
from mesh_pilot.cli.demo.screen import Screen
from mesh_pilot.cli.demo.stage import Stage, stage
from mesh_pilot.cli.demo.story import Disappointment, tell, traffic
from mesh_pilot.cli.envoy_process import EnvoyError, find_envoy
from mesh_pilot.cli.logs import LogFormat, LogLevels, configure

STOPPED = 130
"""Exit code where it was stopped before the end, as shells have it."""


def play(*, keep: bool, with_consul: bool) -> int:
    """Tell the whole story; returns the exit code. Raises ClickException where a program it needs is missing."""
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
    told = trio.Event()
    disappointments: list[str] = []
    with trio.CancelScope() as scope:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_on_signal, scope)
                await _show(Screen(), keep, told, with_consul)
                nursery.cancel_scope.cancel()
        except* (Disappointment, EnvoyError, ConsulProcessError) as errors:
            disappointments = [str(error) for error in leaves(errors)]
    for text in disappointments:
        click.echo(f"mesh-pilot: the demo did not go as it should: {text}", err=True)
    if disappointments:
        return 1
    return 0 if told.is_set() else STOPPED


async def _end_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)
        scope.cancel()


async def _show(screen: Screen, keep: bool, told: trio.Event, with_consul: bool) -> None:
    async with stage(with_consul=with_consul) as running:
        async with traffic(running) as tally:
            await tell(running, tally, screen)
        told.set()
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
