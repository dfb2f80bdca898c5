"""The guard of marks: a mark covers what comes after it, and what a test lacks is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.marks import Guard


@pytest.mark.parametrize(
    ("marks", "started", "lacking"),
    [
        ((), "plane", "plane"),
        ((), "envoy", "envoy"),
        (("plane",), "process", "process"),
        (("process",), "envoy", "envoy"),
        (("process",), "plane", None),
        (("envoy",), "process", None),
        (("slow",), "envoy", None),
        (("smoke",), "process", "process"),
    ],
)
def test_a_test_lacks_the_mark_of_what_it_starts(marks: tuple[str, ...], started: str, lacking: str | None) -> None:
    guard = Guard()
    guard.begin(marks)
    guard._started(started)
    assert guard.end() == lacking


@pytest.mark.process
def test_every_program_that_is_started_is_seen() -> None:
    guard = Guard()
    sys.addaudithook(guard._audit)
    guard.begin(())
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert guard.end() == "process"
