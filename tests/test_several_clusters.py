"""A control plane that reads several clusters, at doubles of their API servers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.cli.discovery.worker import worker_command
from mesh_pilot.cli.lib.logs import LogFormat, LogLevels
from mesh_pilot.kubernetes.source import ClusterSettings, KubernetesClusters, KubernetesRegistry
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.replicas.workers.settings import WorkerSettings
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.cluster_doubles import ClusterDouble
from tests.support.envoy import eventually, http_client
from tests.support.planes import running_plane

KEY = ServiceKey("web.shop.svc.cluster.local", "shop")


@pytest.fixture
async def doubles(nursery: trio.Nursery) -> AsyncIterator[tuple[ClusterDouble, ClusterDouble, ClusterDouble]]:
    """Three clusters with one service: east, which holds the configuration, west and north."""
    found = tuple(ClusterDouble(name, nursery) for name in ("east", "west", "north"))
    for number, each in enumerate(found, 1):
        await each.start()
        each.network(f"n{number}")
        each.service("web", f"10.96.{number}.1")
        each.endpoints("web", f"10.{number}.0.1")
    east, west, north = found
    yield east, west, north
    for each in found:
        each.kill()


def registry(own: ClusterDouble, **clusters: Any) -> KubernetesRegistry:
    return KubernetesRegistry(own.access, cluster_id=own.id, clusters=ClusterSettings(**clusters))


def endpoints(plane: ControlPlane) -> dict[str, tuple[str, str]]:
    found = plane.state.world.endpoints.peek(KEY)
    return {endpoint.cluster_id: (endpoint.address, endpoint.network) for endpoint in found}


async def until(plane: ControlPlane, holds: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not holds():
            await plane.state.reducer.wait_published()


@asynccontextmanager
async def plane_of(*registries: Any, **more: Any) -> AsyncIterator[ControlPlane]:
    async with running_plane(registries=registries, **more) as plane:
        yield plane


async def pages_of_clusters(plane: ControlPlane) -> None:
    """What pages, metrics and the command say of them."""
    async with httpx.AsyncClient(trust_env=False, base_url=f"http://{plane.addresses.http}", timeout=60) as client:
        listed = (await client.get("/debug/clusterz")).json()
        origin = "Secret istio-system/remote"
        assert listed == [
            {"id": "east", "secretName": "", "syncStatus": "synced"},
            {"id": "north", "secretName": origin, "syncStatus": "synced"},
            {"id": "west", "secretName": origin, "syncStatus": "synced"},
        ]
        shards = (await client.get("/debug/endpointShardz")).json()[KEY.host]["shop"]["Shards"]
        assert {name: [each["Addresses"] for each in of] for name, of in shards.items()} == {
            f"Kubernetes/{name}": [[f"10.{number}.0.1"]] for number, name in enumerate(("east", "west", "north"), 1)
        }
    command = [sys.executable, "-m", "mesh_pilot.cli", "remote-clusters", "--pilot", plane.addresses.http]
    done = await trio.run_process(command, capture_stdout=True)
    lines = done.stdout.decode().splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [[name, "synced", "2"] for name in ("east", "north", "west")]
    async with httpx.AsyncClient(
        trust_env=False, base_url=f"http://{plane.addresses.monitoring}", timeout=60
    ) as client:
        text = (await client.get("/metrics")).text
        for line in (
            'istiod_managed_clusters{cluster_type="remote"} 2.0',
            'istiod_remote_cluster_sync_status{cluster="west",cluster_type="remote",status="synced"} 1.0',
            'remote_cluster_secret_events_total{event="add"} 2.0',
        ):
            assert line in text


@pytest.mark.process
async def test_clusters_of_labelled_secrets_come_and_go(
    doubles: tuple[ClusterDouble, ClusterDouble, ClusterDouble],
) -> None:
    east, west, north = doubles
    east.secret(west)
    async with plane_of(registry(east, secrets=True)) as plane:
        assert endpoints(plane) == {"east": ("10.1.0.1", "n1"), "west": ("10.2.0.1", "n2")}
        service = plane.state.world.services.peek(KEY)
        assert service is not None
        assert service.addresses_in("west") == ("10.96.2.1",)
        assert service.addresses_in("elsewhere") == ("10.96.1.1",)
        east.secret(west, north)
        await until(plane, lambda: len(endpoints(plane)) == 3)
        names = [supervisor.source.name for supervisor in plane.state.supervisors]
        assert {"kubernetes/east", "kubernetes/west", "kubernetes/north"} <= {*names}
        await pages_of_clusters(plane)
        # One that is killed loses nothing, and those of others go on.
        west.kill()
        north.endpoints("web", "10.3.0.2")
        await until(plane, lambda: endpoints(plane)["north"] == ("10.3.0.2", "n3"))
        assert endpoints(plane)["west"] == ("10.2.0.1", "n2")
        east.secret(north)
        await until(plane, lambda: set(endpoints(plane)) == {"east", "north"})
        east.secret()
        await until(plane, lambda: set(endpoints(plane)) == {"east"})


@pytest.mark.plane
async def test_clusters_of_a_folder_are_served_from_the_state_while_they_are_away(
    doubles: tuple[ClusterDouble, ClusterDouble, ClusterDouble], tmp_path: Path
) -> None:
    _, west, north = doubles
    folder, state = tmp_path / "clusters", StateSettings(folder=tmp_path / "state")
    folder.mkdir()
    for each in (west, north):
        (folder / f"{each.id}.yaml").write_bytes(each.kubeconfig())
    clusters = KubernetesClusters(ClusterSettings(folder=folder))
    async with plane_of(clusters, state=state) as plane:
        assert set(endpoints(plane)) == {"west", "north"}
    north.kill()
    async with plane_of(clusters, state=state) as plane:  # ready at once: it waits for nobody whose picture it has
        assert endpoints(plane)["north"] == ("10.3.0.1", "n3")
        assert "kubernetes/north" in plane.state.stale()
        (folder / "north.yaml").unlink()
        await until(plane, lambda: set(endpoints(plane)) == {"west"})


@pytest.mark.slow
@pytest.mark.process
async def test_clusters_come_and_go_at_all_workers(doubles: tuple[ClusterDouble, ClusterDouble, ClusterDouble]) -> None:
    east, west, north = doubles
    options = WorkerSettings(2, worker_command(LogLevels(), LogFormat.TEXT))
    east.secret(north)
    async with plane_of(registry(east, secrets=True), workers=options) as plane, http_client() as client:

        async def clusters_of_worker(number: int) -> set[str]:
            path = f"/debug/endpointShardz?worker={number}"
            shards = (await client.get(f"http://{plane.addresses.http}{path}")).json()[KEY.host]["shop"]["Shards"]
            return {name.rpartition("/")[2] for name in shards}

        async def has(*expected: str) -> bool:
            return await clusters_of_worker(1) == await clusters_of_worker(2) == {*expected}

        await eventually(partial(has, "east", "north"))
        east.secret(north, west)
        await eventually(partial(has, "east", "north", "west"))
        assert plane.workers is not None
        pid = plane.workers.pids()[2]
        os.kill(pid, signal.SIGKILL)  # the next one is given what there is, late sources included
        await eventually(lambda: plane.workers is not None and plane.workers.pids().get(2, pid) != pid)
        await eventually(partial(has, "east", "north", "west"))
        east.secret(west)
        await eventually(partial(has, "east", "west"))
