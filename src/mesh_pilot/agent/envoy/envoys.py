"""The Envoys that there are: each from the start of its process until its end has been seen."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.envoy import command
from mesh_pilot.agent.envoy.binary import EnvoyBinary, EnvoyError
from mesh_pilot.agent.envoy.child import ChildFacts, EnvoyChild, since_boot, spawn
from mesh_pilot.agent.envoy.files import EnvoyFiles, remove
from mesh_pilot.agent.envoy.life import Wanted
from mesh_pilot.agent.envoy.log import LogParser
from mesh_pilot.agent.envoy.readiness import awaited
from mesh_pilot.agent.settings import EnvoySettings
from mesh_pilot.base.containment import until_done

log = structlog.get_logger(scope="agent")

_STOP_SECONDS = 3.0
"""From SIGTERM to SIGKILL: Envoy ends at once, but for what it still writes."""
_LATE_SECONDS = 10.0


class Envoys:
    """Mutable state: those that run, and those of them that have a successor and end in time."""

    def __init__(
        self, files: EnvoyFiles, settings: Observable[EnvoySettings], changed: Callable[[EnvoyChild], None]
    ) -> None:
        """``changed`` is called when one becomes ready or unready, or exits."""
        self.files = files
        self.running: list[EnvoyChild] = []
        self.have_been = False
        """True once an Envoy has started."""
        self.settings = settings
        self._tell = changed
        self._leaving: set[EnvoyChild] = set()
        self._left_out = 0
        self._why_cold = ""

    def __repr__(self) -> str:
        return f"<Envoys {self.running}, {len(self._leaving)} of them leaving>"

    @property
    def log_lines_left_out(self) -> int:
        return self._left_out + sum(child.log.left_out_total for child in self.running)

    def base_id(self, settings: EnvoySettings) -> int | None:
        why = command.why_no_shared_memory()
        if why and why != self._why_cold:
            log.warning("envoy runs without hot restart: no shared memory", reason=why)
        self._why_cold = why
        if why:
            return None
        is_taken = any(child.facts.base_id == settings.base_id for child in self.running)
        return command.new_base_id() if settings.base_id is None or is_taken else settings.base_id

    def start(
        self,
        nursery: trio.Nursery,
        wanted: Wanted,
        config: Path,
        binary: EnvoyBinary,
        base_id: int | None,
        epoch: int,
    ) -> EnvoyChild:
        admin_file = self.files.new_admin_file(base_id)
        flags = command.flags(wanted.settings)
        parser = LogParser.new()
        arguments = [str(binary.path), "-c", str(config), "--admin-address-path", str(admin_file)]
        arguments += [*command.hot_restart_flags(base_id, epoch), *flags]
        try:
            pid, descriptor, output = spawn(arguments, parser.format)
        except BaseException:
            remove(admin_file)
            raise
        facts = ChildFacts(
            pid=pid,
            log_descriptor=descriptor,
            output_descriptor=output,
            log_mark=parser.mark,
            binary=binary,
            epoch=epoch,
            base_id=base_id,
            admin_file=admin_file,
            flags=tuple(flags),
            awaited=awaited(wanted.bootstrap),
            started=since_boot(),
        )
        child = self.adopt(nursery, facts)
        log.info("envoy started", version=binary.release, pid=pid, epoch=epoch)
        return child

    def adopt(self, nursery: trio.Nursery, facts: ChildFacts) -> EnvoyChild:
        child = EnvoyChild(facts, self._changed)
        self.running.append(child)
        nursery.start_soon(until_done, "envoy", child.tend)
        self.have_been = True
        return child

    def _changed(self, child: EnvoyChild) -> None:
        if child.ended.is_set() and child in self.running:
            self.running.remove(child)
            self._leaving.discard(child)
            self._left_out += child.log.left_out_total
            remove(child.facts.admin_file)
            if all(other.facts.base_id != child.facts.base_id for other in self.running):
                command.forget_shared_memory(child.facts.base_id)
        self._tell(child)

    def let_go(
        self, child: EnvoyChild, nursery: trio.Nursery, end: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Let an Envoy that has a successor exit in time: alone, or through ``end``."""
        self._leaving.add(child)
        nursery.start_soon(until_done, "envoy's predecessor", partial(self._until_gone, child, end))

    async def _until_gone(self, child: EnvoyChild, end: Callable[[], Awaitable[None]] | None) -> None:
        if end is not None:
            try:
                await end()
            except Exception as error:
                child.send_signal(signal.SIGTERM)
                log.error("an old envoy is ended with open connections", reason=reason_of(error), **trace_of(error))
        await self.see_off(child)

    async def see_off(self, child: EnvoyChild) -> None:
        """Wait for the end of an Envoy that was taken over from; the new one ends it in time."""
        with trio.move_on_after(self.settings.value.parent_shutdown_seconds + _LATE_SECONDS):
            await child.ended.wait()
        if not child.ended.is_set():
            log.warning("old Envoy did not exit in time; killing it", pid=child.facts.pid)
            child.send_signal(signal.SIGKILL)
            await child.ended.wait()

    def kill_strays(self, current: EnvoyChild | None) -> None:
        """End those that neither serve nor have a successor: what started them has failed."""
        for child in self.running:
            if child is not current and child not in self._leaving:
                child.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        """End all. If cancelled, it is done all the same."""
        with trio.CancelScope(shield=True):
            for number in (signal.SIGTERM, signal.SIGKILL):
                children = list(self.running)
                for child in children:
                    child.send_signal(number)
                with trio.move_on_after(_STOP_SECONDS):
                    for child in children:
                        await child.ended.wait()
        for child in self.running:  # nobody waits forever for the end of one that nobody sees
            log.error("the end of an envoy was not seen", pid=child.facts.pid)
        self.running.clear()
        self.files.forget_spare()


def trace_of(error: Exception) -> dict[str, Exception]:
    """The traceback, of an exception that is not a fault of the machine."""
    return {} if isinstance(error, EnvoyError | OSError) else {"exc_info": error}


def reason_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else os.strerror(error.errno or 0)
    return str(error)
