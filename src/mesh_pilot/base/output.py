"""Standard output and error of a process that runs for long: what they do not take is dropped, and counted.

    take_standard_outputs()    # sys.stdout and sys.stderr are safe from now on
    ...
    settle()                   # before the process becomes another: what waits is written, for a second at most

A write only puts bytes into a buffer of `MOST_BYTES`. A daemon thread hands them to the kernel, because no other call
is safe for every kind of file: a pipe without a reader, a stopped terminal and a network disk that hangs make a write
wait, also where ``poll`` says that it would not, and O_NONBLOCK would be seen by whoever shares the open file. A write
that fails (disk full, reader gone) costs the line. Each line is a separate write, so that lines of several processes
stay whole in a pipe. Imports nothing of ours.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

__all__ = ["Output", "dropped_lines", "output_of", "settle", "take_standard_outputs", "when_lines_were_dropped"]

MOST_BYTES = 1024 * 1024
"""The most that waits for the kernel, for each output."""

SETTLE_SECONDS = 1.0

NAMES = {1: "stdout", 2: "stderr"}


class Output(io.TextIOBase):
    """Text output over a descriptor; no write waits or raises.

    Mutable state: what waits to be written, and counts of dropped lines, all of them under one lock.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, descriptor: int, name: str, *, most_bytes: int = MOST_BYTES) -> None:
        self.name = name
        self.dropped = 0
        """Lines since the start."""
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        """The first is being written."""
        self._bytes = 0
        self._unsaid = 0
        self._reason = ""
        self._is_cut = False
        """The last line was written in part."""
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"<Output {self.name}, {self._bytes} bytes wait, {self.dropped} lines dropped>"

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        """Queue a string, a line or several, and return at once."""
        self.put(text.encode(self.encoding, self.errors))
        return len(text)

    def put(self, data: bytes) -> None:
        """Queue bytes, a line or several, and return at once."""
        if not data:
            return
        with self._changed:
            if self._bytes + len(data) > self._most_bytes:
                self._drop(data, "no process reads it")
                return
            self._waiting.append(data)
            self._bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._deliver, name=f"write {self.name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, until: float) -> None:
        """Wait until nothing waits, or until a time of ``time.monotonic``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout=max(0.0, until - time.monotonic()))

    def forget(self) -> None:
        """Begin again in a forked process: what waits is the parent's to write, and its thread is not here."""
        self._changed = threading.Condition()
        self._waiting.clear()
        self._bytes, self._thread = 0, None

    def _drop(self, data: bytes, reason: str) -> None:
        lines = max(1, data.count(b"\n"))
        self.dropped += lines
        self._unsaid += lines
        self._reason = reason

    def _deliver(self) -> None:
        """The life of the thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting[0]
            reason = self._write(data)
            with self._changed:
                self._waiting.popleft()
                self._bytes -= len(data)
                if reason:
                    self._drop(data, reason)
                unsaid = 0 if reason or self._waiting else self._unsaid
                if unsaid:
                    self._unsaid = 0
                why = self._reason
                self._changed.notify_all()
            if unsaid and _say is not None:
                _say(self.name, unsaid, why)

    def _write(self, data: bytes) -> str:
        """Hand bytes to the kernel, for as long as it takes; why it does not take them, or nothing."""
        rest = memoryview(b"\n" + data if self._is_cut else data)
        while rest:
            try:
                written = os.write(self._descriptor, rest)
            except BlockingIOError:  # whoever shares the open file has made it so
                select.select([], [self._descriptor], [])
            except OSError as error:
                return error.strerror or str(error)
            else:
                rest = rest[written:]
                self._is_cut = bool(rest)
        return ""


_outputs: dict[int, Output] = {}
_say: Callable[[str, int, str], None] | None = None


def output_of(descriptor: int) -> Output:
    """The output of descriptor 1 or 2. Where both are the same file they are one output, which keeps their order."""
    if not _outputs:
        atexit.register(settle)
        os.register_at_fork(after_in_child=_forget_all)
    if descriptor not in _outputs:
        other = _outputs.get(3 - descriptor)
        same = other is not None and _is_same(1, 2)
        _outputs[descriptor] = other if same and other is not None else Output(descriptor, NAMES[descriptor])
    return _outputs[descriptor]


def take_standard_outputs() -> None:
    """From now on no write to ``sys.stdout`` or ``sys.stderr`` waits or raises, also where they are closed.

    Streams that somebody has put in their place stay, as those of a test.
    """
    # Otherwise the next file or socket that is opened would get their numbers, and all that is printed.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free, so this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is sys.__stderr__:
        sys.stderr = output_of(2)
    if sys.stdout is sys.__stdout__:
        sys.stdout = output_of(1)


def when_lines_were_dropped(say: Callable[[str, int, str], None]) -> None:
    """Have ``say(output, lines, reason)`` called, in a thread, each time an output takes lines again."""
    global _say
    _say = say


def dropped_lines() -> Mapping[str, int]:
    """The number of lines that each output has dropped since the start; ``stderr`` has all if both are one."""
    return {**dict.fromkeys(NAMES.values(), 0), **{each.name: each.dropped for each in _outputs.values()}}


def settle(seconds: float = SETTLE_SECONDS) -> None:
    """Wait until the buffers are written, for ``seconds`` at most."""
    until = time.monotonic() + seconds
    for output in set(_outputs.values()):
        output.settle(until)


def _forget_all() -> None:
    for output in _outputs.values():
        output.forget()


def _is_same(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False
