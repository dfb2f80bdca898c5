"""One Envoy process of ours: its log, its admin interface, its readiness and its end.

The process is not a ``trio.Process``: it outlives the agent's process image at an upgrade, so all that is known of it
is in ``ChildFacts``, from which another image continues. It is tended in a shielded scope, because cancelled tasks must
not leave a process whose end is not seen; its pipes are read to their ends even after an error, because an Envoy whose
log cannot be written exits. Readiness is polled: Envoy does not announce it. ``spawn`` goes through ``launcher``, since
no Python may run between fork and exec of a process with threads.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from mesh_pilot.agent.base.observable import first_of
from mesh_pilot.agent.envoy import launcher
from mesh_pilot.agent.envoy.admin import AdminClient, AdminError
from mesh_pilot.agent.envoy.binary import EnvoyBinary
from mesh_pilot.agent.envoy.log import EnvoyLog, LogParser
from mesh_pilot.agent.envoy.readiness import STATISTICS, why_not_ready
from mesh_pilot.base.containment import until_done
from mesh_pilot.base.output import Output, output_of

_PIPE_BYTES = 1024 * 1024
"""Room for Envoy's log while the agent is busy, or executes its next version."""
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.05, 1.0
_MISSES = 3
"""An admin interface that does not answer so often in a row makes Envoy unready."""
_REST_OF_LOG_SECONDS = 1.0
_FIND_ADMIN_SECONDS = 0.02
_STDOUT = 1
_LONGEST_LINE = 64 * 1024
"""A longer one is passed on in parts."""


