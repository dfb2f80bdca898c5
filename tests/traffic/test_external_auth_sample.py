"""The sample of the filter ExternalAuth, walked command by command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tutorial import environment, in_own_ports, put_tools, steps, terminal

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

SAMPLE = Path(__file__).parents[2] / "samples" / "external-auth"


async def test_the_sample_is_as_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    put_tools(tmp_path / "bin")
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLE, folder)
    page = in_own_ports(folder, (folder / "README.md").read_text(), ("8080", "9000", "9101", "9102"), free_ports)
    walked = list(steps(page))
    assert len(walked) > 12
    async with terminal(folder, environment(tmp_path / "bin")) as shell:
        await shell.walk(walked)
