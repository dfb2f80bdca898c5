"""A real API server that ends, hangs, is restored from an older backup and comes back with other features.

What was read is kept meanwhile. Afterwards the plane has what the server has; what is equal is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config, ConfigKey
from tests.support.apiserver import ApiServer, Object
from tests.support.envoy import eventually
from tests.support.planes import running_plane
from tools.gen_crds import definitions

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(300)]

COUNT = 20
LIST = "/apis/networking.istio.io/v1/virtualservices"


def route(number: int, host: str = "") -> Object:
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": f"r{number}", "namespace": "default"},
        "spec": {"hosts": [f"h{number}.test"], "http": [{"route": [{"destination": {"host": host or "a.test"}}]}]},
    }


def held(plane: ControlPlane) -> Mapping[str, Config]:
    """The routes in force, by name."""
    keys = (ConfigKey("VirtualService", "default", f"r{number}") for number in range(COUNT + 5))
    found = ((key.name, plane.state.world.config.peek(key)) for key in keys)
    return {name: config for name, config in found if config is not None}


async def same_as_at(server: ApiServer, plane: ControlPlane) -> bool:
    items: list[dict[str, Any]] = (await server.ask("GET", LIST))["items"]
    there = {item["metadata"]["name"]: item["spec"] for item in items}
    return {name: to_json(config.spec) for name, config in held(plane).items()} == there


async def test_a_server_that_ends_hangs_goes_back_or_is_upgraded_changes_only_what_is_different(tmp_path: Path) -> None:
    server = ApiServer(tmp_path / "server")
    try:
        await trio.to_thread.run_sync(server.start)
        await server.install(definitions([KINDS["VirtualService"]]))
        await server.apply(*(route(number) for number in range(COUNT)))
        mesh = tmp_path / "mesh.yaml"
        mesh.write_text(f"configSources: [{{address: 'k8s://{server.kubeconfig()}'}}]\n")
        async with running_plane(mesh_config=mesh) as plane:

            async def agrees(what: str) -> None:
                await eventually(lambda: same_as_at(server, plane), seconds=90, what=what)

            async def follows(host: str) -> None:
                """An edit arrives: the watch is there again."""
                await server.apply(route(0, host))
                await agrees(f"the edit to {host} arrives")

            await agrees("the first picture is there")
            before, revision = held(plane), plane.state.world.revision

            # It ends without a word, and comes back.
            await trio.to_thread.run_sync(server.kill)
            await trio.to_thread.run_sync(server.start)
            await follows("after-the-end.test")
            untouched = {name: config for name, config in held(plane).items() if name != "r0"}
            assert all(before[name] is config for name, config in untouched.items())
            assert len(held(plane)) == COUNT
            assert plane.state.world.revision == revision + 1

            # It hangs for a moment, its connections open.
            server.pause()
            await trio.sleep(2)
            assert len(held(plane)) == COUNT
            server.resume()
            await follows("after-the-pause.test")

            # It goes back to a backup: an edit is undone, an object is back, another was never made.
            backup = await trio.to_thread.run_sync(server.backup)
            await server.apply(route(1, "undone.test"), route(COUNT))
            await server.delete(route(2))
            await agrees("what is undone later has arrived")
            before = held(plane)
            await trio.to_thread.run_sync(server.restore, backup)
            await agrees("the plane has what the backup has")
            now = held(plane)
            assert now.keys() == {f"r{number}" for number in range(COUNT)}
            changed = {name for name, config in now.items() if before.get(name) is not config}
            assert changed == {"r1", "r2"}
            await follows("after-the-backup.test")

            # It comes back without streaming lists, as an older release would.
            before = held(plane)
            await trio.to_thread.run_sync(server.stop)
            await trio.to_thread.run_sync(lambda: server.start(flags=("--feature-gates=WatchList=false",)))
            await follows("after-the-change.test")
            assert {name for name, config in held(plane).items() if before[name] is not config} == {"r0"}
    finally:
        server.kill(etcd=True)
