"""Zone aware load balancing in real Envoys: they stay in their zone as far as that spreads the load evenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from mesh_pilot.model.proxy import LOCAL_CLUSTER, SELF_DISCOVERY
from mesh_pilot.model.service import Locality
from tests.support.backends import Mesh, backends
from tests.support.echo import Backend
from tests.support.envoy import RealEnvoy, eventually
from tests.support.manifests import at, rule, service
from tests.support.proxy_process import proxy_process
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]
NAMES = tuple(f"{zone}-{n}" for zone in ("z1", "z2") for n in range(4))
IN_Z1 = attrs.evolve(CLIENT, locality=Locality("r1", "z1"), metadata={SELF_DISCOVERY: "true"})
ON = "loadBalancer: {zoneAwareLbSetting: {enabled: true}}"
ON_SMALL = "loadBalancer: {zoneAwareLbSetting: {minClusterSize: 2}}"
OFF = "loadBalancer: {zoneAwareLbSetting: {enabled: false}}"


def zoned(host: str, port: int, found: list[Backend]) -> str:
    return service(host, port, *(at(backend, locality=f"r1/{backend.name[:2]}") for backend in found))


def peers(z1: int = 1, z2: int = 1) -> str:
    """The client's own service: itself and other instances, of which there is nothing but the addresses."""
    zones = ["z1"] * z1 + ["z2"] * z2
    endpoints = [{"address": f"127.0.0.{2 + n}", "locality": f"r1/{zone}"} for n, zone in enumerate(zones)]
    return service("web.test", 81, *endpoints)


async def by_zone(mesh: Mesh, host: str, count: int = 200) -> Counter[str]:
    return Counter(name[:2] for name in await mesh.names(host, count))


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
@pytest.mark.smoke
async def test_requests_stay_in_the_zone_where_the_rule_says_so(tmp_path: Path, free_ports: Ports, delta: bool) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, *NAMES) as (mesh, found):
        services = zoned("on.test", port, found) + rule("on.test", ON)
        services += zoned("off.test", port, found) + rule("off.test", OFF) + zoned("unsaid.test", port, found)
        few = zoned("few.test", port, found[3:5]) + rule("few.test", ON)
        small = zoned("small.test", port, found[3:5]) + rule("small.test", ON_SMALL)
        await mesh.apply(services + few + small + peers())
        await mesh.envoy(IN_Z1, delta=delta)
        one = Mesh(mesh, port)
        assert await by_zone(one, "on.test") == await by_zone(one, "small.test") == {"z1": 200}
        for host in ("off.test", "unsaid.test", "few.test"):
            assert 60 < (await by_zone(one, host))["z1"] < 140, host


async def test_a_zone_with_too_few_instances_leaves_a_part_to_others(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, *NAMES) as (mesh, found):
        uneven = zoned("uneven.test", port, found[2:]) + rule("uneven.test", ON)  # a third of it in z1
        await mesh.apply(uneven + peers())
        await mesh.envoy(IN_Z1)
        # Half of its peers are in z1, too: z1 can take two thirds of what they ask.
        assert 110 < (await by_zone(Mesh(mesh, port), "uneven.test"))["z1"] < 160


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_an_envoy_starts_without_a_service_and_follows_the_one_it_gets(
    tmp_path: Path, free_ports: Ports, delta: bool
) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, *NAMES) as (mesh, found):
        await mesh.apply(zoned("on.test", port, found) + rule("on.test", ON))
        envoy = await mesh.envoy(IN_Z1, delta=delta)
        one = Mesh(mesh, port)
        assert 60 < (await by_zone(one, "on.test"))["z1"] < 140
        await mesh.apply(peers(), "own.yaml")
        await eventually(lambda: _has_peers(envoy, ["z1", "z2"]), what="both instances are known")
        assert await by_zone(one, "on.test") == {"z1": 200}
        await mesh.apply(peers(2, 0), "own.yaml")  # all in z1, which alone would be too much for half of the instances
        await eventually(lambda: _has_peers(envoy, ["z1", "z1"]), what="the other instance is in z1")
        assert 60 < (await by_zone(one, "on.test"))["z1"] < 140
        (mesh.folder / "config" / "own.yaml").unlink()
        await eventually(lambda: _has_peers(envoy, []), what="the service is gone")


async def test_an_agent_gives_its_envoy_a_local_cluster_once_a_rule_needs_it(tmp_path: Path, free_ports: Ports) -> None:
    port, *own_ports = free_ports(5)
    async with backends(tmp_path, *NAMES) as (mesh, found):
        await mesh.apply(zoned("on.test", port, found) + peers())
        flags = ("--name=web-1", "--namespace=shop", "--ip=127.0.0.2", "--locality=r1/z1", "--plaintext")
        async with proxy_process(tmp_path / "proxy", own_ports, *flags, f"--pilot={mesh.plane_address}") as proxy:
            await proxy.wait_ready()
            one = Mesh(mesh, port)
            assert 60 < (await by_zone(one, "on.test"))["z1"] < 140
            await mesh.apply(rule("on.test", ON), "rule.yaml")

            async def stays() -> bool:
                return await by_zone(one, "on.test", 40) == {"z1": 40}

            await eventually(stays, what="Envoy is hot restarted with a local cluster")
            assert LOCAL_CLUSTER in await proxy.clusters()
            assert await by_zone(one, "on.test") == {"z1": 200}


async def _has_peers(envoy: RealEnvoy, zones: list[str]) -> bool:
    """True if Envoy's local cluster has instances in these zones."""
    clusters = (await envoy.get("/clusters?format=json")).json()["cluster_statuses"]
    (hosts,) = (cluster.get("host_statuses", []) for cluster in clusters if cluster["name"] == LOCAL_CLUSTER)
    return sorted(host["locality"]["zone"] for host in hosts) == zones
