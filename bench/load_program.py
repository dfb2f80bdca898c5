"""The load program of ``bench/load``: built with Go on use, into a folder that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.crew import SwarmError

SOURCE = Path(__file__).resolve().parent / "load"


@contextmanager
def load_program() -> Iterator[tuple[str, ...]]:
    """Its command, for a ``Crew``. Raises SwarmError where there is no Go."""
    go = shutil.which("go")
    if go is None:
        raise SwarmError("no go on PATH: the program that plays thousands of clients is built with it (bench/load)")
    with tempfile.TemporaryDirectory(prefix="mesh-pilot-bench-") as folder:
        binary = Path(folder) / "load"
        environment = {"HOME": str(Path.home()), **os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
        done = subprocess.run(
            [go, "build", "-o", binary, "."], cwd=SOURCE, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SwarmError(f"the load program cannot be built: {done.stderr.strip()}")
        yield (str(binary),)
