"""Runs one Envoy at a time, or two during a hot restart."""

from __future__ import annotations

import errno
import json
import math
import random
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio

from mesh_pilot.agent.envoy import command
from mesh_pilot.agent.envoy.admin import AdminError
from mesh_pilot.agent.envoy.backoff import RestartBackoff
from mesh_pilot.agent.envoy.binary import EnvoyBinary, EnvoyError, ask_binary, find_envoy
from mesh_pilot.agent.envoy.child import ChildFacts, EnvoyChild, validate
from mesh_pilot.agent.envoy.drain import drain_listeners, until_no_connections
from mesh_pilot.agent.envoy.envoys import Envoys, reason_of, trace_of
from mesh_pilot.agent.envoy.files import CANDIDATE, IN_FORCE, EnvoyFiles
from mesh_pilot.agent.envoy.state import EnvoyStatistics, Wanted
from mesh_pilot.agent.envoy.steering import HandingOver, share_admin_port
from mesh_pilot.agent.handover import Handover
from mesh_pilot.agent.observable import Observable
from mesh_pilot.agent.settings import MINIMUM_DRAIN_SECONDS, AgentFolders, EnvoySettings, Ports
from mesh_pilot.upkeep import until_done

log = structlog.get_logger(scope="agent")

_TAKE_OVER_SECONDS = 120.0
_AGAIN_SECONDS = 1.0
"""Before another step while Envoy serves, after an exception in the last."""
_RETRY_SECONDS = 10.0
"""Before another try to replace Envoy, where the last has failed for a fault of the machine, not of the bootstrap."""