@attrs.frozen
class ChildFacts:
    """All there is to know of an Envoy in order to go on with it, in another process image too."""

    pid: int
    log_descriptor: int
    """The end of the pipe from which its log is read."""
    output_descriptor: int | None
    """The end of the pipe from which its standard output is read; None: an earlier version has given it ours."""
    log_mark: str
    binary: EnvoyBinary
    epoch: int
    base_id: int | None
    """None: it runs without hot restart."""
    admin_file: Path
    """Envoy writes the address of its admin interface into it."""
    flags: tuple[str, ...]
    """The result of ``command.flags``."""
    awaited: tuple[str, ...]
    """The prefixes of ``readiness.awaited``."""
    started: float
    """Seconds since the system has booted (``CLOCK_BOOTTIME``)."""
    ready: bool = False
    """True if it was ready when it was released."""

    def to_json(self) -> dict[str, Any]:
        return attrs.asdict(
            self, value_serializer=lambda _, __, value: str(value) if isinstance(value, Path) else value
        )

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> ChildFacts:
        """Raises LookupError or TypeError for another version's."""
        binary = told["binary"]
        return cls(
            **{
                **told,
                "binary": EnvoyBinary(Path(binary["path"]), binary["build"], binary["hot_restart"]),
                "admin_file": Path(told["admin_file"]),
                "flags": tuple(told["flags"]),
                "awaited": tuple(told["awaited"]),
            }
        )


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EnvoyChild:
    """``tend`` must run for as long as the process does. ``repr()`` shows its pid and its state."""

    def __init__(self, facts: ChildFacts, changed: Callable[[EnvoyChild], None]) -> None:
        """``changed`` is called when ``is_ready`` has another value."""
        self.facts = facts
        self.ended = trio.Event()
        self.returncode: int | None = None
        self.why_not_ready = "" if facts.ready else "Envoy has not started"
        self.has_admin = True
        """False once its successor has taken the admin interface."""
        self.log = EnvoyLog(LogParser(facts.log_mark), trio.current_time)
        self._was_ready = trio.Event()
        self._changed = changed
        self._tending = trio.CancelScope(shield=True)
        self._admin: AdminClient | None = None

    def __repr__(self) -> str:
        state = "running" if self.returncode is None else f"ended {self.returncode}"
        return f"<EnvoyChild {self.facts.pid} epoch {self.facts.epoch} {state}>"

    @property
    def is_ready(self) -> bool:
        return not self.why_not_ready and self.returncode is None

    @property
    def age_seconds(self) -> float:
        return since_boot() - self.facts.started

    @property
    def end_reason(self) -> str:
        """How it ended, with its own last words."""
        code = self.returncode or 0
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        words = " ".join((self.log.last_error or self.log.last_line).split())[:600]
        return f"{how}: {words}" if words else how

    async def ready_or_ended(self) -> None:
        """Wait until it is ready for the first time, or ended."""
        await first_of(self._was_ready.wait, self.ended.wait)

    def release(self) -> ChildFacts:
        """Leave the process running and stop to tend it; returns facts with which another agent continues."""
        log_pipe, output = os.dup(self.facts.log_descriptor), self.facts.output_descriptor
        output = None if output is None else os.dup(output)
        facts = attrs.evolve(self.facts, log_descriptor=log_pipe, output_descriptor=output, ready=self.is_ready)
        self._tending.cancel()
        return facts

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.facts.pid, number)

    def has_admin_file(self) -> bool:
        """True if Envoy has written where its admin interface is, and so listens there."""
        try:
            return self.facts.admin_file.stat().st_size > 0
        except OSError:
            return False

    async def admin(self) -> AdminClient:
        """The admin interface, once there is one. Cancelled: nothing is left behind."""
        while self._admin is None:
            with suppress(OSError):
                address = self.facts.admin_file.read_text(encoding="utf-8").strip()
                if address:
                    self._admin = AdminClient(address)
                    break
            await trio.sleep(_FIND_ADMIN_SECONDS)
        return self._admin

    async def tend(self) -> None:
        """Read its log and watch its readiness until it ended, or is released; cancellation waits for either.

        Once it ended, ``ended`` is set, and its process id is free.
        """
        if self.ended.is_set():
            return
        try:
            with self._tending:
                async with trio.open_nursery() as nursery:
                    finished = trio.Event()
                    nursery.start_soon(self._read, finished)
                    nursery.start_soon(until_done, "envoy's readiness", self._watch)
                    await until_done("envoy's end", self._reap)
                    with trio.move_on_after(_REST_OF_LOG_SECONDS):
                        await finished.wait()
                    nursery.cancel_scope.cancel()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """After the end, the release, or what must not be: then Envoy ends with the task that tends it."""
        for descriptor in (self.facts.log_descriptor, self.facts.output_descriptor):
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)
        if self._admin is not None:
            self._admin.abort()
        if self.returncode is None and not self._tending.cancel_called:
            with suppress(OSError):
                os.kill(self.facts.pid, signal.SIGKILL)
            self.returncode = self._collect()
        if self.returncode is not None:  # else it is released
            self.ended.set()
            self._changed(self)

    async def _reap(self) -> None:
        if self.returncode is not None:
            return
        try:
            descriptor = os.pidfd_open(self.facts.pid)
        except OSError:  # an old kernel
            await trio.to_thread.run_sync(os.waitid, os.P_PID, self.facts.pid, os.WEXITED | os.WNOWAIT)
        else:
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        self.returncode = self._collect()

    def _collect(self) -> int:
        """Collect the process, which ended."""
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.facts.pid, 0)[1])
        except ChildProcessError:  # somebody else has
            return 0

    async def _read(self, finished: trio.Event) -> None:
        """Read its log and its standard output to their ends, also after an error: Envoy exits without a reader."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_done, "envoy's log", self._read_log)
            if self.facts.output_descriptor is not None:
                pass_on = partial(_pass_on, self.facts.output_descriptor, output_of(_STDOUT))
                nursery.start_soon(until_done, "envoy's output", pass_on)
        finished.set()

    async def _read_log(self) -> None:
        async with trio.lowlevel.FdStream(os.dup(self.facts.log_descriptor)) as stream:
            async for data in stream:
                self.log.feed(bytes(data))
        self.log.finish()

    async def _watch(self) -> None:
        admin = await self.admin()
        was_accepted, misses = self.facts.ready, 0
        while True:
            try:
                why = await self._look(admin, was_accepted)
                misses = 0
            except AdminError as error:
                misses += 1
                why = str(error) if misses >= _MISSES else self.why_not_ready
            if self.has_admin:
                was_accepted = was_accepted or not why
                self._set(why)
            await trio.sleep(_POLL_SECONDS if was_accepted else _FIRST_POLL_SECONDS)

    async def _look(self, admin: AdminClient, was_accepted: bool) -> str:
        if not self.has_admin:
            return self.why_not_ready
        state = await admin.state()
        if was_accepted:  # what it had it keeps; the statistics of a large configuration cost too much to ask again
            return "" if state == "LIVE" else f"Envoy is {state}"
        return why_not_ready(state, await admin.stats(STATISTICS), self.facts.awaited)

    def _set(self, why: str) -> None:
        before, self.why_not_ready = self.is_ready, why
        if self.is_ready:
            self._was_ready.set()
        if self.is_ready != before:
            self._changed(self)


def spawn(command: Sequence[str], log_format: str) -> tuple[int, int, int]:
    """Start Envoy so that it ends with this process; returns its process id and the descriptors of log and output.

    Call it in the main thread: Envoy ends with the thread that has started it. Raises OSError.
    """
    reading, writing = os.pipe()
    # Envoy opens /dev/stdout by its name: it cannot if ours is a socket, as systemd's, or was opened by another user.
    output, its_output = os.pipe()
    try:
        for pipe in (writing, its_output):
            with suppress(OSError):  # the limit for those without privileges may be reached
                fcntl(pipe, F_SETPIPE_SZ, _PIPE_BYTES)
        arguments = [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid())]
        pid = os.posix_spawn(
            sys.executable,
            [*arguments, *command, "--log-format", log_format],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, its_output, _STDOUT),
                (os.POSIX_SPAWN_DUP2, writing, 2),
            ],
            setsigmask=(),
            setsigdef=(signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD),
        )
    except BaseException:
        os.close(reading)
        os.close(output)
        raise
    finally:
        os.close(writing)
        os.close(its_output)
    return pid, reading, output


async def _pass_on(descriptor: int, output: Output) -> None:
    """Copy Envoy's standard output, line by line, to ours. What that does not take is dropped: Envoy never waits."""
    rest = b""
    try:
        async with trio.lowlevel.FdStream(os.dup(descriptor)) as stream:
            async for data in stream:
                whole, newline, rest = (rest + data).rpartition(b"\n")
                output.put(whole + newline)
                if len(rest) > _LONGEST_LINE:
                    output.put(rest)
                    rest = b""
    finally:
        output.put(rest)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
