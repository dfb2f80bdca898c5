"""The samples that no other test runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mesh_pilot.cli.discovery.command import command

UNIT = Path(__file__).resolve().parent.parent / "samples" / "systemd" / "mesh-pilot.service"


def settings(name: str) -> list[str]:
    """The values that the unit gives to a setting, in order."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def test_the_unit_sets_flags_that_there_are() -> None:
    variables = {option.envvar for option in command.params if isinstance(option, click.Option)}
    assert {value.partition("=")[0] for value in settings("Environment")} <= variables
    assert settings("ExecStart") == ["/opt/mesh-pilot/bin/mesh-pilot discovery"]


@pytest.mark.process
def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/mesh-pilot/bin/mesh-pilot", sys.executable))
    done = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
