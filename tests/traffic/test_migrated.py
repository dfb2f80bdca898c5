"""Folders that ``mesh-pilot migrate`` made, served to real Envoys: requests go, and are refused, as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.istio.reading.yaml_text import yaml_text
from mesh_pilot.model.proxy import Interception
from tests.migration.dumps import as_text, left, migrate
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet

pytestmark = pytest.mark.envoy

MESH = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"
SERVER = "127.0.0.6"

Ports = Callable[[int], list[int]]


def client(name: str, address: str) -> EnvoyNode:
    labels, account = {"kuma.io/service": name}, {"SERVICE_ACCOUNT": name}
    return EnvoyNode(name, "default", address, labels=labels, interception=Interception.NONE, metadata=account)


def dataplane(name: str, service: str, address: str, port: int, **tags: str) -> dict[str, Any]:
    every = {"kuma.io/service": service, "kuma.io/protocol": "http", **tags}
    networking = {"address": address, "inbound": [{"port": port, "tags": every}]}
    return {"type": "Dataplane", "mesh": "default", "name": name, "networking": networking}


def policy(type: str, **spec: Any) -> dict[str, Any]:
    return {"type": type, "mesh": "default", "name": "one", "spec": {"targetRef": {"kind": "Mesh"}, **spec}}


def at_port(text: str, port: int) -> str:
    """The objects with a port that a test may use, in the place of Kuma's 80."""
    return text.replace("number: 80\n", f"number: {port}\n")


@pytest.mark.smoke
async def test_routes_of_kuma_split_requests_and_change_them(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    async with fleet(tmp_path, mesh=MESH) as mesh:
        v1, v2 = await mesh.backend("v1"), await mesh.backend("v2")
        refs = [
            {"kind": "MeshServiceSubset", "name": "web", "tags": {"version": version}, "weight": weight}
            for version, weight in (("v1", 0), ("v2", 100))
        ]
        header = {"requestHeaderModifier": {"set": [{"name": "x-canary", "value": "50%"}]}}
        rewrite = {"urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}}}
        filters = [{"type": "RequestHeaderModifier", **header}, {"type": "URLRewrite", **rewrite}]
        match = {"path": {"type": "PathPrefix", "value": "/api"}}
        rules = [{"matches": [match], "default": {"filters": filters, "backendRefs": refs}}]
        route = policy("MeshHTTPRoute", to=[{"targetRef": {"kind": "MeshService", "name": "web"}, "rules": rules}])
        planes = [dataplane(b.name, "web", b.host, b.port, version=b.name) for b in (v1, v2)]
        found = migrate("kuma", yaml_text([{"type": "Mesh", "name": "default"}, *planes, route]))
        assert left(found) == []
        await mesh.apply(at_port(as_text(found), port))
        await mesh.envoy(client("caller", "127.0.0.2"))
        await mesh.until_answered_by({"v1", "v2"}, f"{url}/other", host="web.mesh")
        await mesh.until_answered_by({"v2"}, f"{url}/api/x", host="web.mesh")
        reply = (await mesh.get(f"{url}/api/x", host="web.mesh")).json()
        assert (reply["path"], reply["headers"]["x-canary"]) == ("/new/x", "50%")
        assert (await mesh.get(f"{url}/api", host="web.mesh")).json()["path"] == "/new"
        await mesh.until_answered_by({"v1", "v2"}, f"{url}/apix", host="web.mesh")
        await mesh.assert_all_taken()


@pytest.mark.slow
async def test_permissions_of_kuma_let_callers_in_or_not(tmp_path: Path, free_ports: Ports) -> None:
    port, own = free_ports(2)
    async with fleet(tmp_path) as mesh:
        await mesh.backend("web", port=own)
        mtls = {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin", "mode": "STRICT"}]}
        items = [{"targetRef": {"kind": "MeshService", "name": "friend"}, "default": {"action": "Allow"}}]
        found = migrate(
            "kuma",
            yaml_text(
                [
                    {"type": "Mesh", "name": "default", "mtls": mtls},
                    dataplane("web-1", "web", SERVER, own),
                    policy("MeshTrafficPermission", **{"from": items}),
                ]
            ),
        )
        assert left(found) == []
        await mesh.apply(at_port(as_text(found), port))
        await mesh.envoy(client("web", SERVER))
        await mesh.envoy(client("friend", "127.0.0.2"))
        await asked(mesh, port, 200)
    tmp_path = tmp_path / "stranger"
    tmp_path.mkdir()
    async with fleet(tmp_path) as mesh:
        await mesh.backend("web", port=own)
        await mesh.apply(at_port(as_text(found), port))
        await mesh.envoy(client("web", SERVER))
        await mesh.envoy(client("stranger", "127.0.0.2"))
        await asked(mesh, port, 403)
        assert {await status(mesh, port) for _ in range(16)} == {403}


async def status(mesh: Fleet, port: int) -> int:
    """The answer on its own connection: the server's Envoy listens there, too, and is let in nowhere."""
    reply = await mesh.get(f"http://127.0.0.1:{port}/", host="web.mesh", headers={"connection": "close"})
    return reply.status_code


async def asked(mesh: Fleet, port: int, expected: int) -> None:
    async def is_so() -> bool:
        return await status(mesh, port) == expected

    with trio.fail_after(60):
        await eventually(is_so, what=f"the answer is {expected}")


@pytest.mark.slow
async def test_entries_of_consul_split_requests_of_services_that_left_it(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path, mesh=MESH) as mesh:
        v1, v2 = await mesh.backend("v1"), await mesh.backend("v2")
        catalog = [
            {
                "Node": {"Node": b.name, "Address": b.host, "Datacenter": "dc1"},
                "Service": {
                    "ID": b.name,
                    "Service": "web",
                    "Port": b.port,
                    "Meta": {"version": b.name, "service_port": str(port), "protocol": "http"},
                },
                "Checks": [],
            }
            for b in (v1, v2)
        ]
        subsets = {name: {"Filter": f"Service.Meta.version == {name}"} for name in ("v1", "v2")}
        entries = [
            {"Kind": "service-resolver", "Name": "web", "Subsets": subsets},
            {"Kind": "service-splitter", "Name": "web", "Splits": [{"Weight": 100, "ServiceSubset": "v2"}]},
        ]
        found = migrate("consul", json.dumps([*catalog, *entries]), services=True)
        assert left(found) == []
        await mesh.apply(as_text(found))
        await mesh.envoy(client("caller", "127.0.0.2"))
        await mesh.until_answered_by({"v2"}, f"http://127.0.0.1:{port}", host="web.service.consul")
        await mesh.assert_all_taken()
