"""Services registered in a real Consul, called through real Envoys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.service import Locality
from tests.support.consul import TTL, Consul, real_consul
from tests.support.echo import Backend, http_backend
from tests.support.envoy import eventually
from tests.support.fleet import fleet

pytestmark = pytest.mark.envoy

HOST = "reviews.service.consul"
PREFIX = "mesh-pilot/config"
CLIENT = EnvoyNode("web", "default", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)
MESH = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"

Ports = Callable[[int], list[int]]

SUBSETS = f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
spec:
  host: {HOST}
  subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: {{version: v2}}}}]
"""


def split(v1: int, v2: int) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: VirtualService
spec:
  hosts: [{HOST}]
  http:
  - route:
    - {{destination: {{host: {HOST}, subset: v1}}, weight: {v1}}}
    - {{destination: {{host: {HOST}, subset: v2}}, weight: {v2}}}
"""


@pytest.fixture
async def consul(tmp_path: Path, free_ports: Ports) -> AsyncIterator[Consul]:
    async with real_consul(tmp_path, free_ports(4)) as agent:
        yield agent


def registries(*datacenters: ConsulSettings) -> tuple[ConsulRegistry, ...]:
    return (ConsulRegistry(datacenters),)


def settings(consul: Consul, **more: Any) -> ConsulSettings:
    return ConsulSettings(agent=Agent(consul.address), config_prefix=PREFIX, **more)


async def put(consul: Consul, backend: Backend, port: int, *, version: str = "v1", **more: Any) -> None:
    """Register a backend as an instance of reviews, under its own name."""
    meta = {"protocol": "http", "service_port": str(port), "version": version}
    await consul.register("reviews", id=backend.name, address=backend.host, port=backend.port, meta=meta, **more)


@pytest.mark.parametrize("host", [HOST, "reviews", "reviews.service"])
async def test_objects_from_files_name_services_of_consul(
    tmp_path: Path, free_ports: Ports, consul: Consul, host: str
) -> None:
    (port,) = free_ports(1)
    config = f"{SUBSETS}---{split(0, 100)}".replace(HOST, host).replace("spec:", "metadata: {name: reviews}\nspec:")
    async with fleet(tmp_path, config, mesh=MESH, registries=registries(settings(consul))) as mesh:
        for version in ("v1", "v2"):
            await put(consul, await mesh.backend(version), port, version=version)
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"v2"}, f"http://127.0.0.1:{port}/", host=HOST)
        await mesh.assert_all_taken()


@pytest.mark.parametrize("scope", ["*/", "./", "default/"])
@pytest.mark.parametrize("host", [HOST, "reviews.service", "reviews"])
async def test_a_sidecar_narrows_to_services_of_consul(
    tmp_path: Path, free_ports: Ports, consul: Consul, host: str, scope: str
) -> None:
    port, other = free_ports(2)
    config = f"""
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: only}}
spec: {{egress: [{{hosts: ["{scope}{host}"]}}]}}
"""
    async with fleet(tmp_path, config, mesh=MESH, registries=registries(settings(consul))) as mesh:
        backend = await mesh.backend("v1")
        await put(consul, backend, port)
        await consul.register("hidden", port=backend.port, meta={"protocol": "http", "service_port": str(other)})
        envoy = await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"v1"}, f"http://127.0.0.1:{port}/", host=HOST)
        assert {n for n in await envoy.dynamic("Cluster") if n.startswith("outbound|")} == {f"outbound|{port}||{HOST}"}
        await mesh.assert_all_taken()


@pytest.mark.parametrize("host", [HOST, "reviews", "reviews.service"])
async def test_a_service_entry_adds_endpoints_to_a_service_of_consul(
    tmp_path: Path, free_ports: Ports, consul: Consul, host: str
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path, mesh=MESH, registries=registries(settings(consul))) as mesh:
        one, two = await mesh.backend("v1"), await mesh.backend("v2")
        await mesh.apply(f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: more}}
spec:
  hosts: [{host}]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{{number: {port}, name: http, protocol: HTTP}}]
  endpoints: [{{address: {two.host}, ports: {{http: {two.port}}}}}]
""")
        await put(consul, one, port)
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"v1", "v2"}, f"http://127.0.0.1:{port}/", host=HOST)
        await mesh.assert_all_taken()


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_a_canary_by_objects_in_the_kv_store(
    tmp_path: Path, free_ports: Ports, consul: Consul, delta: bool
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with fleet(tmp_path, mesh=MESH, registries=registries(settings(consul))) as mesh:
        for version in ("v1", "v2"):
            await put(consul, await mesh.backend(version), port, version=version)
        await mesh.envoy(CLIENT, delta=delta)
        await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)
        await consul.put(f"{PREFIX}/DestinationRule/default/reviews", SUBSETS)
        await consul.put(f"{PREFIX}/VirtualService/default/reviews", split(100, 0))
        await mesh.until_answered_by({"v1"}, url, host=HOST)
        await consul.put(f"{PREFIX}/VirtualService/default/reviews", split(50, 50))
        await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)
        await consul.put(f"{PREFIX}/VirtualService/default/reviews", split(0, 100))
        await mesh.until_answered_by({"v2"}, url, host=HOST)
        await mesh.assert_all_taken()


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_a_deploy_replaces_every_instance_under_load_without_a_failed_request(
    tmp_path: Path, free_ports: Ports, consul: Consul, delta: bool
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with (
        trio.open_nursery() as nursery,
        fleet(tmp_path, mesh=MESH, registries=registries(settings(consul))) as mesh,
    ):
        old = [await nursery.start(_process, f"old-{number}") for number in range(3)]
        for process in old:
            await put(consul, process.backend, port, Check=TTL)
        envoy = await mesh.envoy(CLIENT, delta=delta)
        await mesh.until_answered_by({p.backend.name for p in old}, url, host=HOST)
        async with mesh.load(url, host=HOST) as load:
            new = []
            for number, before in enumerate(old):
                after = await nursery.start(_process, f"new-{number}")
                new.append(after.backend.name)
                await put(consul, after.backend, port, version="v2", Check={**TTL, "Status": "critical"})
                await consul.check(after.backend.name, "pass")
                await eventually(lambda name=after.backend.name: load.answers[name] > 0, what="the new one answers")
                await consul.deregister(before.backend.name)
                await eventually(lambda p=before.backend.port: _is_out(envoy, p), what="the old one is out")
                before.stop.set()
            load.answers.clear()
            await eventually(lambda: set(load.answers) == set(new), what="all new ones answer")
        assert load.failures == []
        await mesh.assert_all_taken()
        nursery.cancel_scope.cancel()


FAILOVER = f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: reviews}}
spec:
  host: {HOST}
  trafficPolicy:
    outlierDetection: {{consecutive5xxErrors: 2, interval: 0.2s, baseEjectionTime: 60s, maxEjectionPercent: 100}}
