"""A whole agent beside an application: its service in a real Consul, its health and metrics, and its leaving."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio

from mesh_pilot.agent.agent import Agent
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot
from mesh_pilot.agent.settings import AgentFolders, AgentSettings, ConsulAgentSettings, PlaneSettings, Ports
from mesh_pilot.model.proxy import Interception
from mesh_pilot.sources.consul import Agent as ConsulAgent
from mesh_pilot.sources.consul import ConsulRegistry, ConsulSettings
from tests.support.consul import real_consul
from tests.support.echo import Backend, http_backend
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.small_http import Said, small_http

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

HOST = "reviews.service.consul"
CLIENT = EnvoyNode("web", "default", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)
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
        fleet(tmp_path, mesh=MESH, registries=(ConsulRegistry((registry,)),)) as mesh,
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
        agent = Agent(settings)
        ended = trio.Event()

        async def run() -> None:
            await agent.run(signalled)
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
        assert load.failures == []
        assert "v2" not in (await consul.ask("GET", "/v1/agent/services")).json()
