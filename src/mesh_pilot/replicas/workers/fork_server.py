"""The fork server: a process that follows the World and does nothing else, so that workers can be forked from it.

It has one thread and no event loop, so a fork copies nothing that runs. A worker begins with the World of that time,
in memory that it shares with the fork server until either writes to it.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import structlog
import trio

from mesh_pilot.base.output import settle
from mesh_pilot.replicas.workers.frames import Applied, Fork, Kill, Setup, receive
from mesh_pilot.replicas.workers.link import Link
from mesh_pilot.replicas.workers.slot import WorkerSlot, listeners
from mesh_pilot.world import World

log = structlog.get_logger(scope="bootstrap")

GRACE_SECONDS = 2
"""The time beyond that for draining after which workers without a control plane are ended."""


Run = Callable[[WorkerSlot, Any], Awaitable[None]]
"""Runs a worker in a slot, with the settings of the setup, to its end."""


def serve_forks(
    sock: socket.socket, begin_worker: Callable[[int], None], run: Run, plain: type[Exception] | tuple[()] = ()
) -> None:
    """Serve until the first worker is gone; then see to it that the others end.

    ``begin_worker`` is called first in each new worker, with its number. ``plain``: exceptions of ``run`` whose text
    says all, without a traceback.
    """
    gc.disable()
    found = receive(sock)
    if found is None:
        return
    setup, _ = found
    assert isinstance(setup, Setup)
    world = _world(setup)
    children: dict[int, int] = {}  # the number of each process: one that was killed may still be there when the next is
    signal.signal(signal.SIGCHLD, lambda *_: _forget_ended(children))
    while (found := receive(sock)) is not None:
        message, descriptors = found
        match message:
            case Applied(revision=revision, events=events):
                world.follow(events, revision)
            case Fork(number=number):
                gc.freeze()
                with _closing(descriptors):
                    pid = _fork(number)
                    if pid == 0:
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        sock.close()
                        begin_worker(number)
                        _be_worker(message, descriptors, setup, world, run, plain)
                    if pid is not None:
                        children[pid] = number
            case Kill(number=number):
                for pid in [pid for pid, each in children.items() if each == number]:
                    _kill(pid)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _forget_ended(children)
    _wait(children, setup.shutdown_seconds + GRACE_SECONDS)


def _world(setup: Setup) -> World:
    world = World(
        domain=setup.domain,
        root_namespace=setup.root_namespace,
        short_names_in=setup.short_names_in,
        cluster_id=setup.cluster_id,
    )
    for source in setup.sources:
        world.expect(source)
    return world


def _be_worker(
    fork: Fork,
    descriptors: Sequence[int],
    setup: Setup,
    world: World,
    run: Run,
    plain: type[Exception] | tuple[()],
) -> NoReturn:
    """The life of a forked worker, to the end of the process."""
    code = 1

    async def run_in_slot() -> None:
        link, *shared = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        grpc, secure = (
            listeners(each) for each in (shared[: len(shared) - fork.secure], shared[len(shared) - fork.secure :])
        )
        await run(WorkerSlot(fork.number, world, Link(link), grpc, secure, setup.http), setup.settings)

    try:
        trio.run(run_in_slot)
        code = 0
    except* plain as refusals:
        log.error("a worker failed", failed=fork.number, reason="; ".join(map(str, refusals.exceptions)))
    except* BaseException as error:
        log.error("a worker failed", failed=fork.number, exc_info=error)
    finally:
        settle()
        os._exit(code)


@contextmanager
def _closing(descriptors: Iterable[int]) -> Iterator[None]:
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _fork(number: int) -> int | None:
    """The process id of the new process, 0 in that one; None if there can be none now."""
    try:
        return os.fork()
    except OSError as error:
        log.error("a worker failed", failed=number, reason=f"it cannot be forked: {error}")
        return None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, signal.SIGKILL)


def _forget_ended(children: dict[int, int]) -> None:
    """Forget the workers that have ended; their process ids are free from now on."""
    for pid in [*children]:
        if os.waitpid(pid, os.WNOHANG)[0]:
            del children[pid]


def _wait(children: dict[int, int], seconds: float) -> None:
    """Wait for workers to end by themselves; end those that do not."""

    def end_all(*_: object) -> None:
        for pid in children:
            _kill(pid)

    signal.signal(signal.SIGALRM, end_all)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    for pid in [*children]:
        os.waitpid(pid, 0)
        del children[pid]
