"""How one Envoy takes over from another: by hot restart where their versions allow it, else next to it.

A hot restart shares memory and listening sockets, so that it loses nothing; only the same build and base id can do it.
Others share ports (``steering``), which Linux can do without loss for TCP. Both begin with the same check of the
bootstrap, because an Envoy that refuses it after its start has already taken the admin interface from the old one.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import trio

from mesh_pilot.agent.envoy import command
from mesh_pilot.agent.envoy.admin import AdminError
from mesh_pilot.agent.envoy.binary import EnvoyBinary
from mesh_pilot.agent.envoy.child import EnvoyChild
from mesh_pilot.agent.envoy.drain import drain_listeners
from mesh_pilot.agent.envoy.envoys import Envoys
from mesh_pilot.agent.envoy.life import Wanted
from mesh_pilot.agent.envoy.steering import HandingOver

_TAKE_OVER_SECONDS = 120.0


class NotTakenOver(Exception):
    """The new Envoy cannot serve; the message is what it says."""


@attrs.frozen
class TakeOver:
    """An Envoy that has taken over."""

    successor: EnvoyChild
    end: Callable[[], Awaitable[None]] | None = None
    """Ends the old one; None: the successor does."""


async def take_over(
    envoys: Envoys, nursery: trio.Nursery, old: EnvoyChild, wanted: Wanted, config: Path, binary: EnvoyBinary
) -> TakeOver:
    """Start an Envoy in the place of ``old``, and wait until it is ready. Raises NotTakenOver."""
    has_memory = old.has_admin and old.facts.base_id is not None
    if not (has_memory and binary.hot_restart == old.facts.binary.hot_restart):
        return await take_over_beside(envoys, nursery, old, wanted, config, binary)
    successor = envoys.start(nursery, wanted, config, binary, old.facts.base_id, old.facts.epoch + 1)
    old.has_admin = False
    await _until_ready(successor)
    return TakeOver(successor)


async def take_over_beside(
    envoys: Envoys, nursery: trio.Nursery, old: EnvoyChild, wanted: Wanted, config: Path, binary: EnvoyBinary
) -> TakeOver:
    """The same with an Envoy that shares its ports with the old one, but no memory."""
    base_id = None if command.why_no_shared_memory() else command.new_base_id()
    successor = envoys.start(nursery, wanted, config, binary, base_id, 0)
    had_admin, old.has_admin = old.has_admin, False
    if had_admin:
        with suppress(AdminError):  # on a connection that is kept: new ones will go to the successor
            await (await old.admin()).state()
    handing = HandingOver(old, successor)
    try:
        if reason := await handing.lead_admin():
            successor.send_signal(signal.SIGKILL)
            raise NotTakenOver(reason)
        await _until_ready(successor)
    except BaseException:
        handing.close()  # its sockets would take connections that no process accepts
        old.has_admin = had_admin
        raise
    return TakeOver(successor, partial(_end_beside, envoys, old, handing, had_admin))


async def _until_ready(successor: EnvoyChild) -> None:
    """Wait until an Envoy can take over. Raises NotTakenOver once it ended."""
    with trio.move_on_after(_TAKE_OVER_SECONDS):
        await successor.ready_or_ended()
    if successor.is_ready:
        return
    reason = successor.end_reason if successor.ended.is_set() else successor.why_not_ready
    successor.send_signal(signal.SIGKILL)
    await successor.ended.wait()
    raise NotTakenOver(reason)


async def _end_beside(envoys: Envoys, old: EnvoyChild, handing: HandingOver, has_admin: bool) -> None:
    """Let the connections of an Envoy end that has a successor next to it, then end it."""
    try:
        await handing.lead_all()
        if has_admin:
            await drain_listeners(old, "graceful&skip_exit")
        with trio.move_on_after(envoys.settings.value.parent_shutdown_seconds):
            await old.ended.wait()
        old.send_signal(signal.SIGTERM)
        await envoys.see_off(old)
    finally:
        handing.close()
