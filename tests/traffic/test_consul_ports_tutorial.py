"""The tutorial in samples/consul-ports, walked command by command, and its file for newer Consuls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.consul.source import ConsulSettings
from mesh_pilot.consul.source.instance import read_instance
from mesh_pilot.consul.source.mapping import MappedService, read_service
from tests.support.binaries import require_binary
from tests.support.tutorial import environment, in_own_ports, put_tools, steps, terminal

SAMPLE = Path(__file__).parents[2] / "samples" / "consul-ports"


@pytest.mark.envoy
async def test_the_tutorial_is_as_it_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    put_tools(tmp_path / "bin", consul=require_binary("consul"))
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLE, folder)
    http, *own = free_ports(4)
    agent = dict(zip(("server", "serf_lan", "serf_wan"), own, strict=True)) | {"http": http, "dns": -1, "grpc": -1}
    page = (folder / "README.md").read_text().replace("8500", str(http))
    page = in_own_ports(folder, page, ("8080", "9080", "9081", "9101", "9102"), free_ports)
    (folder / "ports.json").write_text(json.dumps({"ports": agent}))
    page = page.replace("consul agent -dev", "consul agent -dev -config-file ports.json")
    walked = list(steps(page))
    assert len(walked) > 12
    async with terminal(folder, environment(tmp_path / "bin", CONSUL_HTTP_ADDR=f"127.0.0.1:{http}")) as shell:
        await shell.walk(walked)


def read(name: str) -> MappedService:
    """The service of a file, with its second check failing, as the API would tell it."""
    definition: dict[str, Any] = json.loads((SAMPLE / name).read_text())["service"]
    alive, of_port = (check["name"] for check in definition["checks"])
    virtual = definition["tagged_addresses"]["virtual"]
    service = {
        "ID": definition["id"],
        "Service": definition["name"],
        "Address": definition["address"],
        "Port": definition.get("port", 0),
        "Ports": [{key.title(): value for key, value in port.items()} for port in definition.get("ports", ())],
        "Meta": definition["meta"],
        "TaggedAddresses": {"virtual": {"Address": virtual["address"], "Port": virtual["port"]}},
    }
    checks = [{"Name": alive, "Status": "passing"}, {"Name": of_port, "Status": "critical"}]
    entry = {"Node": {"Node": "n", "Datacenter": "dc1"}, "Service": service, "Checks": checks}
    return read_service("orders", [read_instance(entry)], ConsulSettings())


def test_the_files_for_older_and_for_newer_consuls_say_the_same() -> None:
    older, newer = read("orders.json"), read("orders-2.json")
    assert older.service is not None and older.service == newer.service
    assert older.endpoints is not None and older.endpoints == newer.endpoints
    assert [each.service_port for each in older.endpoints.endpoints] == ["http"]
    assert (older.problems, newer.problems) == ((), ())
    assert {alias.host for alias in newer.aliases} - {alias.host for alias in older.aliases} == {
        "http.orders.virtual.consul",
        "http-admin.orders.virtual.consul",
    }
