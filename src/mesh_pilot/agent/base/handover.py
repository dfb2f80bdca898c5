"""Everything that the agent hands to its next version when it executes it: listening sockets by name, and Envoy.

The agent's process stays, so Envoy stays its child, and clients of its sockets wait in the queues of the kernel. The
parts of the agent end in order; their sockets do not, because the handover has a duplicate of each. It travels as JSON
in a memfd, whose number is in an environment variable.

    handover = Handover.received()
    while trio.run(run_agent, settings, handover):    # true: a signal asked for the next version
        log.error("...", reason=handover.execute())   # returns only if that cannot be executed; the agent continues
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
import trio

from mesh_pilot.base.output import settle
from mesh_pilot.net.rpc.net import open_listeners

log = structlog.get_logger(scope="agent")

VARIABLE = "MESH_PILOT_HANDOVER"
"""``PID:DESCRIPTOR``, of the agent and of the memfd."""

ENDS = (signal.SIGTERM, signal.SIGINT)
"""Signals that end the agent. They wait while the next version starts, which is to unblock them."""

_FORMAT = 1
_SELF_TEST_SECONDS = 60.0


class Handover:
    """Sockets that parts of the agent take, or open, by name; and the Envoys that run.

    State: the sockets received and not yet taken, and a duplicate of each socket that is open.
    """

    def __init__(self) -> None:
        self.envoys: list[dict[str, Any]] = []
        """Facts about the Envoys that run, newest last: ``ChildFacts`` as JSON. Whoever takes them, empties it."""
        self._received: dict[str, tuple[str, list[socket.socket]]] = {}
        self._open: dict[str, tuple[str, list[socket.socket]]] = {}

    def __repr__(self) -> str:
        return f"<Handover received={sorted(self._received)} open={sorted(self._open)} envoys={len(self.envoys)}>"

    @classmethod
    def received(cls) -> Handover:
        """The handover of the version before; empty if this process was started again."""
        handover = cls()
        pid, _, number = os.environ.pop(VARIABLE, "").partition(":")
        if pid != str(os.getpid()):
            return handover
        try:
            with os.fdopen(int(number), "rb") as file:
                file.seek(0)
                told = json.load(file)
            handover._receive(told)
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.error("the handover of the version before cannot be read; its Envoy ends", reason=str(error))
            _end_children()
        return handover

    def _receive(self, told: dict[str, Any]) -> None:
        if told["format"] != _FORMAT:
            raise ValueError(f"format {told['format']}")
        for name, (address, descriptors) in told["sockets"].items():
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            self._received[name] = (address, [socket.socket(fileno=each) for each in descriptors])
        self.envoys = told["envoys"]
        for descriptor in self._pipes():
            os.set_inheritable(descriptor, False)

    def _pipes(self) -> list[int]:
        """The descriptors from which log and output of Envoys are read."""
        names = ("log_descriptor", "output_descriptor")
        return [facts[name] for facts in self.envoys for name in names if facts.get(name) is not None]

    async def listeners(self, name: str, address: str) -> list[trio.SocketListener]:
        """Listeners on ``address`` (as for ``net.rpc.open_listeners``): those received under this name, or new ones.

        Raises AddressError.
        """
        found = self._take(name, address)
        if found is None:
            listeners = await open_listeners(address)
            self._keep(name, address, [listener.socket.fileno() for listener in listeners])
            return listeners
        return [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in found]

    def sockets(self, name: str, address: str, bind: Callable[[], Sequence[socket.socket]]) -> list[socket.socket]:
        """Sockets received under this name, if ``address`` (any text) is the same, else those of ``bind``."""
        found = self._take(name, address)
        if found is None:
            found = list(bind())
            self._keep(name, address, [each.fileno() for each in found])
        return found

    def forget(self, name: str) -> None:
        """Close what is kept under a name: the next that asks for it gets another."""
        self._forget(self._open.pop(name, None))

    def close_rest(self) -> None:
        """Close the received sockets that no part has taken; call it once all parts have their sockets."""
        for received in self._received.values():
            self._forget(received)
        self._received.clear()

    def close(self) -> None:
        """Close all sockets that are kept here."""
        self.close_rest()
        for kept in self._open.values():
            self._forget(kept)
        self._open.clear()

    def _take(self, name: str, address: str) -> list[socket.socket] | None:
        """The sockets under a name, for the taker; None if there are none, or they are bound to something else."""
        if name in self._open and self._open[name][0] == address:  # the next version could not be executed
            return [each.dup() for each in self._open[name][1]]
        self._forget(self._open.pop(name, None))
        received = self._received.pop(name, None)
        if received is None:
            return None
        if received[0] != address:
            self._forget(received)
            return None
        self._keep(name, address, [each.fileno() for each in received[1]])
        return received[1]

    def _keep(self, name: str, address: str, descriptors: Sequence[int]) -> None:
        self._open[name] = (address, [socket.socket(fileno=os.dup(each)) for each in descriptors])

    @staticmethod
    def _forget(kept: tuple[str, list[socket.socket]] | None) -> None:
        for each in kept[1] if kept else ():
            each.close()

    def execute(self, command: Sequence[str] | None = None) -> str:
        """Become ``command``, by default the command of this process; returns only if that fails: the reason.

        Call it in the main thread, outside ``trio.run``.
        """
        command = list(command or own_command())
        self.close_rest()
        sockets = {name: (address, [each.fileno() for each in kept]) for name, (address, kept) in self._open.items()}
        passed = [number for _, numbers in sockets.values() for number in numbers]
        passed += self._pipes()
        settle()
        told = json.dumps({"format": _FORMAT, "sockets": sockets, "envoys": self.envoys})
        memory = os.memfd_create("mesh-pilot-handover")
        try:
            os.write(memory, told.encode())
            for number in (memory, *passed):
                os.set_inheritable(number, True)
            # What arrives before the next version listens to signals would end it at once, and Envoy with it.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
            os.execve(command[0], command, {**os.environ, VARIABLE: f"{os.getpid()}:{memory}"})
        except OSError as error:
            for number in passed:
                os.set_inheritable(number, False)
            return f"{command[0]}: {error.strerror}"
        finally:
            os.close(memory)


def own_command() -> list[str]:
    """The command of this process, with the interpreter's own path and options."""
    return [sys.executable, *sys.orig_argv[1:]]


async def self_test(command: Sequence[str]) -> str:
    """Why the agent that is installed now would not start with its settings; empty if it would.

    ``command``: one that only checks, such as ``own_command()`` with ``--check``.
    """
    try:
        with trio.fail_after(_SELF_TEST_SECONDS):
            done = await trio.run_process(
                command, stdin=subprocess.DEVNULL, capture_stdout=True, capture_stderr=True, check=False
            )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    except trio.TooSlowError:
        return f"it took longer than {_SELF_TEST_SECONDS:g} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return (lines or [f"exit code {done.returncode}"])[-1][:600]


def _end_children() -> None:
    """End all processes whose parent we are: Envoys about which nothing is known."""
    with suppress(OSError):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        for pid in map(int, children.split()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
