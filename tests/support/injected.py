"""Exceptions at the awaits of tasks: the n-th wait of a part raises, in place of what was waited for.

    injector = Injector(at=7)
    trio.run(scenario, injector, clock=MockClock(autojump_threshold=0), instruments=[injector])

The tasks of a part are those that a task named ``PART`` starts, and theirs; waiting for the end of a nursery is no
await of theirs. With ``at=0`` nothing is raised, and ``count`` is how many there were.
"""

from __future__ import annotations

from types import CoroutineType
from typing import Any, NoReturn

import trio
from trio._core._traps import WaitTaskRescheduled

PART = "the part under test"


class Injected(Exception):
    """What no part expects."""


class Injector(trio.abc.Instrument):
    """Mutable state: the tasks of the part, how many awaits there were, and where the exception was raised."""

    def __init__(self, at: int, error: type[Exception] = Injected) -> None:
        self.at = at
        self.count = 0
        self.where = ""
        self._error = error
        self._tasks: set[trio.lowlevel.Task] = set()

    def __repr__(self) -> str:
        return f"<Injector at {self.at} of {self.count}{f', raised in {self.where}' if self.where else ''}>"

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        parent = task.parent_nursery.parent_task if task.parent_nursery is not None else None
        if task.name == PART or parent in self._tasks:
            self._tasks.add(task)
            task.coro = _Interrupted(task.coro, self)  # type: ignore[assignment]

    def error_at(self, coroutine: CoroutineType[Any, Any, Any]) -> Exception | None:
        """The exception for an await that is reached now."""
        names = _awaiting(coroutine)
        if "_nested_child_finished" in names:
            return None
        self.count += 1
        if self.count != self.at:
            return None
        self.where = " > ".join(names)
        return self._error(f"injected at await {self.at}: {self.where}")


class _Interrupted:
    """A coroutine, which Trio drives through this."""

    def __init__(self, coroutine: Any, injector: Injector) -> None:
        self._coroutine = coroutine
        self._injector = injector
        self._later: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    def send(self, value: Any) -> Any:
        if self._later is not None:
            error, self._later = self._later, None
            return self._seen(self._coroutine.throw(error))
        return self._seen(self._coroutine.send(value))

    def throw(self, *error: Any) -> Any:
        return self._seen(self._coroutine.throw(*error))

    def _seen(self, trap: Any) -> Any:
        error = self._injector.error_at(self._coroutine)
        if error is None:
            return trap
        if type(trap) is WaitTaskRescheduled and trap.abort_func(_never) is not trio.lowlevel.Abort.SUCCEEDED:
            self._later = error  # a thread, say: once it is done
            return trap
        return self._seen(self._coroutine.throw(error))


def _never() -> NoReturn:
    raise AssertionError("nothing is cancelled")


def _awaiting(coroutine: Any) -> list[str]:
    """The functions that wait, from the outermost on."""
    names = []
    while coroutine is not None:
        name = getattr(coroutine, "__name__", "")
        if name:
            names.append(name)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return names
