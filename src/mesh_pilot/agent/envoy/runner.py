"""Runs one Envoy at a time, or two during a hot restart."""

from __future__ import annotations

import errno
import json
import os
import random
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
import trio

from mesh_pilot.agent.envoy import command
from mesh_pilot.agent.envoy.admin import AdminError
from mesh_pilot.agent.envoy.backoff import RestartBackoff
from mesh_pilot.agent.envoy.binary import EnvoyBinary, EnvoyError, ask_binary, find_envoy
from mesh_pilot.agent.envoy.child import ChildFacts, EnvoyChild, since_boot, spawn, validate
from mesh_pilot.agent.envoy.drain import drain_listeners, until_no_connections
from mesh_pilot.agent.envoy.log import LogParser
from mesh_pilot.agent.envoy.readiness import awaited
from mesh_pilot.agent.envoy.state import EnvoyStatistics, Wanted
from mesh_pilot.agent.envoy.steering import HandingOver, share_admin_port
from mesh_pilot.agent.handover import Handover
from mesh_pilot.agent.observable import Observable
from mesh_pilot.agent.settings import MINIMUM_DRAIN_SECONDS, AgentFolders, EnvoySettings, Ports
from mesh_pilot.security.private_files import replace

log = structlog.get_logger(scope="agent")

_ADMIN_FILE = "envoy-admin-"
_IN_FORCE, _CANDIDATE = "envoy-bootstrap.json", "envoy-bootstrap.candidate.json"

_STOP_SECONDS = 3.0
"""From SIGTERM to SIGKILL: Envoy ends at once, but for what it still writes."""
_TAKE_OVER_SECONDS = 120.0
_LATE_SECONDS = 10.0


