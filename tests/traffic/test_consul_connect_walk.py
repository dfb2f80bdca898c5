"""The move in docs/migrate-consul.md, walked command by command: what it says is what happens."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.binaries import require_binary
from tests.support.tutorial import environment, in_own_ports, put_tools, steps, terminal

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PORTS = ("8080", "8081", "8082", "8083", "8084", "9001", "9081", "9082", "19001", "19002", "19011", "19012")
SIDECARS = ("21001", "21002")


async def test_the_page_is_as_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    put_tools(tmp_path / "bin", consul=require_binary("consul", "CONSUL_NEW"))
    folder = tmp_path / "sample"
    shutil.copytree(ROOT / "samples" / "migrate-consul", folder)
    http, grpc, grpc_tls, *own = free_ports(6)
    agent = dict(zip(("server", "serf_lan", "serf_wan"), own, strict=True))
    page = (ROOT / "docs" / "migrate-consul.md").read_text().replace("8500", str(http)).replace("8502", str(grpc))
    page = page[page.index("## Walked through") : page.index("## On a fleet")]
    page = in_own_ports(folder, page, (*PORTS, *SIDECARS), free_ports)
    ports = {**agent, "http": http, "grpc": grpc, "grpc_tls": grpc_tls, "dns": -1}
    (folder / "ports.json").write_text(json.dumps({"ports": ports}))
    page = re.sub("consul agent -dev", "consul agent -dev -config-file ports.json", page)
    walked = list(steps(page))
    assert len(walked) > 30
    address = f"127.0.0.1:{http}"
    async with terminal(folder, environment(tmp_path / "bin", CONSUL_HTTP_ADDR=address)) as shell:
        await shell.walk(walked)
