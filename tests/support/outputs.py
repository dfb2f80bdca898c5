"""Standard outputs that take nothing, for a process of ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

NOBODY = 65534
WITHOUT_PRIVILEGES = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
KINDS = ("full", "reader_gone", "nobody_reads", "closed")


@contextmanager
def started(command: Sequence[str], kind: str, **more: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose standard output and error are of a kind, killed at the end of the block."""
    with ExitStack() as stack:
        if kind == "closed":
            process = subprocess.Popen(["sh", "-c", 'exec "$0" "$@" >&- 2>&-', *command], **more)
        else:
            output = _full() if kind == "full" else _pipe(stack, is_read=kind != "reader_gone")
            process = subprocess.Popen(command, stdout=output, stderr=output, **more)
            os.close(output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextmanager
def started_by_another_user(command: Sequence[str], log: Path, through: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of root without root's right to open everything, whose output is a file or a pipe of somebody else."""
    with ExitStack() as stack:
        output: IO[bytes] = stack.enter_context(log.open("wb"))
        if through == "pipe":
            cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=output)
            stack.callback(cat.wait)
            assert cat.stdin is not None
            output = stack.enter_context(cat.stdin)
        os.fchmod(output.fileno(), 0o600)
        os.fchown(output.fileno(), NOBODY, NOBODY)
        process = subprocess.Popen([*WITHOUT_PRIVILEGES, *command], stdout=output, stderr=output)
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield process


def _full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def _pipe(stack: ExitStack, *, is_read: bool) -> int:
    """The end to write to, of a pipe that is full, or that nobody has open for reading."""
    reading, writing = os.pipe()
    if not is_read:
        os.close(reading)
        return writing
    stack.callback(os.close, reading)
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"." * 4096)
    os.set_blocking(writing, True)
    return writing
