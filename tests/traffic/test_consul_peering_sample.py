"""The tutorial in samples/consul-peering, walked command by command: what it says is what happens."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tutorial import environment, in_own_ports, put_tools, steps, terminal

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.usefixtures("newest_consul")]

SAMPLE = Path(__file__).parents[2] / "samples" / "consul-peering"
OF_CONSULS = [f"{first}{rest}" for first in "89" for rest in ("500", "503", "300", "301", "302")]


async def test_the_tutorial_is_as_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    put_tools(tmp_path / "bin", consul=Path(os.environ["CONSUL"]))
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLE, folder)
    page = (folder / "README.md").read_text()
    page = in_own_ports(folder, page, (*OF_CONSULS, "8080", "9080", "9101", "9102"), free_ports)
    walked = list(steps(page))
    assert len(walked) > 20
    async with terminal(folder, environment(tmp_path / "bin")) as shell:
        await shell.walk(walked)
