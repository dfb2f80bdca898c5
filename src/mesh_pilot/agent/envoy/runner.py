"""Runs one Envoy at a time, or two during a hot restart.

``EnvoyLife`` says what to do next, ``take_over`` how one Envoy follows another; here it is done, one step at a time.
Envoy is a child of the agent rather than a separate unit, so that it never runs without the agent that gives it
certificates, and a hot restart can keep its sockets. What is wanted is compared again before each step, so a bootstrap
that changes three times during a replacement costs one more replacement, not three.
"""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import structlog
import trio

from mesh_pilot.agent.base.handover import Handover
from mesh_pilot.agent.base.observable import Observable, first_of
from mesh_pilot.agent.envoy import command
from mesh_pilot.agent.envoy.binary import EnvoyBinary, EnvoyError, ask_binary, find_envoy
from mesh_pilot.agent.envoy.child import ChildFacts, EnvoyChild
from mesh_pilot.agent.envoy.drain import drain_listeners, until_no_connections
from mesh_pilot.agent.envoy.envoys import Envoys, reason_of, trace_of
from mesh_pilot.agent.envoy.files import CANDIDATE, IN_FORCE, EnvoyFiles
from mesh_pilot.agent.envoy.life import (
    EnvoyLife,
    EnvoyState,
    ReplaceEnvoy,
    RestartBackoff,
    StartEnvoy,
    WaitUntil,
    Wanted,
)
from mesh_pilot.agent.envoy.steering import share_admin_port
from mesh_pilot.agent.envoy.takeover import NotTakenOver, TakeOver, take_over, take_over_beside
from mesh_pilot.agent.envoy.validation import validate
from mesh_pilot.agent.settings import MINIMUM_DRAIN_SECONDS, AgentFolders, EnvoySettings, Ports
from mesh_pilot.base.containment import until_done

log = structlog.get_logger(scope="agent")


@attrs.frozen
class EnvoyStatistics:
    """The numbers of an Envoy's life."""

    version: str
    pid: int
    """0: none runs."""
    epoch: int
    base_id: int
    """0: it runs without hot restart."""
    uptime_seconds: float
    ready: bool
    reason: str
    """Why it is not ready."""
    draining: int
    """Old Envoys whose connections still end."""
    restarts: int
    """Starts after an end that was not asked for."""
    hot_restarts: int
    failed_hot_restarts: int
    log_lines_left_out: int