class EnvoyRunner:
    """``ready`` is true while Envoy is live and has its first configuration.

    Run it in the main thread: Envoy ends with the thread that has started it.

    An exception costs a step, never the Envoy that serves: whatever it comes from, ``_recover`` ends the processes that
    neither serve nor have a successor, and the next step begins from ``_current`` and what is wanted.
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
        self._inbound_only = inbound_only
        self._handover = Handover() if handover is None else handover
        self._leaves = False
        self._wanted: Observable[Wanted | None] = Observable(None)
        self._started_on: Wanted | None = None
        """The one that the current Envoy runs on."""
        self._refused: Wanted | None = None
        """One that an Envoy did not take over on."""
        self._request: Observable[int] = Observable(0)
        self._envoys = Envoys(EnvoyFiles(folders.run), self.settings, self._changed)
        self._current: EnvoyChild | None = None
        """The Envoy that serves, or is to; None once it has exited."""
        self._judged: Wanted | None = None
        """The last that it was tried to run Envoy on."""
        self._again_at = math.inf
        """When that is tried once more, on Trio's clock."""
        self._due = -math.inf
        """When the next step may begin."""
        self._backoff = RestartBackoff(random.random)
        self._good: Wanted | None = None
        """The last that an Envoy became ready on."""
        self._is_draining = False
        self._restarts = self._hot_restarts = self._failed = 0

    def __repr__(self) -> str:
        return f"<EnvoyRunner {self._current or 'without an Envoy'}{', ready' if self.ready.value else ''}>"

    @property
    def has_started(self) -> bool:
        """True once an Envoy has started; before, an exception of ``run`` says why it cannot start."""
        return self._envoys.have_been

    @property
    def current(self) -> EnvoyChild | None:
        """The Envoy that serves, or is to; None once it has exited."""
        return self._current

    @property
    def why_not_ready(self) -> str:
        """Empty if it is ready."""
        if self._is_draining:
            return "Envoy is draining"
        if self._current is None:
            return "Envoy exited; restarting" if self.has_started else "Envoy has not started"
        return self._current.why_not_ready

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
            draining=sum(other is not child for other in self._envoys.running),
            restarts=self._restarts,
            hot_restarts=self._hot_restarts,
            failed_hot_restarts=self._failed,
            log_lines_left_out=self._envoys.log_lines_left_out,
        )

    async def run(self, bootstrap: Observable[Mapping[str, Any]]) -> None:
        """Run Envoy on the bootstrap until cancelled, restart it when it dies, hot restart it when that changes.

        While the bootstrap is empty, none is started; those that run already are tended.
        Raises EnvoyError if there is no Envoy that can be run at the start. Once it has ended or is cancelled, no
        Envoy runs any more, unless ``leave`` was called before.
        """
        async with trio.open_nursery() as nursery:
            for source in (bootstrap, self.settings, self._request):
                nursery.start_soon(until_done, "envoy's bootstrap", partial(self._follow, source, bootstrap))
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
            nursery.start_soon(_cancel_at_end, child, nursery.cancel_scope)
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

    def _take_over(self, nursery: trio.Nursery) -> None:
        """Go on with the Envoys that the version before has left."""
        told, self._handover.envoys[:] = list(self._handover.envoys), []
        for facts in map(ChildFacts.from_json, told):
            child = self._envoys.adopt(nursery, facts)
            if self._current is not None:
                self._envoys.let_go(self._current, nursery)
                self._current.has_admin = False
            self._current = child
        self._envoys.files.clean({child.facts.admin_file for child in self._envoys.running})
        if self._current is not None:
            self._changed(self._current)
            facts = self._current.facts
            log.info("envoy is taken over", version=facts.binary.release, pid=facts.pid, epoch=facts.epoch)

    async def _supervise(self, nursery: trio.Nursery) -> None:
        self._take_over(nursery)
        while True:
            try:
                await self._step(nursery)
            except Exception as error:
                if not self.has_started:
                    raise self._no_start(error) from error
                self._recover(error)

    async def _step(self, nursery: trio.Nursery) -> None:
        """Start an Envoy unless one runs, and keep it until it exits."""
        await self._pause()
        if self._current is None and self._is_draining:
            await trio.sleep_forever()
        child = await self._keep(self._current or await self._begin(nursery), nursery)
        if self._is_draining:
            await trio.sleep_forever()
        self._put_off(child.age_seconds, child.end_reason)

    def _put_off(self, lived: float, reason: str) -> None:
        """Delay the next Envoy after one that lived for ``lived`` seconds."""
        seconds = self._backoff.after(lived)
        self._due = trio.current_time() + seconds
        self._restarts += 1
        log.error("envoy exited; restarting", reason=reason, seconds=round(seconds, 1), **_advice(reason))

    def _recover(self, error: Exception) -> None:
        """Go on after any exception: with the Envoy that serves, or with another one."""
        self._envoys.kill_strays(self._current)
        if self._current is None:
            self._put_off(0.0, reason_of(error))
        else:
            self._due = trio.current_time() + _AGAIN_SECONDS
            log.error("envoy keeps serving; retrying after an error", reason=reason_of(error), **trace_of(error))

    def _no_start(self, error: Exception) -> Exception:
        if not isinstance(error, OSError):
            return error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            said = f"{self._envoys.files.folder}: {error.strerror}; Envoy's files go there"
            return EnvoyError(f"{said}: make room, or name another folder with --run-dir")
        return EnvoyError(reason_of(error))

    async def _pause(self) -> None:
        """Wait until the next step is due, or less if there is another bootstrap, half a second at least."""
        before, seconds = self._wanted.value, self._due - trio.current_time()
        if seconds > 0:
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
        base_id = self._envoys.base_id(wanted.settings)
        config = self._write(wanted.bootstrap, IN_FORCE)
        child = self._current = self._envoys.start(nursery, wanted, config, binary, base_id, 0)
        self._started_on = self._judged = wanted
        return child

    def _write(self, bootstrap: Mapping[str, Any], name: str) -> Path:
        return self._envoys.files.write(name, json.dumps(share_admin_port(bootstrap), indent=1).encode())

    def _changed(self, child: EnvoyChild) -> None:
        if child is self._current:
            if child.is_ready:
                self._good = self._started_on
            if not self._is_draining:
                self.ready.set(child.is_ready)
            if child.ended.is_set():
                self._current = None

    async def _keep(self, child: EnvoyChild, nursery: trio.Nursery) -> EnvoyChild:
        """Wait for the end of Envoy, and replace it meanwhile as wanted; returns the one that has ended."""
        while True:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(_cancel_at_end, child, waiting.cancel_scope)
                with trio.CancelScope(deadline=self._again_at):
                    await self._wanted.wait_for(lambda wanted: wanted != self._judged)
                while self._is_draining or len(self._envoys.running) > 1:
                    await self._other_end(child)
                waiting.cancel_scope.cancel()
            if child.ended.is_set():
                return child
            self._judged, self._again_at = self._wanted.value, math.inf
            assert self._judged is not None
            child = await self._replace(child, self._judged, nursery)

    async def _other_end(self, child: EnvoyChild) -> None:
        """Wait for the end of an older Envoy than ``child``; for ever while it is drained."""
        others = [other for other in self._envoys.running if other is not child]
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
            candidate = self._write(wanted.bootstrap, CANDIDATE)
            reason = await validate(binary, candidate, command.flags(wanted.settings))
            if not reason:
                can_follow = child.has_admin and child.facts.base_id is not None
                can_follow = can_follow and binary.hot_restart == child.facts.binary.hot_restart
                replace_it = self._hot_restart if can_follow else self._replace_beside
                reason = await replace_it(child, wanted, candidate, binary, nursery)
        except Exception:  # of the machine or ours, which says nothing about the bootstrap
            self._failed += 1
            self._again_at = trio.current_time() + _RETRY_SECONDS
            raise
        if not reason:
            return self._current or child
        self._failed += 1
        self._refused = wanted
        log.error("envoy is not replaced; the one that runs serves on", reason=reason)
        if not child.has_admin and child.returncode is None:
            await self._mend(child, nursery)
        return self._current or child

    async def _mend(self, child: EnvoyChild, nursery: trio.Nursery) -> None:
        """Replace an Envoy that a failed successor has left without its admin interface, and unable to be followed."""
        known_good = self._started_on
        if known_good is None:
            return
        config = self._write(known_good.bootstrap, CANDIDATE)
        reason = await self._replace_beside(child, known_good, config, child.facts.binary, nursery)
        if reason:
            log.error("envoy has no admin interface until it is restarted", reason=reason)

    def _runs_on(self, child: EnvoyChild, wanted: Wanted, binary: EnvoyBinary) -> bool:
        """Whether an Envoy that was taken over needs no restart."""
        same_flags = child.facts.flags == tuple(command.flags(wanted.settings))
        try:
            in_force = json.loads(self._envoys.files.in_force() or b"")
        except ValueError:
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
        successor = self._envoys.start(nursery, wanted, candidate, binary, child.facts.base_id, child.facts.epoch + 1)
        child.has_admin = False
        reason = await self._until_ready(successor)
        if not reason:
            self._succeed(successor, wanted, candidate)
            self._envoys.let_go(child, nursery)
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
        self._current, self._started_on = successor, wanted
        self._envoys.files.put_in_force(candidate)
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
        successor = self._envoys.start(nursery, wanted, candidate, binary, base_id, 0)
        had_admin, child.has_admin = child.has_admin, False
        if had_admin:
            with suppress(AdminError):  # on a connection that is kept: new ones will go to the successor
                await (await child.admin()).state()
        handing = HandingOver(child, successor)
        try:
            reason = await handing.lead_admin() or await self._until_ready(successor)
        except BaseException:
            handing.close()  # its sockets would take connections for nobody
            child.has_admin = had_admin
            raise
        if reason:
            successor.send_signal(signal.SIGKILL)
            handing.close()
            child.has_admin = had_admin
            return reason
        self._succeed(successor, wanted, candidate)
        self._envoys.let_go(child, nursery, partial(self._end_beside, child, handing, had_admin))
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
            await self._envoys.see_off(child)
        finally:
            handing.close()

    async def _end(self) -> None:
        """End all Envoys, or leave them."""
        if self._leaves:
            # One that has just ended is nobody's to go on with.
            self._handover.envoys[:] = [
                child.release().to_json() for child in self._envoys.running if child.returncode is None
            ]
            return
        await self._envoys.end()


async def _cancel_at_end(child: EnvoyChild, scope: trio.CancelScope) -> None:
    await child.ended.wait()
    scope.cancel()


def _advice(reason: str) -> dict[str, str]:
    if "Address already in use" not in reason:
        return {}
    return {"advice": "stop what has it, or choose another: --admin-port, --readiness-port, --prometheus-port"}