"""


async def test_requests_go_over_to_another_datacenter_while_their_own_has_no_healthy_instance(
    tmp_path: Path, free_ports: Ports, consul: Consul
) -> None:
    (port,), other = free_ports(1), free_ports(4)
    url = f"http://127.0.0.1:{port}/"
    there = {"datacenter": "dc2"}
    async with real_consul(tmp_path, other, name="second", config=there) as second:
        datacenters = (
            settings(consul),
            ConsulSettings(agent=Agent(second.address), remote=True, merged=True),
        )
        async with fleet(tmp_path, FAILOVER, mesh=MESH, registries=registries(*datacenters)) as mesh:
            near, far = await mesh.backend("near"), await mesh.backend("far")
            await put(consul, near, port, Check=TTL)
            await put(second, far, port, Check=TTL)
            node = attrs.evolve(CLIENT, locality=Locality("dc1"))
            await mesh.envoy(node)
            await mesh.until_answered_by({"near"}, url, host=HOST)
            await consul.check("near", "fail")
            await mesh.until_answered_by({"far"}, url, host=HOST)
            await consul.check("near", "pass")
            await mesh.until_answered_by({"near"}, url, host=HOST)
            await second.kill()
            await consul.check("near", "fail")
            await mesh.until_answered_by({"far"}, url, host=HOST)
            assert set(await mesh.names(url, host="reviews.service.dc2.consul")) == {"far"}
            await mesh.assert_all_taken()


async def test_an_instance_that_fails_requests_sends_them_to_another_datacenter(
    tmp_path: Path, free_ports: Ports, consul: Consul
) -> None:
    (port,), other = free_ports(1), free_ports(4)
    url = f"http://127.0.0.1:{port}/"
    async with (
        real_consul(tmp_path, other, name="second", config={"datacenter": "dc2"}) as second,
        trio.open_nursery() as nursery,
    ):
        remote = ConsulSettings(agent=Agent(second.address), remote=True, merged=True)
        async with fleet(tmp_path, FAILOVER, mesh=MESH, registries=registries(settings(consul), remote)) as mesh:
            near = await nursery.start(_process, "near")
            await put(consul, near.backend, port)
            await put(second, await mesh.backend("far"), port)
            await mesh.envoy(attrs.evolve(CLIENT, locality=Locality("dc1")))
            await mesh.until_answered_by({"near"}, url, host=HOST)
            near.stop.set()  # Consul knows of no check: it stays in the catalog
            await mesh.until_answered_by({"far"}, url, host=HOST)
            await mesh.assert_all_taken()
        nursery.cancel_scope.cancel()


async def test_a_sidecar_takes_what_is_for_the_instance_at_its_address(
    tmp_path: Path, free_ports: Ports, consul: Consul
) -> None:
    port, outbound = free_ports(2)
    async with fleet(tmp_path, mesh=MESH, registries=registries(settings(consul))) as mesh:
        backend = await mesh.backend("app", port=port)
        await put(consul, attrs.evolve(backend, host="127.0.0.6"), outbound)
        envoy = await mesh.envoy(EnvoyNode("app", "default", "127.0.0.6", interception=Interception.NONE))
        listening = f"127.0.0.6:{port}"

        async def is_open() -> bool:
            return listening in (await envoy.listening()).values()

        await eventually(is_open, what="the inbound listener is open")
        reply = await mesh.get(f"http://{listening}/", host=HOST)
        assert reply.json()["name"] == "app"
        assert await envoy.stats(f"^cluster.inbound.{port}..*upstream_rq_total$")
        await mesh.assert_all_taken()


async def test_a_sidecar_says_which_instance_of_a_machine_is_its_own(
    tmp_path: Path, free_ports: Ports, consul: Consul
) -> None:
    async with fleet(tmp_path, mesh=MESH, registries=registries(settings(consul))) as mesh:
        ports = {}
        for name, outbound in zip(("web", "api"), free_ports(2), strict=True):
            ports[name] = (await mesh.backend(name)).port
            meta = {"protocol": "http", "service_port": str(outbound)}
            await consul.register(name, id=f"{name}-1", address="127.0.0.6", port=ports[name], meta=meta)

        async def listens(node: EnvoyNode, *expected: str) -> None:
            envoy = await mesh.envoy(attrs.evolve(node, interception=Interception.NONE))
            wanted = {f"127.0.0.6:{ports[name]}" for name in expected}

            async def is_so() -> bool:
                return {a for a in (await envoy.listening()).values() if a.startswith("127.0.0.6:")} == wanted

            await eventually(is_so, what=f"{node.name} takes what is for {expected}")

        await listens(EnvoyNode("web", ip="127.0.0.6", metadata={"CONSUL_SERVICE_ID": "web-1"}), "web")
        assert (await mesh.get(f"http://127.0.0.6:{ports['web']}/")).json()["name"] == "web"
        await listens(EnvoyNode("api", ip="127.0.0.6", metadata={"CONSUL_SERVICE": "api"}), "api")
        assert (await mesh.get(f"http://127.0.0.6:{ports['api']}/")).json()["name"] == "api"
        await mesh.assert_all_taken()


async def test_a_sidecar_behind_nat_is_found_by_the_id_of_its_instance(
    tmp_path: Path, free_ports: Ports, consul: Consul
) -> None:
    async with fleet(tmp_path, mesh=MESH, registries=registries(settings(consul))) as mesh:
        backend = await mesh.backend("app")
        meta = {"protocol": "http", "service_port": str(free_ports(1)[0])}
        await consul.register("app", id="app-7", address="198.51.100.7", port=backend.port, meta=meta)
        metadata = {"CONSUL_SERVICE_ID": "app-7", "CONSUL_NODE": "consul"}
        envoy = await mesh.envoy(EnvoyNode("app", ip="127.0.0.7", interception=Interception.NONE, metadata=metadata))
        listening = f"127.0.0.7:{backend.port}"

        async def is_open() -> bool:
            return listening in (await envoy.listening()).values()

        await eventually(is_open, what="the inbound listener is open")
        assert (await mesh.get(f"http://{listening}/")).json()["name"] == "app"
        await mesh.assert_all_taken()


@pytest.mark.smoke
async def test_proxies_keep_their_traffic_while_consul_is_gone(
    tmp_path: Path, free_ports: Ports, consul: Consul
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with fleet(tmp_path, mesh=MESH, registries=registries(settings(consul))) as mesh:
        await put(consul, await mesh.backend("v1"), port)
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"v1"}, url, host=HOST)
        await consul.kill()
        await eventually(lambda: bool(mesh.plane.state.stale()), what="it is known to be stale")
        assert set(await mesh.names(url, host=HOST)) == {"v1"}
        ready = await mesh.get(f"http://{mesh.plane.addresses.http}/ready")
        assert ready.status_code == 200
        first, second = ready.text.splitlines()
        assert first == "ready" and second.startswith("consul: silent for ")
        metrics = await mesh.get(f"http://{mesh.plane.addresses.http}/metrics")
        assert 'mesh_pilot_source_stale_seconds{source="consul"}' in metrics.text


@attrs.frozen
class _Process:
    """A backend that runs until it is stopped."""

    backend: Backend
    stop: trio.Event


async def _process(name: str, *, task_status: trio.TaskStatus[_Process]) -> None:
    async with http_backend(name) as backend:
        process = _Process(backend, trio.Event())
        task_status.started(process)
        await process.stop.wait()


async def _is_out(envoy: Any, port: int) -> bool:
    """True if Envoy has no endpoint at a port any more."""
    return f'"port_value": {port}' not in str(await envoy.dynamic("ClusterLoadAssignment")).replace("'", '"')


async def test_an_instance_that_warns_with_weight_zero_gets_no_request(
    tmp_path: Path, free_ports: Ports, consul: Consul
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with fleet(tmp_path, mesh=MESH, registries=registries(settings(consul))) as mesh:
        for version in ("v1", "v2"):
            weights = {"Passing": 5, "Warning": 0}
            await put(consul, await mesh.backend(version), port, version=version, Check=TTL, Weights=weights)
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)
        await consul.check("v1", "warn")
        await mesh.until_answered_by({"v2"}, url, host=HOST)
        await consul.check("v2", "warn")

        async def is_unavailable() -> bool:
            return (await mesh.get(url, host=HOST)).status_code == 503

        await eventually(is_unavailable, what="no instance gets requests")
        await mesh.assert_all_taken()


async def test_while_instances_differ_on_the_port_for_clients_both_ports_reach_both(
    tmp_path: Path, free_ports: Ports, consul: Consul
) -> None:
    old, new = free_ports(2)
    async with fleet(tmp_path, mesh=MESH, registries=registries(settings(consul))) as mesh:
        await put(consul, await mesh.backend("v1"), old)
        await put(consul, await mesh.backend("v2"), new, version="v2")
        await mesh.envoy(CLIENT)
        for port in (old, new):
            await mesh.until_answered_by({"v1", "v2"}, f"http://127.0.0.1:{port}/", host=f"{HOST}:{port}")
        with pytest.raises(AssertionError, match=r"Meta\.service_port: instances differ"):
            mesh.assert_nothing_refused()
