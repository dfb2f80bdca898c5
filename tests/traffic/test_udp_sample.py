"""The sample of UDP, walked command by command: what it says is what happens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tutorial import environment, in_own_ports, put_tools, steps, terminal

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

SAMPLES = Path(__file__).parents[2] / "samples"


async def test_the_sample_is_as_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    put_tools(tmp_path / "bin")
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLES / "udp", folder)
    page = in_own_ports(folder, (folder / "README.md").read_text(), ("8080", "5300", "9101", "9102"), free_ports)
    page = page.replace("mesh-pilot describe", "mesh-pilot describe --pilot $PILOT")
    walked = list(steps(page))
    assert len(walked) > 10
    pilot = page.partition("--http-addr ")[2].partition(" ")[0]
    async with terminal(folder, environment(tmp_path / "bin", PILOT=pilot)) as shell:
        await shell.walk(walked)
