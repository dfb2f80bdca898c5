"""The time that a process has lived begins before Python does."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

PROGRAM = """
import time
began = time.monotonic()
while time.monotonic() < began + 0.2:
    pass
from mesh_pilot.base.process_age import process_age
print(process_age())
"""


@pytest.mark.process
def test_it_counts_from_the_start_of_the_process() -> None:
    before = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout)
    assert 0.2 <= age <= time.monotonic() - before + 0.02, "the system counts in hundredths of a second"
