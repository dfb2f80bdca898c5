"""Standard output and error: no write waits or raises; dropped lines are counted, and said once lines get out again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.base import output
from mesh_pilot.base.output import Output

SOON = 5.0


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    found: list[tuple[str, int, str]] = []
    monkeypatch.setattr(output, "_say", lambda *told: found.append(told))
    return found


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with suppress(OSError):
            os.close(descriptor)


def settled(out: Output) -> Output:
    out.settle(time.monotonic() + SOON)
    return out


def read_until(descriptor: int, is_enough: Callable[[bytes], bool]) -> bytes:
    found = b""
    while not is_enough(found):
        found += os.read(descriptor, 65536)
    return found


def test_lines_come_out_in_order(pipe: tuple[int, int]) -> None:
    out = Output(pipe[1], "stderr")
    for number in range(100):
        out.write(f"{number}\n")
    assert settled(out).dropped == 0
    assert os.read(pipe[0], 65536).decode() == "".join(f"{number}\n" for number in range(100))


def test_a_pipe_that_nobody_reads_costs_lines_and_no_time(pipe: tuple[int, int], said: list[Any]) -> None:
    out = Output(pipe[1], "stderr", most_bytes=10_000)
    line = "x" * 99 + "\n"
    for _ in range(2000):
        out.write(line)
    taken = 2000 - out.dropped
    assert 0 < out.dropped < 2000
    found = read_until(pipe[0], lambda found: len(found) >= taken * 100)
    assert len(found) == taken * 100
    assert settled(out) is out
    out.write("last\n")
    assert read_until(pipe[0], lambda found: found.endswith(b"last\n"))
    assert {(name, reason) for name, _, reason in said} == {("stderr", "no process reads it")}
    assert sum(lines for _, lines, _ in said) == 2000 - taken


def test_a_reader_that_is_gone_costs_the_line(pipe: tuple[int, int]) -> None:
    out = Output(pipe[1], "stdout")
    os.close(pipe[0])
    out.write("one\ntwo\n")
    assert settled(out).dropped == 2


def test_a_full_disk_costs_the_line_and_is_said_afterwards(said: list[object], tmp_path: Path) -> None:
    target = os.open("/dev/full", os.O_WRONLY)
    try:
        out = Output(target, "stderr")
        out.write("lost\n")
        assert settled(out).dropped == 1
        assert said == []
        with (tmp_path / "log").open("wb") as log:
            os.dup2(log.fileno(), target)  # there is room again
        out.write("kept\n")
        settled(out)
    finally:
        os.close(target)
    assert (tmp_path / "log").read_text() == "kept\n"
    assert said == [("stderr", 1, "No space left on device")]


def test_what_is_written_in_part_does_not_spoil_the_next_line(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    answers = [3, OSError(28, "No space left on device")]
    write = os.write

    def sparing(descriptor: int, data: bytes) -> int:
        answer = answers.pop(0) if answers else len(data)
        if isinstance(answer, OSError):
            raise answer
        return write(descriptor, data[:answer])

    monkeypatch.setattr(os, "write", sparing)
    out = Output(pipe[1], "stderr")
    out.write("first\n")
    settled(out).write("second\n")
    assert settled(out).dropped == 1
    assert os.read(pipe[0], 100) == b"fir\nsecond\n"


def test_a_pipe_that_somebody_has_made_nonblocking_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    out = Output(pipe[1], "stderr")
    out.write("x" * 200_000 + "\n")
    assert len(read_until(pipe[0], lambda found: found.endswith(b"\n"))) == 200_001
    assert settled(out).dropped == 0


def test_text_that_utf8_cannot_have_is_escaped(pipe: tuple[int, int]) -> None:
    out = Output(pipe[1], "stderr")
    out.write("half \ud83d\n")
    settled(out)
    assert os.read(pipe[0], 100) == b"half \\ud83d\n"


@pytest.mark.process
def test_a_forked_process_writes_its_own_lines_and_leaves_what_waits_to_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, check=True, timeout=60)
    assert sorted(done.stdout.splitlines()) == [b"child", b"parent", b"x" * 200_000]


FORKING = """
import os
from mesh_pilot.base.output import output_of, settle
out = output_of(1)
out.write("x" * 200_000 + "\\n")
child = os.fork()
if child == 0:
    assert out._thread is None
    out.write("child\\n")
    settle(30)
    os._exit(0)
settle(30)
assert os.waitpid(child, 0)[1] == 0
out.write("parent\\n")
"""


SCRIPT = """
import sys
from mesh_pilot.base.output import take_standard_outputs
take_standard_outputs()
import click
click.echo("to standard output")
print("to standard error", file=sys.stderr)
opened = open(sys.argv[1], "w")
print(opened.fileno(), file=opened)
opened.flush()
sys.exit(7)
"""


@pytest.mark.process
@pytest.mark.parametrize("redirection", ["", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full", "2>&1 | true"])
def test_a_process_does_its_work_wherever_its_output_goes(redirection: str, tmp_path: Path) -> None:
    noted = tmp_path / "opened"
    command = f'exec 3>"{tmp_path / "code"}"; {{ "$0" -c "$1" "$2"; echo $? >&3; }} {redirection}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, SCRIPT, str(noted)], capture_output=True, check=False, timeout=60
    )
    assert (tmp_path / "code").read_text() == "7\n"
    assert int(noted.read_text()) > 2
    assert b"Traceback" not in done.stderr


@pytest.mark.process
def test_an_output_that_nobody_reads_holds_the_end_for_a_second_at_most() -> None:
    code = 'from mesh_pilot.base.output import output_of; output_of(2).write("x" * 500_000); print("done", flush=True)'
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"
    assert process.wait(timeout=30) == 0
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def test_a_signal_handler_that_writes_does_not_wait_for_the_lock(pipe: tuple[int, int]) -> None:
    out = Output(pipe[1], "stderr")
    before = signal.signal(signal.SIGUSR1, lambda *_: out.put(b"handler\n"))
    try:
        with out._changed:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    settled(out)
    assert os.read(pipe[0], 100) == b"handler\n"
    assert threading.active_count() >= 2
