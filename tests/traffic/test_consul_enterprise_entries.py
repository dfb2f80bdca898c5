"""Config entries that the community's Consul refuses, or that are newer than what is available here, carried out by
real Envoys: against a double of Consul that is written from its documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception
from tests.support.consul_double import ConsulDouble, consul_double
from tests.support.envoy import eventually
from tests.support.fleet import fleet

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

HOST = "shop.service.consul"
SERVER = "127.0.0.6"
CLIENT = EnvoyNode(
    "web", "default", "127.0.0.2", interception=Interception.NONE, metadata={"CONSUL_SERVICE_ID": "web-1"}
)
MESH = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"

Ports = Callable[[int], list[int]]


@pytest.fixture
async def consul() -> AsyncIterator[ConsulDouble]:
    async with consul_double() as double:
        near = {"Region": "west", "Zone": "west-1"}
        double.register("web", "web-1", "127.0.0.2", Port=1, Meta={"service_port": "1"}, Locality=near)
        yield double


def registries(consul: ConsulDouble) -> tuple[ConsulRegistry, ...]:
    timing = ConsulTiming(hold_seconds=0.3)
    return (ConsulRegistry((ConsulSettings(agent=Agent(consul.address), mesh=True, timing=timing),)),)


async def test_rate_limits_of_a_service_and_of_its_routes(
    tmp_path: Path, free_ports: Ports, consul: ConsulDouble
) -> None:
    routes = [
        {"PathPrefix": "/free", "RequestsPerSecond": 100_000},
        {"PathExact": "/rare", "RequestsPerSecond": 1},
    ]
    async with fleet(tmp_path, mesh=MESH, registries=registries(consul)) as mesh:
        app = await mesh.backend("app")
        meta = {"protocol": "http", "service_port": str(free_ports(1)[0])}
        consul.register("shop", "shop-1", SERVER, Port=app.port, Meta=meta)
        envoy = await mesh.envoy(EnvoyNode("shop", "default", SERVER, interception=Interception.NONE))
        url = f"http://{SERVER}:{app.port}"

        async def is_open() -> bool:
            return f"{SERVER}:{app.port}" in (await envoy.listening()).values()

        await eventually(is_open, what="the inbound listener is open")

        async def statuses(path: str) -> Counter[int]:
            return Counter([(await mesh.get(f"{url}{path}", host=HOST)).status_code for _ in range(20)])

        assert await statuses("/") == {200: 20}
        limits = {"InstanceLevel": {"RequestsPerSecond": 1, "RequestsMaxBurst": 2, "Routes": routes}}
        consul.write("service-defaults", "shop", RateLimits=limits)

        async def is_limited() -> bool:
            return (await statuses("/rest"))[429] > 0

        await eventually(is_limited, what="the limit of the service is in force")
        assert await statuses("/free/way") == {200: 20}, "a route's limit takes the place of the service's"
        rare = await statuses("/rare")
        assert rare[429] > rare[200] > 0
        consul.delete("service-defaults", "shop")

        async def is_free() -> bool:
            return await statuses("/rest") == {200: 20}

        await eventually(is_free, what="nothing is limited any more")
        await mesh.assert_all_taken()


@pytest.mark.parametrize("by", ["service-resolver", "proxy-defaults"])
async def test_instances_near_a_client_come_first(
    tmp_path: Path, free_ports: Ports, consul: ConsulDouble, by: str
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    places = {"zone": ("west", "west-1"), "region": ("west", "west-2"), "far": ("east", "east-1")}
    async with fleet(tmp_path, mesh=MESH, registries=registries(consul)) as mesh:
        for name, (region, zone) in places.items():
            backend = await mesh.backend(name)
            meta = {"protocol": "http", "service_port": str(port)}
            locality = {"Region": region, "Zone": zone}
            consul.register("shop", name, backend.host, Port=backend.port, Meta=meta, Locality=locality)
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by(set(places), url, host=HOST)
        name = "shop" if by == "service-resolver" else "global"
        consul.write(by, name, PrioritizeByLocality={"Mode": "failover"})
        await mesh.until_answered_by({"zone"}, url, host=HOST)
        consul.check("shop", "zone", "alive", "critical")
        await mesh.until_answered_by({"region"}, url, host=HOST)
        consul.check("shop", "region", "alive", "critical")
        await mesh.until_answered_by({"far"}, url, host=HOST)
        consul.check("shop", "zone", "alive", "passing")
        await mesh.until_answered_by({"zone"}, url, host=HOST)
        consul.delete(by, name)
        await mesh.until_answered_by({"zone", "far"}, url, host=HOST)
        await mesh.assert_all_taken()


async def test_a_namespace_of_consul_is_one_of_the_mesh_and_its_names_are_known(
    tmp_path: Path, free_ports: Ports, consul: ConsulDouble
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    settings = ConsulSettings(agent=Agent(consul.address), mesh=True, consul_namespace="team", partition="edge")
    async with fleet(tmp_path, mesh=MESH, registries=(ConsulRegistry((settings,)),)) as mesh:
        tenant: dict[str, Any] = {"Namespace": "team", "Partition": "edge"}
        for name in ("v1", "v2"):
            backend = await mesh.backend(name)
            meta = {"protocol": "http", "service_port": str(port), "version": name}
            consul.register("shop", name, backend.host, Port=backend.port, Meta=meta, **tenant)
        await mesh.envoy(EnvoyNode("web", "team", "127.0.0.2", interception=Interception.NONE))
        await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)
        subsets = {name: {"Filter": f"Service.Meta.version == {name}"} for name in ("v1", "v2")}
        consul.write("service-resolver", "shop", DefaultSubset="v2", Subsets=subsets, **tenant)
        for host in (HOST, "shop.service.team.ns.edge.ap.consul", "shop.service.team.ns.edge.ap.dc1.dc.consul"):
            await mesh.until_answered_by({"v2"}, url, host=host)
        questions = [each for each in consul.asked if each.path == "/v1/health/service/shop"]
        assert {(each.parameters["ns"], each.parameters["partition"]) for each in questions} == {("team", "edge")}
        await mesh.assert_all_taken()


async def test_settings_for_all_upstreams_of_a_service_are_those_of_its_proxies_alone(
    tmp_path: Path, free_ports: Ports, consul: ConsulDouble
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with fleet(tmp_path, mesh=MESH, registries=registries(consul)) as mesh:
        good, bad = await mesh.backend("good"), await mesh.backend("bad")
        bad.answer = lambda request, body: (500, {})
        meta = {"protocol": "http", "service_port": str(port)}
        for backend in (good, bad):
            consul.register("shop", backend.name, backend.host, Port=backend.port, Meta=meta)
        envoy = await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"good", "500"}, url, host=HOST)
        checks = {"MaxFailures": 2, "Interval": "100ms", "MaxEjectionPercent": 100, "BaseEjectionTime": "1h"}
        consul.write("service-defaults", "other", UpstreamConfig={"Defaults": {"PassiveHealthCheck": checks}})
        consul.write("service-defaults", "web", UpstreamConfig={"Defaults": {"ConnectTimeoutMs": 1234}})

        async def times_out() -> bool:
            return bool((await envoy.dynamic("Cluster"))[f"outbound|{port}||{HOST}"]["connect_timeout"] == "1.234s")

        await eventually(times_out, what="the timeout of web's upstreams is in force")
        await mesh.until_answered_by({"good", "500"}, url, host=HOST)
        consul.write("service-defaults", "web", UpstreamConfig={"Defaults": {"PassiveHealthCheck": checks}})
        await mesh.until_answered_by({"good"}, url, host=HOST)
        await mesh.assert_all_taken()
