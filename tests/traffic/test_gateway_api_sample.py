"""The sample of the Gateway API, walked command by command: what it says is what happens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.binaries import require_binary
from tests.support.tutorial import environment, in_own_ports, put_tools, steps, terminal

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

SAMPLES = Path(__file__).parents[2] / "samples"


async def test_the_sample_is_as_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    consul = require_binary("consul")
    put_tools(tmp_path / "bin", consul=consul)
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLES / "gateway-api", folder)
    shutil.copy(SAMPLES / "consul" / "backend.py", folder)
    http, *own = free_ports(4)
    agent = dict(zip(("server", "serf_lan", "serf_wan"), own, strict=True)) | {"http": http, "dns": -1, "grpc": -1}
    page = (folder / "README.md").read_text().replace("8500", str(http))
    page = in_own_ports(folder, page, ("8080", "9000", "9080", "9101", "9102"), free_ports)
    (folder / "ports.json").write_text(json.dumps({"ports": agent}))
    page = page.replace("consul agent -dev", "consul agent -dev -config-file ports.json")
    walked = list(steps(page))
    assert len(walked) > 15
    async with terminal(folder, environment(tmp_path / "bin", CONSUL_HTTP_ADDR=f"127.0.0.1:{http}")) as shell:
        await shell.walk(walked)
