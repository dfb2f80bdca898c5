"""A whole agent next to an application: its service in a real Consul, its health and metrics, and its leaving."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio

from mesh_pilot.agent.base.handover import Handover
from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot
from mesh_pilot.agent.run.agent import ProxyAgent
from mesh_pilot.agent.settings import AgentFolders, AgentSettings, ConsulAgentSettings, PlaneSettings, Ports
from mesh_pilot.agent.status.server import StatusServer
from mesh_pilot.consul.source import Agent as ConsulAgent
from mesh_pilot.consul.source import ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception
from tests.support.agents import agent_settings
from tests.support.consul import Consul, real_consul
from tests.support.echo import Backend, http_backend
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.mutual import REVIEWS, mutual
from tests.support.planes import SERVICE, running_plane
from tests.support.proxy_process import proxy_process
from tests.support.small_http import Said, small_http

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

HOST = "reviews.service.consul"
CLIENT = EnvoyNode("web", "default", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)
NO_LISTENERS_OF_OURS = """
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: ours, namespace: default}
spec:
  workloadSelector: {labels: {version: v2}}
  egress: [{hosts: ["~/*"]}]
"""
"""Else the agent's Envoy would share the client's port."""

MESH = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}\ndefaultHttpRetryPolicy: {attempts: 0}"


async def until(stop: trio.Event, *, task_status: trio.TaskStatus[Backend]) -> None:
    """An application until it is stopped, with all its connections."""
    async with http_backend("v2", host="127.0.0.12") as backend:
        task_status.started(backend)
        await stop.wait()


async def test_callers_come_while_the_application_is_healthy_and_none_fails_when_the_agent_leaves(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, admin, status, *consul_ports = free_ports(7)
    url = f"http://127.0.0.1:{port}/"
    meta = {"protocol": "http", "service_port": str(port)}
    registry = ConsulSettings(agent=ConsulAgent(f"http://127.0.0.1:{consul_ports[0]}"))
    async with (
        trio.open_nursery() as nursery,
        real_consul(tmp_path, consul_ports) as consul,
        small_http({"/metrics": Said(b"sold_total 3\n", "text/plain")}) as numbers,
        fleet(tmp_path, NO_LISTENERS_OF_OURS, mesh=MESH, registries=(ConsulRegistry((registry,)),)) as mesh,
    ):
        other = await mesh.backend("v1", host="127.0.0.11")
        await consul.register("reviews", id="v1", address=other.host, port=other.port, meta=meta)
        stop = trio.Event()
        backend: Backend = await nursery.start(until, stop)
        probe = {"httpGet": {"host": backend.host, "port": backend.port, "path": "/up"}, "periodSeconds": 1}
        settings = AgentSettings(
            EnvoyNode("reviews-2", ip=backend.host, labels={"version": "v2"}, interception=Interception.NONE),
            AgentFolders(tmp_path / "state", tmp_path / "run"),
            PlaneSettings((Pilot(mesh.plane_address),), plaintext=True),
            ports=Ports(admin=admin, status=status, readiness=0, prometheus=0),
            consul=ConsulAgentSettings(
                consul.address, service={"Name": "reviews", "ID": "v2", "Port": backend.port, "Meta": meta}
            ),
            probes=[probe],
            scrape={"port": numbers.port},
        )
        signals, signalled = trio.open_memory_channel[int](1)
        _, hangups = trio.open_memory_channel[int](0)
        handover = Handover()
        agent = ProxyAgent(settings, handover)
        ended = trio.Event()

        async def run() -> None:
            await agent.run(signalled, hangups)
            ended.set()

        nursery.start_soon(run)
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)

        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{status}", trust_env=False, timeout=60) as client:
            page = (await client.get("/metrics")).text
            state = (await client.get("/debug/statistics")).json()
        assert "\nenvoy_server_live{} 1\n" in page
        assert "\nsold_total 3\n" in page
        assert "\nmesh_pilot_agent_registration_is_registered 1\n" in page
        assert "\nmesh_pilot_agent_health_is_healthy 1\n" in page
        assert 'scrape_failures_total{key="envoy"} 0\n' in page
        assert state["registration"]["status"] == "passing"

        backend.answer = lambda request, body: (503, {}) if request.target == b"/up" else None
        await mesh.until_answered_by({"v1"}, url, host=HOST)
        backend.answer = None
        await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)

        async with mesh.load(url, host=HOST) as load:
            await eventually(lambda: load.answers["v2"] > 10, what="load on ours")
            await signals.send(signal.SIGTERM)
            await ended.wait()
            stop.set()
        handover.close()
        assert load.failures == []
        assert "v2" not in (await consul.ask("GET", "/v1/agent/services")).json()


async def test_under_mutual_tls_consuls_own_checks_reach_the_application_through_the_agent(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    async with (
        real_consul(tmp_path, free_ports(4)) as consul,
        trio.open_nursery() as nursery,
        mutual(tmp_path, free_ports) as running,
    ):
        (port,) = free_ports(1)
        probes = {
            "/app-health/reviews/readyz": {"httpGet": {"port": running.app.port, "path": "/up"}},
            "/app-health/reviews/livez": {"tcpSocket": {"port": running.app.port}},
        }
        settings = agent_settings(REVIEWS, ports=Ports(status=port), app_probers=probes)
        status = StatusServer(settings, {}, ready=Observable(True), name_table=Observable(None), quit=lambda: None)
        nursery.start_soon(status.run, await status.open())
        urls = {
            "direct": f"http://127.0.0.4:{running.target}/up",
            "readyz": f"http://127.0.0.1:{port}/app-health/reviews/readyz",
            "livez": f"http://127.0.0.1:{port}/app-health/reviews/livez",
        }
        checks = [{"CheckID": name, "Name": name, "HTTP": url, "Interval": "1s"} for name, url in urls.items()]
        await consul.register("reviews", Checks=checks)

        async def states() -> dict[str, str]:
            return {name: check["Status"] for name, check in (await checks_of(consul)).items()}

        async def reached() -> bool:
            return await states() == {"direct": "critical", "readyz": "passing", "livez": "passing"}

        async def failing() -> bool:
            return (await states())["readyz"] == "critical"

        await eventually(reached, what="the agent's pages pass")
        assert any(seen["path"] == "/up" and "Consul" in seen["headers"]["user-agent"] for seen in running.app.seen)
        running.app.answer = lambda request, body: (500, {}) if request.target == b"/up" else None
        await eventually(failing, what="the application says no")
        assert (await states())["livez"] == "passing"
        nursery.cancel_scope.cancel()


async def checks_of(consul: Consul) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = (await consul.ask("GET", "/v1/agent/checks")).json()
    return found


@pytest.mark.slow
async def test_a_killed_agent_leaves_its_service_critical_and_an_upgraded_one_never_does(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "reviews.yaml").write_text(SERVICE)
    file = tmp_path / "proxy.yaml"
    async with (
        real_consul(tmp_path, free_ports(4)) as consul,
        running_plane(config) as plane,
    ):
        service = {"Name": "web", "Port": 8080, "Meta": {"protocol": "http"}}
        file.write_text(json.dumps({"consul-service": service, "consul-address": f"127.0.0.1:{consul.port}"}))
        flags = ("--name=web-1", "--ip=127.0.0.1", f"--pilot={plane.addresses.grpc}", "--plaintext", f"--config={file}")

        async def state() -> str:
            return (await checks_of(consul)).get("mesh-pilot:web", {}).get("Status", "")

        async def until_state(expected: str) -> None:
            async def there() -> bool:
                return await state() == expected

            await eventually(there, what=f"the check is {expected}")

        async with proxy_process(tmp_path / "proxy", free_ports(4), *flags) as proxy:
            await until_state("passing")
            seen = set()
            for times in (1, 2):
                os.kill(proxy.pid, signal.SIGHUP)

                async def renewed() -> bool:
                    seen.add(await state())
                    log = proxy.log.read_text()
                    return log.count("another version of the agent takes over") == times and (  # noqa: B023
                        log.count("consul check set") == times + 1  # noqa: B023
                    )

                await eventually(renewed, what=f"upgrade {times}: {proxy.log.read_text()[-2000:]}")
            assert seen == {"passing"}
            await proxy.end(signal.SIGKILL)
            await until_state("critical")
            proxy.start()
            await until_state("passing")
            assert await proxy.end(signal.SIGTERM) == 0
            assert await checks_of(consul) == {}
