"""Real programs that tests drive."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mesh_pilot.agent.envoy.binary import EnvoyError, find_envoy

BUILT = Path(__file__).resolve().parents[2] / ".tox"
"""The folder to which tox has programs fetched and built."""


def require_binary(name: str, variable: str = "", *, built: str = "") -> Path:
    """The path of a program that the test needs: that of the variable of its name (``CONSUL``), else the one on PATH.

    ``variable`` is that variable's name where it is another; ``built``, where below `BUILT` a tool puts the program.

    Without it the test is skipped on a developer's machine and fails where the environment variable CI is set: a
    suite that silently tests less is worse than a red one.
    """
    if name == "envoy":
        try:
            return find_envoy()
        except EnvoyError as error:
            why = str(error)
    else:
        variable = variable or name.upper()
        places = (os.environ.get(variable, ""), name, *([BUILT / built] if built else []))
        if found := next(filter(None, map(shutil.which, places)), None):
            return Path(found)
        why = f"no {name} on PATH, and {variable} does not name one"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
