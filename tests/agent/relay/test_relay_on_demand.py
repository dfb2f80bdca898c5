"""An Envoy that asks for clusters and virtual hosts on demand: from disk without a control plane, and taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.model.resource import LISTENER, ROUTE
from tests.support.echo import Backend, http_backend
from tests.support.envoy import eventually, http_client, real_envoy
from tests.support.fleet import fleet
from tests.support.manifests import at, service
from tests.support.relayed import relayed
from tests.traffic.test_clusters_on_demand import NODE as ON_DEMAND

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

NODE = attrs.evolve(ON_DEMAND, metadata={**ON_DEMAND.metadata, "VIRTUAL_HOSTS": "split"})


async def answer(port: int, host: str) -> str:
    async with http_client() as client:
        reply = await client.get(f"http://127.0.0.1:{port}/", headers={"host": host})
    return str(reply.json()["name"]) if reply.status_code == 200 else str(reply.status_code)


async def test_what_was_asked_for_on_demand_is_there_without_a_control_plane(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, grpc = free_ports(2)
    address = f"127.0.0.1:{grpc}"
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    async with http_backend("app") as app:
        services = both(port, app)
        async with (
            fleet(folders[0], services, grpc_addr=address),
            relayed(tmp_path, address, node=NODE) as relay,
            real_envoy(relay.address, tmp_path, NODE, delta=True, name="first") as envoy,
        ):
            await envoy.wait_live()
            await eventually(envoy.takes_traffic)
            assert await answer(port, "app.test") == "app"
            await eventually(lambda: not relay.relay._writer._waiting, what="all is written")
        async with (
            relayed(tmp_path, address, node=NODE) as relay,
            real_envoy(relay.address, tmp_path, NODE, delta=True, name="second") as envoy,
        ):
            with trio.fail_after(30):
                await envoy.wait_live()
            await eventually(envoy.takes_traffic)
            assert relay.relay.statistics().offline == 1
            assert await answer(port, "app.test") == "app"
            with trio.fail_after(30):
                assert await answer(port, "other.test") in ("404", "503")  # never asked for, so not on disk
            assert await envoy.rejected() == {}
            async with fleet(folders[1], services, grpc_addr=address) as back:
                status = back.plane.state.xds.status
                await eventually(
                    lambda: any(len(stream.types) >= 4 for stream in status.connections()), what="Envoy is back"
                )
                assert await answer(port, "app.test") == "app"
                assert not {LISTENER, ROUTE} & status.statistics().pushes.keys()

                async def found() -> bool:
                    return await answer(port, "other.test") == "app"

                await eventually(found, what="what the disk lacked is found")
                assert await envoy.rejected() == {}


def both(port: int, app: Backend) -> str:
    return service("app.test", port, at(app)) + service("other.test", port, at(app))