class EnvoyRunner:
    """``ready`` is true while Envoy is live and has its first configuration.

    Run it in the main thread: Envoy ends with the thread that has started it.
    """

    def __init__(
        self,
        settings: EnvoySettings,
        ports: Ports,
        folders: AgentFolders,
        *,
        inbound_only: bool = True,
        handover: Handover | None = None,
    ) -> None:
        """``inbound_only``: a drain spares outbound listeners, which the application needs until it ends.

        ``handover`` may have Envoys that run already, and takes them on at the end if ``leave`` was called.
        """
        self.ready: Observable[bool] = Observable(False)
        self.settings: Observable[EnvoySettings] = Observable(settings)
        """Replaced while it runs, they cause a hot restart."""
        self._ports = ports
        self._folder = folders.run
        self._inbound_only = inbound_only
        self._handover = Handover() if handover is None else handover
        self._leaves = False
        self._wanted: Observable[Wanted | None] = Observable(None)
        self._started_on: Wanted | None = None
        """The one that the current Envoy runs on."""
        self._refused: Wanted | None = None
        """One that an Envoy did not take over on."""
        self._request: Observable[int] = Observable(0)
        self._children: list[EnvoyChild] = []
        self._current: EnvoyChild | None = None
        self._good: Wanted | None = None
        """The last that an Envoy became ready on."""
        self._is_draining = False
        self._restarts = self._hot_restarts = self._failed = self._left_out = 0
        self._why_cold = ""

    def __repr__(self) -> str:
        return f"<EnvoyRunner {self._current or 'without an Envoy'}{', ready' if self.ready.value else ''}>"

    @property
    def why_not_ready(self) -> str:
        """Empty if it is ready."""
        if self._is_draining:
            return "Envoy is draining"
        return "Envoy has not started" if self._current is None else self._current.why_not_ready

    def statistics(self) -> EnvoyStatistics:
        child = self._current
        return EnvoyStatistics(
            version=child.facts.binary.release if child else "",
            pid=child.facts.pid if child else 0,
            epoch=child.facts.epoch if child else 0,
            base_id=(child.facts.base_id or 0) if child else 0,
            uptime_seconds=child.age_seconds if child else 0.0,
            ready=self.ready.value,
            reason=self.why_not_ready,
            draining=sum(other is not child for other in self._children),
            restarts=self._restarts,
            hot_restarts=self._hot_restarts,
            failed_hot_restarts=self._failed,
            log_lines_left_out=self._left_out + sum(child.log.left_out_total for child in self._children),
        )

    async def run(self, bootstrap: Observable[Mapping[str, Any]]) -> None:
        """Run Envoy on the bootstrap until cancelled, restart it when it dies, hot restart it when that changes.

        While the bootstrap is empty, none is started; those that run already are tended.
        Raises EnvoyError if there is no Envoy that can be run at the start. Once it has ended or is cancelled, no
        Envoy runs any more, unless ``leave`` was called before.
        """
        async with trio.open_nursery() as nursery:
            for source in (bootstrap, self.settings, self._request):
                nursery.start_soon(self._follow, source, bootstrap)
            try:
                await self._supervise(nursery)
            finally:
                await self._end()

    def leave(self) -> None:
        """Let Envoy run on when ``run`` is cancelled, for the next version of the agent."""
        self._leaves = True

    def restart(self) -> None:
        """Hot restart Envoy, with the binary that is there now."""
        self._request.set(self._request.value + 1)

    async def drain(self, seconds: float) -> None:
        """Let connections end: for ``seconds``, or until there are none.

        From here on Envoy is not ready, and is not started again. Returns early if it ends.
        """
        self._is_draining = True
        self.ready.set(False)
        child = self._current
        if child is None or child.returncode is not None:
            return
        settings = self.settings.value
        minimum = MINIMUM_DRAIN_SECONDS if settings.minimum_drain is None else settings.minimum_drain
        log.info("draining", seconds=minimum if settings.exit_on_zero_active_connections else seconds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_at_end, child, nursery.cancel_scope)
            query = ("inboundonly&" if self._inbound_only else "") + "graceful"
            if settings.exit_on_zero_active_connections:
                query += "&skip_exit"
            await drain_listeners(child, query)
            if settings.exit_on_zero_active_connections:
                await trio.sleep(minimum)
                await until_no_connections(child, (self._ports.readiness, self._ports.prometheus))
            else:
                await trio.sleep(seconds)
            nursery.cancel_scope.cancel()

    # -- supervision

    async def _follow(self, source: Observable[Any], bootstrap: Observable[Mapping[str, Any]]) -> None:
        async for _ in source.changes():
            if bootstrap.value:
                self._wanted.set(Wanted(bootstrap.value, self.settings.value, self._request.value))

    def _take_over(self, nursery: trio.Nursery) -> EnvoyChild | None:
        """Go on with the Envoys that the version before has left; returns the one that serves."""
        told, self._handover.envoys[:] = list(self._handover.envoys), []
        for facts in map(ChildFacts.from_json, told):
            child = self._adopt(nursery, facts)
            if self._current is not None:
                nursery.start_soon(self._see_off, self._current)
                self._current.has_admin = False
            self._current = child
        self._clean()
        if self._current is not None:
            self._changed(self._current)
            facts = self._current.facts
            log.info("envoy is taken over", version=facts.binary.release, pid=facts.pid, epoch=facts.epoch)
        return self._current

    def _clean(self) -> None:
        """Remove what an agent that was killed has left, of Envoys that have ended with it."""
        used = {child.facts.admin_file for child in self._children}
        for file in self._folder.glob(f"{_ADMIN_FILE}*"):
            if file not in used:
                base_id = file.name.removeprefix(_ADMIN_FILE).partition("-")[0]
                command.forget_shared_memory(int(base_id) if base_id.isdigit() else None)
                file.unlink(missing_ok=True)

    async def _supervise(self, nursery: trio.Nursery) -> None:
        taken = self._take_over(nursery)
        backoff = RestartBackoff(random.random)
        while True:
            lived, reason = 0.0, ""
            try:
                child = taken or await self._begin(nursery)
            except (EnvoyError, OSError) as error:
                if self._current is None:
                    raise error if isinstance(error, EnvoyError) else EnvoyError(self._no_start(error)) from error
                reason = _reason(error)
            else:
                taken = None
                child = await self._keep(child, nursery)
                lived, reason = child.age_seconds, child.end_reason
            if self._is_draining:
                await trio.sleep_forever()
            seconds = backoff.after(lived)
            self._restarts += 1
            log.error(
                "envoy has ended; it is started again", reason=reason, seconds=round(seconds, 1), **_advice(reason)
            )
            await self._pause(seconds)

    def _no_start(self, error: OSError) -> str:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            said = f"{self._folder}: {error.strerror}; Envoy's files go there: make room, or name another folder with"
            return f"{said} --run-dir"
        return _reason(error)

    async def _pause(self, seconds: float) -> None:
        """Sleep, or less if there is another bootstrap, after half a second at least."""
        before = self._wanted.value
        with trio.move_on_after(seconds):
            await trio.sleep(min(seconds, 0.5))
            await self._wanted.wait_for(lambda wanted: wanted != before)

    async def _begin(self, nursery: trio.Nursery) -> EnvoyChild:
        """Start an Envoy where none runs."""
        wanted = await self._wanted.wait_for(lambda wanted: wanted is not None)
        if wanted == self._refused and self._good is not None:
            wanted = self._good
        assert wanted is not None
        binary = await ask_binary(find_envoy(wanted.settings.binary))
        base_id = self._base_id(wanted.settings)
        self._current = self._start(nursery, wanted, self._write(wanted.bootstrap, _IN_FORCE), binary, base_id, 0)
        self._started_on = wanted
        return self._current

    def _base_id(self, settings: EnvoySettings) -> int | None:
        why = command.why_no_shared_memory()
        if why and why != self._why_cold:
            log.warning("envoy runs without hot restart: no shared memory", reason=why)
        self._why_cold = why
        if why:
            return None
        is_taken = any(child.facts.base_id == settings.base_id for child in self._children)
        return command.new_base_id() if settings.base_id is None or is_taken else settings.base_id

    def _start(
        self,
        nursery: trio.Nursery,
        wanted: Wanted,
        config: Path,
        binary: EnvoyBinary,
        base_id: int | None,
        epoch: int,
    ) -> EnvoyChild:
        admin_file = self._folder / f"{_ADMIN_FILE}{base_id or 0}-{secrets.token_hex(4)}"
        admin_file.touch(mode=0o600)
        flags = command.flags(wanted.settings)
        parser = LogParser.new()
        arguments = [str(binary.path), "-c", str(config), "--admin-address-path", str(admin_file)]
        arguments += [*command.hot_restart_flags(base_id, epoch), *flags]
        pid, descriptor, output = spawn(arguments, parser.format)
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
        log.info("envoy started", version=binary.release, pid=pid, epoch=epoch)
        return self._adopt(nursery, facts)

    def _adopt(self, nursery: trio.Nursery, facts: ChildFacts) -> EnvoyChild:
        child = EnvoyChild(facts, self._changed)
        self._children.append(child)
        nursery.start_soon(child.tend)
        return child

    def _write(self, bootstrap: Mapping[str, Any], name: str) -> Path:
        path = self._folder / name
        replace(path, json.dumps(share_admin_port(bootstrap), indent=1).encode())
        return path

    def _changed(self, child: EnvoyChild) -> None:
        if child.ended.is_set():
            self._children.remove(child)
            self._left_out += child.log.left_out_total
            child.facts.admin_file.unlink(missing_ok=True)
            if all(other.facts.base_id != child.facts.base_id for other in self._children):
                command.forget_shared_memory(child.facts.base_id)
        if child is self._current:
            if child.is_ready:
                self._good = self._started_on
            if not self._is_draining:
                self.ready.set(child.is_ready)

    async def _keep(self, child: EnvoyChild, nursery: trio.Nursery) -> EnvoyChild:
        """Wait for the end of Envoy, and replace it meanwhile as wanted; returns the one that has ended."""
        judged = self._started_on
        while True:
            with trio.CancelScope() as scope:
                nursery.start_soon(self._cancel_at_end, child, scope)
                await self._wanted.wait_for(lambda wanted, judged=judged: wanted != judged)  # type: ignore[misc]
                while self._is_draining or len(self._children) > 1:
                    await self._other_end(child)
            if child.ended.is_set():
                return child
            judged = self._wanted.value
            assert judged is not None
            child = await self._replace(child, judged, nursery)

    async def _other_end(self, child: EnvoyChild) -> None:
        """Wait for the end of an older Envoy than ``child``; for ever while it is drained."""
        others = [other for other in self._children if other is not child]
        if self._is_draining or not others:
            await trio.sleep_forever()
        await others[0].ended.wait()

    async def _replace(self, child: EnvoyChild, wanted: Wanted, nursery: trio.Nursery) -> EnvoyChild:
        """Have another Envoy take over from ``child``; returns the one that serves then."""
        try:
            binary = await ask_binary(find_envoy(wanted.settings.binary))
            if wanted == self._started_on or (self._started_on is None and self._runs_on(child, wanted, binary)):
                self._started_on = wanted
                self._changed(child)
                return child
            candidate = self._write(wanted.bootstrap, _CANDIDATE)
            reason = await validate(binary, candidate, command.flags(wanted.settings))
            if not reason:
                can_follow = child.has_admin and child.facts.base_id is not None
                can_follow = can_follow and binary.hot_restart == child.facts.binary.hot_restart
                replace_it = self._hot_restart if can_follow else self._replace_beside
                reason = await replace_it(child, wanted, candidate, binary, nursery)
        except (EnvoyError, OSError) as error:
            reason = _reason(error)
        if not reason:
            assert self._current is not None
            return self._current
        self._failed += 1
        self._refused = wanted
        log.error("envoy is not replaced; the one that runs serves on", reason=reason)
        if not child.has_admin and child.returncode is None:
            await self._mend(child, nursery)
            assert self._current is not None
            return self._current
        return child

    async def _mend(self, child: EnvoyChild, nursery: trio.Nursery) -> None:
        """Replace an Envoy that a failed successor has left without its admin interface, and unable to be followed."""
        known_good = self._started_on
        if known_good is None:
            return
        config = self._write(known_good.bootstrap, _CANDIDATE)
        reason = await self._replace_beside(child, known_good, config, child.facts.binary, nursery)
        if reason:
            log.error("envoy has no admin interface until it is restarted", reason=reason)

    def _runs_on(self, child: EnvoyChild, wanted: Wanted, binary: EnvoyBinary) -> bool:
        """Whether an Envoy that was taken over needs no restart."""
        same_flags = child.facts.flags == tuple(command.flags(wanted.settings))
        try:
            in_force = json.loads((self._folder / _IN_FORCE).read_bytes())
        except (OSError, ValueError):
            return False
        return (
            binary == child.facts.binary
            and same_flags
            and in_force == json.loads(json.dumps(share_admin_port(wanted.bootstrap)))
        )

    async def _hot_restart(
        self, child: EnvoyChild, wanted: Wanted, candidate: Path, binary: EnvoyBinary, nursery: trio.Nursery
    ) -> str:
        """Start the next epoch, and wait until it has taken over. Returns why it has not."""
        successor = self._start(nursery, wanted, candidate, binary, child.facts.base_id, child.facts.epoch + 1)
        child.has_admin = False
        reason = await self._until_ready(successor)
        if not reason:
            self._succeed(successor, wanted, candidate)
            nursery.start_soon(self._see_off, child)
        return reason

    async def _until_ready(self, successor: EnvoyChild) -> str:
        """Wait until an Envoy can take over. Returns why it can not, once it has ended."""
        with trio.move_on_after(_TAKE_OVER_SECONDS):
            await successor.ready_or_ended()
        if successor.is_ready:
            return ""
        reason = successor.end_reason if successor.ended.is_set() else successor.why_not_ready
        successor.send_signal(signal.SIGKILL)
        await successor.ended.wait()
        return reason

    def _succeed(self, successor: EnvoyChild, wanted: Wanted, candidate: Path) -> None:
        candidate.rename(self._folder / _IN_FORCE)
        self._current, self._started_on = successor, wanted
        self._hot_restarts += 1
        self._changed(successor)
        facts = successor.facts
        log.info("envoy was hot restarted", version=facts.binary.release, pid=facts.pid, epoch=facts.epoch)

    async def _replace_beside(
        self, child: EnvoyChild, wanted: Wanted, candidate: Path, binary: EnvoyBinary, nursery: trio.Nursery
    ) -> str:
        """Start an Envoy that shares its ports with the one that runs, but no memory. Returns why that has failed.

        For versions that cannot follow each other, and where hot restart is not to be had any more.
        """
        base_id = None if command.why_no_shared_memory() else command.new_base_id()
        successor = self._start(nursery, wanted, candidate, binary, base_id, 0)
        had_admin, child.has_admin = child.has_admin, False
        if had_admin:
            with suppress(AdminError):  # on a connection that is kept: new ones will go to the successor
                await (await child.admin()).state()
        handing = HandingOver(child, successor)
        reason = await handing.lead_admin() or await self._until_ready(successor)
        if reason:
            successor.send_signal(signal.SIGKILL)
            handing.close()
            child.has_admin = had_admin
            return reason
        self._succeed(successor, wanted, candidate)
        nursery.start_soon(self._end_beside, child, handing, had_admin)
        return ""

    async def _end_beside(self, child: EnvoyChild, handing: HandingOver, has_admin: bool) -> None:
        """Let the connections of an Envoy end that has a successor beside it, then end it."""
        try:
            await handing.lead_all()
            if has_admin:
                await drain_listeners(child, "graceful&skip_exit")
            with trio.move_on_after(self.settings.value.parent_shutdown_seconds):
                await child.ended.wait()
            child.send_signal(signal.SIGTERM)
            await self._see_off(child)
            await child.ended.wait()
        finally:
            handing.close()

    async def _see_off(self, child: EnvoyChild) -> None:
        """Wait for the end of an Envoy that was taken over from; the new one ends it in time."""
        with trio.move_on_after(self.settings.value.parent_shutdown_seconds + _LATE_SECONDS):
            await child.ended.wait()
        if not child.ended.is_set():
            log.warning("an old envoy did not end, and is killed", pid=child.facts.pid)
            child.send_signal(signal.SIGKILL)

    async def _cancel_at_end(self, child: EnvoyChild, scope: trio.CancelScope) -> None:
        await child.ended.wait()
        scope.cancel()

    async def _end(self) -> None:
        """End all Envoys, or leave them."""
        if self._leaves:
            # One that has just ended is nobody's to go on with.
            self._handover.envoys[:] = [
                child.release().to_json() for child in self._children if child.returncode is None
            ]
            return
        with trio.CancelScope(shield=True):
            children = list(self._children)
            for child in children:
                child.send_signal(signal.SIGTERM)
            with trio.move_on_after(_STOP_SECONDS):
                for child in children:
                    await child.ended.wait()
            for child in children:
                child.send_signal(signal.SIGKILL)
            for child in children:
                await child.ended.wait()


def _advice(reason: str) -> dict[str, str]:
    if "Address already in use" not in reason:
        return {}
    return {"advice": "stop what has it, or choose another: --admin-port, --readiness-port, --prometheus-port"}


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else os.strerror(error.errno or 0)
    return str(error)
