"""Exceptions at the awaits of tasks: the n-th wait of a part raises, in place of what was waited for.

    injector = Injector(at=7)
    trio.run(scenario, injector, clock=MockClock(autojump_threshold=0), instruments=[injector])

The tasks of a part are the task of its name, those that it starts, and theirs; waiting for the end of a nursery is no
await of theirs. With ``at=0`` nothing is raised, and ``count`` is how many there were.
"""

from __future__ import annotations

from collections import Counter
from types import CoroutineType
from typing import Any, NoReturn

import trio
from trio._core._traps import WaitTaskRescheduled

PART = "the part under test"


class Injected(Exception):
    """What no part expects."""


class Injector(trio.abc.Instrument):
    """Mutable state: the tasks of each part, how many awaits there were, and where the exceptions were raised."""

    def __init__(self, at: int, *parts: str, is_armed: bool = True) -> None:
        """``at``: the await of each of the parts that raises; none is counted before ``is_armed``."""
        self.at = at
        self.is_armed = is_armed
        self.raised: dict[str, str] = {}
        """By part, the functions that waited."""
        self._parts = parts or (PART,)
        self._counts = Counter[str]()
        self._tasks: dict[trio.lowlevel.Task, str] = {}

    def __repr__(self) -> str:
        return f"<Injector at {self.at} of {dict(self._counts)}, raised in {self.raised}>"

    @property
    def count(self) -> int:
        return self._counts.total()

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        parent = task.parent_nursery.parent_task if task.parent_nursery is not None else None
        part = task.name if task.name in self._parts else self._tasks.get(parent) if parent is not None else None
        if part is not None:
            self._tasks[task] = part
            task.coro = _Interrupted(task.coro, self, part)  # type: ignore[assignment]

    def strike(self, number: int) -> None:
        """Raise in each part now, where its task of this number (modulo all) waits."""
        waiting: dict[str, list[trio.lowlevel.Task]] = {}
        for task, part in self._tasks.items():
            if task._abort_func is not None and _may_raise(_awaiting(getattr(task.coro, "_coroutine", None))):
                waiting.setdefault(part, []).append(task)
        for part, tasks in waiting.items():
            task = tasks[number % len(tasks)]
            where = " > ".join(_awaiting(getattr(task.coro, "_coroutine", None)))
            self.raised[part] = where

            def throw(part: str = part, where: str = where) -> NoReturn:
                raise Injected(f"injected in {part}: {where}")

            task._attempt_abort(throw)

    def error_at(self, part: str, coroutine: CoroutineType[Any, Any, Any]) -> Exception | None:
        """The exception for an await that is reached now."""
        names = _awaiting(coroutine)
        if not self.is_armed or not _may_raise(names):
            return None
        self._counts[part] += 1
        if self._counts[part] != self.at:
            return None
        self.raised[part] = " > ".join(names)
        return Injected(f"injected at await {self.at} of {part}: {self.raised[part]}")


class _Interrupted:
    """A coroutine, which Trio drives through this."""

    def __init__(self, coroutine: Any, injector: Injector, part: str) -> None:
        self._coroutine = coroutine
        self._injector = injector
        self._part = part
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
        error = self._injector.error_at(self._part, self._coroutine)
        if error is None:
            return trap
        if type(trap) is WaitTaskRescheduled and trap.abort_func(_never) is not trio.lowlevel.Abort.SUCCEEDED:
            self._later = error  # a thread, say: once it is done
            return trap
        return self._seen(self._coroutine.throw(error))


def _never() -> NoReturn:
    raise AssertionError("nothing is cancelled")


def _may_raise(names: list[str]) -> bool:
    """False where tasks end, and in the middle of Trio's own functions: a lock would be kept by nobody."""
    is_shielded = "cancel_shielded_checkpoint" in names and names[-3:-2] != ["checkpoint"]
    return "_nested_child_finished" not in names and not is_shielded


def _awaiting(coroutine: Any) -> list[str]:
    """The functions that wait, from the outermost on."""
    names = []
    while coroutine is not None:
        name = getattr(coroutine, "__name__", "")
        if name:
            names.append(name)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return names