class EnvoyRunner:
    """``ready`` is true while Envoy is live and has its first configuration.

    Run it in the main thread: Envoy ends with the thread that has started it.

    An exception costs a step, never the Envoy that serves: whatever it comes from, the processes that neither serve nor
    have a successor are ended, and ``EnvoyLife`` says the next step.

    Mutable state: where its life stands, the Envoy that serves, and counts.
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
        self._request: Observable[int] = Observable(0)
        self._envoys = Envoys(EnvoyFiles(folders.run), self.settings, self._changed)
        self._life = EnvoyLife(RestartBackoff(random.random))
        self._child: EnvoyChild | None = None
        """The Envoy that serves, or is to; an ended one until its end is noted."""
        self._restarts = self._hot_restarts = self._failed = 0
        self._happened = trio.Event()

    def __repr__(self) -> str:
        return f"<EnvoyRunner {self.current or 'without an Envoy'}{', ready' if self.ready.value else ''}>"

    @property
    def has_started(self) -> bool:
        """True once an Envoy has started; before, an exception of ``run`` says why it cannot start."""
        return self._envoys.have_been

    @property
    def current(self) -> EnvoyChild | None:
        """The Envoy that serves, or is to; None once it has exited."""
        return None if self._child is None or self._child.ended.is_set() else self._child

    @property
    def why_not_ready(self) -> str:
        """Empty if it is ready."""
        if self._life.state is EnvoyState.DRAINING:
            return "Envoy is draining"
        if self.current is None:
            return "Envoy exited; restarting" if self.has_started else "Envoy has not started"
        return self.current.why_not_ready

    def statistics(self) -> EnvoyStatistics:
        child = self.current
        facts = child.facts if child else None
        return EnvoyStatistics(
            version=facts.binary.release if facts else "",
            pid=facts.pid if facts else 0,
            epoch=facts.epoch if facts else 0,
            base_id=(facts.base_id or 0) if facts else 0,
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
        Raises EnvoyError if there is no Envoy that can be run at the start. Once it ended or is cancelled, no
        Envoy runs any more, unless ``leave`` was called before.
        """
        async with trio.open_nursery() as nursery:
            for follow in (bootstrap.follow, self.settings.follow, self._request.follow):
                wait = partial(follow, lambda _: self._want(bootstrap))
                nursery.start_soon(until_done, "envoy's bootstrap", wait)
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
        self._life.drain()
        self.ready.set(False)
        child = self.current
        if child is None or child.returncode is not None:
            return
        settings = self.settings.value
        minimum = MINIMUM_DRAIN_SECONDS if settings.minimum_drain is None else settings.minimum_drain
        log.info("draining", seconds=minimum if settings.exit_on_zero_active_connections else seconds)

        async def until_drained() -> None:
            query = ("inboundonly&" if self._inbound_only else "") + "graceful"
            if not settings.exit_on_zero_active_connections:
                await drain_listeners(child, query)
                await trio.sleep(seconds)
                return
            await drain_listeners(child, f"{query}&skip_exit")
            await trio.sleep(minimum)
            await until_no_connections(child, (self._ports.readiness, self._ports.prometheus))

        await first_of(until_drained, child.ended.wait)

    # -- what happens

    def _want(self, bootstrap: Observable[Mapping[str, Any]]) -> None:
        if bootstrap.value:
            self._life.want(Wanted(bootstrap.value, self.settings.value, self._request.value), trio.current_time())
            self._happened.set()

    def _changed(self, child: EnvoyChild) -> None:
        if child is self._child:
            if child.is_ready:
                self._life.ready()
            if self._life.state is not EnvoyState.DRAINING:
                self.ready.set(child.is_ready)
        self._happened.set()

    def _take_up(self, nursery: trio.Nursery) -> None:
        """Go on with the Envoys that the version before has left."""
        self._child = self.current
        told, self._handover.envoys[:] = list(self._handover.envoys), []
        for facts in map(ChildFacts.from_json, told):
            child = self._envoys.adopt(nursery, facts)
            if self._child is not None:
                self._envoys.let_go(self._child, nursery)
                self._child.has_admin = False
            self._child = child
        self._envoys.files.clean({child.facts.admin_file for child in self._envoys.running})
        self._life.begin(is_up=self.current is not None)
        if self.current is not None:
            self._changed(self.current)
            facts = self.current.facts
            log.info("envoy is taken over", version=facts.binary.release, pid=facts.pid, epoch=facts.epoch)

    # -- what is done

    async def _supervise(self, nursery: trio.Nursery) -> None:
        self._take_up(nursery)
        while True:
            try:
                await self._step(nursery)
            except Exception as error:
                if not self.has_started:
                    raise self._no_start(error) from error
                self._recover(error)

    async def _step(self, nursery: trio.Nursery) -> None:
        """Take note of an end, and do what is to be done next."""
        self._happened = trio.Event()
        if self._child is not None and self._child.ended.is_set():
            child, self._child = self._child, None
            self._note_end(child.age_seconds, child.end_reason)
        match self._life.next(trio.current_time(), is_alone=len(self._envoys.running) <= 1):
            case StartEnvoy(wanted):
                await self._start(wanted, nursery)
            case ReplaceEnvoy(wanted):
                assert self._child is not None, "one is up"
                await self._replace(self._child, wanted, nursery)
            case WaitUntil(until):
                with trio.CancelScope(deadline=until):
                    await self._happened.wait()

    def _note_end(self, lived_seconds: float, reason: str) -> None:
        if self._life.state is EnvoyState.DRAINING:
            return
        seconds = self._life.ended(lived_seconds, trio.current_time())
        self._restarts += 1
        log.error("envoy exited; restarting", reason=reason, seconds=round(seconds, 1), **_advice(reason))

    def _recover(self, error: Exception) -> None:
        """Go on after any exception: with the Envoy that serves, or with another one."""
        self._envoys.kill_strays(self.current)
        if self.current is None:
            self._child = None
            self._note_end(0.0, reason_of(error))
        else:
            self._life.failed(trio.current_time())
            log.error("envoy keeps serving; retrying after an error", reason=reason_of(error), **trace_of(error))

    def _no_start(self, error: Exception) -> Exception:
        if not isinstance(error, OSError):
            return error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            said = f"{self._envoys.files.folder}: {error.strerror}; Envoy's files go there"
            return EnvoyError(f"{said}: make room, or name another folder with --run-dir")
        return EnvoyError(reason_of(error))

    async def _start(self, wanted: Wanted, nursery: trio.Nursery) -> None:
        binary = await ask_binary(find_envoy(wanted.settings.binary))
        base_id = self._envoys.base_id(wanted.settings)
        config = self._write(wanted.bootstrap, IN_FORCE)
        self._child = self._envoys.start(nursery, wanted, config, binary, base_id, 0)
        self._life.started(wanted)

    def _write(self, bootstrap: Mapping[str, Any], name: str) -> Path:
        return self._envoys.files.write(name, json.dumps(share_admin_port(bootstrap), indent=1).encode())

    async def _replace(self, child: EnvoyChild, wanted: Wanted, nursery: trio.Nursery) -> None:
        """Have another Envoy take over from ``child``, or keep that where it needs no other."""
        known_good = self._life.trials.current
        self._life.replacing(wanted)
        try:
            binary = await ask_binary(find_envoy(wanted.settings.binary))
            if wanted == known_good or (known_good is None and self._runs_on(child, wanted, binary)):
                self._life.succeeded(wanted)
                self._changed(child)
                return
            config = self._write(wanted.bootstrap, CANDIDATE)
            if reason := await validate(binary, config, command.flags(wanted.settings)):
                raise NotTakenOver(reason)
            taken = await take_over(self._envoys, nursery, child, wanted, config, binary)
        except NotTakenOver as refusal:
            self._failed += 1
            self._life.refused(wanted)
            log.error("envoy is not replaced; the one that runs serves on", reason=str(refusal))
            if not child.has_admin and child.returncode is None and known_good is not None:
                await self._restore_admin(child, known_good, nursery)
        except Exception:  # of the machine or ours, which says nothing about the bootstrap
            self._failed += 1
            raise
        else:
            self._succeed(child, taken, wanted, config, nursery)

    async def _restore_admin(self, child: EnvoyChild, known_good: Wanted, nursery: trio.Nursery) -> None:
        """Replace an Envoy that a failed successor has left without its admin interface, and unable to be followed."""
        config = self._write(known_good.bootstrap, CANDIDATE)
        try:
            taken = await take_over_beside(self._envoys, nursery, child, known_good, config, child.facts.binary)
        except NotTakenOver as refusal:
            log.error("envoy has no admin interface until it is restarted", reason=str(refusal))
        else:
            self._succeed(child, taken, known_good, config, nursery)

    def _runs_on(self, child: EnvoyChild, wanted: Wanted, binary: EnvoyBinary) -> bool:
        """True if an Envoy that was taken over needs no restart."""
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

    def _succeed(self, child: EnvoyChild, taken: TakeOver, wanted: Wanted, config: Path, nursery: trio.Nursery) -> None:
        self._child = successor = taken.successor
        self._life.succeeded(wanted)
        self._envoys.files.put_in_force(config)
        self._hot_restarts += 1
        self._changed(successor)
        facts = successor.facts
        log.info("envoy was hot restarted", version=facts.binary.release, pid=facts.pid, epoch=facts.epoch)
        self._envoys.let_go(child, nursery, taken.end)

    async def _end(self) -> None:
        """End all Envoys, or leave them."""
        if self._leaves:
            # One that has just ended cannot be passed on.
            self._handover.envoys[:] = [
                child.release().to_json() for child in self._envoys.running if child.returncode is None
            ]
            return
        await self._envoys.end()


def _advice(reason: str) -> dict[str, str]:
    if "Address already in use" not in reason:
        return {}
    return {"advice": "stop what has it, or choose another: --admin-port, --readiness-port, --prometheus-port"}
