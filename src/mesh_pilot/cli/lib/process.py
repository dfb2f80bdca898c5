"""Settings of the server's process: signals that do not end it, core dumps, open files, and garbage collection.

SIGUSR1 logs statistics; SIGHUP and SIGUSR2 only log that they have no effect. By default each of them would end the
process without a drain: a closed terminal, or log rotation for another server, would disconnect all proxies.
"""

from __future__ import annotations

import gc
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_pilot.app.control_plane import ControlPlane
    from mesh_pilot.ops.plane.state import PlaneState

_PR_SET_DUMPABLE = 4
"""Linux, prctl(2)."""

OUTLIVED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def outlive_signals() -> None:
    """Ignore these signals until somebody receives them: `answer_signals`, or an agent those it knows."""
    for number in OUTLIVED:
        signal.signal(number, signal.SIG_IGN)


def forbid_core_dumps() -> None:
    """Keep private keys in memory: no core dump holds them, and no debugger of the same user reads them (Linux)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def open_more_files() -> None:
    """Raise the soft limit on open files to the hard one, as Go's programs do: a shell's is often 1,024.

    What the process starts, such as workers and an Envoy, inherits it. Connections are bounded below it: see
    ``net.rpc.descriptors``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # of a system whose own limit is lower than the hard one says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def answer_signals(signals: AsyncIterator[int], plane: ControlPlane) -> None:
    """Log what each signal asks for, until cancelled."""
    import structlog

    log = structlog.get_logger(scope="bootstrap")
    async for number in signals:
        name = signal.Signals(number).name
        if number == signal.SIGUSR1:
            log_statistics(plane.state, log.info)
            if plane.workers is not None:
                plane.workers.log_statistics()
        else:
            log.info("signal without effect: files are read when they change, logs go to standard error", signal=name)


def log_statistics(state: PlaneState, write: Callable[..., object]) -> None:
    """One event for each part of the server, with its numbers: those of ``/debug/statistics``."""
    from mesh_pilot.ops.values.statistics import statistics

    parts = statistics(state)
    assert isinstance(parts, Mapping)
    for part, values in parts.items():
        for one in values if isinstance(values, Sequence) else (values,):
            write("statistics", part=part, **dict(_flat(one)))


def _flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            name = str(key).replace(" ", "/")  # a key of key=value has no blanks
            yield from _flat(item, f"{path}.{name}" if path else name)
    else:
        yield path, value


SWITCH_SECONDS = 0.0005
"""The time after which a thread gives way to another that can run. With Python's 5 ms, a push that meets threads that
make pages waits for that long, several times."""

THRESHOLDS = (50_000, 20, 50)
"""New objects before a collection of the young, and how many of those before one of the middle, and of all."""


@contextmanager
def long_lived() -> Iterator[None]:
    """Leave the collector off for the length of the block, or until ``set_aside``; afterwards it is as it was.

    What a command imports belongs into the block: a sixth of the CPU time of imports was collections.

    Threads that make pages give way to the one that serves proxies after `SWITCH_SECONDS`.
    """
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
        gc.set_threshold(*before)
        gc.enable()


def set_aside() -> None:
    """Call when the first world is in: what there is now is not looked at again, and collections begin.

    There is no collection before: it looks at every object of the World, and finds next to nothing, as neither reading
    nor refusing an object leaves a cycle (`tests/cli/test_memory.py`).
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
