"""Real programs that tests drive."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mesh_pilot.agent.envoy.binary import EnvoyError, find_envoy


def require_binary(name: str, variable: str = "") -> Path:
    """The path of a program that the test needs: that of the variable of its name (``CONSUL``), else the one on PATH.

    ``variable`` is that variable's name where it is another.

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
        found = shutil.which(os.environ.get(variable, "")) or shutil.which(name)
        if found is not None:
            return Path(found)
        why = f"no {name} on PATH, and {variable} does not name one"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
