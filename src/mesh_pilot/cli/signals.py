"""Signals that do not end the server: SIGUSR1 logs statistics, SIGHUP and SIGUSR2 do nothing but say so.

By default each of them ends a process at once, without a drain: a closed terminal, or a log rotation set up for
another server, would cut all proxies off.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_pilot.ops.state import PlaneState

OUTLIVED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def outlive_signals() -> None:
    """Ignore them from now on; what answers them later puts its own handler in place."""
    for number in OUTLIVED:
        signal.signal(number, signal.SIG_IGN)


async def answer_signals(signals: AsyncIterator[int], state: PlaneState) -> None:
    """Log what each signal asks for, until cancelled."""
    import structlog

    log = structlog.get_logger(scope="bootstrap")
    async for number in signals:
        name = signal.Signals(number).name
        if number == signal.SIGUSR1:
            log_statistics(state, log.info)
        else:
            log.info("signal without effect: files are read when they change, logs go to standard error", signal=name)


def log_statistics(state: PlaneState, tell: Callable[..., object]) -> None:
    """One event for each part of the server, with its numbers: those of ``/debug/statistics``."""
    from mesh_pilot.ops.overview import statistics

    parts = statistics(state)
    assert isinstance(parts, Mapping)
    for part, values in parts.items():
        for one in values if isinstance(values, Sequence) else (values,):
            tell("statistics", part=part, **dict(_flat(one)))


def _flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            name = str(key).replace(" ", "/")  # a key of key=value has no blanks
            yield from _flat(item, f"{path}.{name}" if path else name)
    else:
        yield path, value
