"""Runs the control plane for ``mesh-pilot discovery`` until a signal, and prints its state."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping

import click
import structlog
import trio

from mesh_pilot import __version__
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings, StartError
from mesh_pilot.base.process_age import process_age
from mesh_pilot.cli.discovery.reloading import FollowedFile
from mesh_pilot.cli.lib.logs import LogFormat
from mesh_pilot.cli.lib.process import OUTLIVED, answer_signals, set_aside
from mesh_pilot.model.counts import counted
from mesh_pilot.model.redaction import redacted

log = structlog.get_logger(scope="bootstrap")


def run(settings: Settings, style: LogFormat, file: FollowedFile | None = None) -> int:
    """Serve until a signal, and drain; returns the exit code. ``file``: the settings file, which is followed.

    Text is printed to standard output for users; with JSON everything is an event in the log.
    """
    try:
        trio.run(_serve, settings, style, file)
    except StartError as error:
        if style is not LogFormat.JSON:
            *others, last = error.lines
            for line in others:
                click.echo(f"mesh-pilot: {redacted(' '.join(line.split()))}", err=True)
            raise click.ClickException(redacted(last)) from None
        log.error("cannot start", reason=str(error))
        return 1
    return 0


async def _serve(settings: Settings, style: LogFormat, file: FollowedFile | None) -> None:
    """Raises StartError."""
    failure: BaseException | None = None
    try:
        # Open until the drain is over: a signal that comes meanwhile must not end it.
        with trio.open_signal_receiver(*OUTLIVED) as outlived:
            async with trio.open_nursery() as nursery:
                ends, is_serving = trio.Event(), trio.Event()
                await nursery.start(_wait_for_end, ends, is_serving, nursery.cancel_scope)
                await _run_plane(settings, style, file, outlived, ends, is_serving)
                nursery.cancel_scope.cancel()
    except* StartError as group:
        failure = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
    if failure is not None:
        raise failure


async def _wait_for_end(
    ends: trio.Event, is_serving: trio.Event, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    """Set ``ends`` at SIGTERM or Ctrl-C; before there is anything to drain, end at once.

    A second one ends the process at once: it has its usual effect.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        await anext(signals)
    ends.set()
    if not is_serving.is_set():
        log.info("stopped by a signal before it was serving")
        scope.cancel()


async def _run_plane(
    settings: Settings,
    style: LogFormat,
    file: FollowedFile | None,
    outlived: AsyncIterator[int],
    ends: trio.Event,
    is_serving: trio.Event,
) -> None:
    async with control_plane(settings) as plane:
        is_serving.set()
        if style is LogFormat.JSON:
            log.info("serving", version=__version__, sources=_origins(settings), **_addresses(plane))
        else:
            click.echo(redacted(_where(plane)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_report_ready, plane, style)
            nursery.start_soon(answer_signals, outlived, plane)
            if file is not None:
                nursery.start_soon(file.run, plane)
            await ends.wait()
            nursery.cancel_scope.cancel()
        if style is not LogFormat.JSON:  # with JSON it is in the log
            click.echo(f"draining, for at most {settings.shutdown_seconds:g} s")


def _addresses(plane: ControlPlane) -> Mapping[str, str]:
    where = plane.addresses
    return {
        "grpc": where.grpc,
        "secure_grpc": where.secure_grpc,
        "http": where.http,
        "monitoring": where.monitoring,
        **({"webhooks": where.webhooks} if where.webhooks else {}),
    }


def _where(plane: ControlPlane) -> str:
    where = plane.addresses
    return "\n".join(
        [
            f"mesh-pilot {__version__} serves",
            f"  xDS                {where.grpc}",
            f"  xDS, mutual TLS    {where.secure_grpc}",
            f"  web, ready, debug  http://{where.http}/",
            f"  metrics            http://{where.monitoring}/metrics",
            *([f"  webhooks           https://{where.webhooks}/"] if where.webhooks else []),
            f"  from               {', '.join(_origins(plane.settings))}",
        ]
    )


def _origins(settings: Settings) -> list[str]:
    """The origins of configuration and services, for users."""
    origins = [
        *map(str, settings.config_dirs),
        *(origin for registry in settings.registries for origin in registry.origins()),
        *settings.mcp_servers,
    ]
    if settings.mcp_sink_addr:
        origins.append(f"whoever dials {settings.mcp_sink_addr}")
    if settings.mesh_config and not origins:
        origins.append(f"what {settings.mesh_config} names")
    return origins


async def _report_ready(plane: ControlPlane, style: LogFormat) -> None:
    await plane.wait_ready()
    set_aside()
    state = plane.state.world.statistics()
    seconds, objects = round(process_age(), 1), sum(state.configs.values())
    if style is LogFormat.JSON:
        log.info("started", seconds=seconds, objects=objects, services=state.services, refused=state.rejected)
    else:
        click.echo(
            f"ready after {seconds:.1f} s: {counted(objects, 'object')}, {counted(state.services, 'service')},"
            f" {state.rejected} refused"
        )
