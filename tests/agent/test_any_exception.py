"""An exception at awaits of all parts of the agent: each comes back, and the agent serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trio
from envoy.service.discovery.v3 import discovery_pb2
from structlog.testing import capture_logs

from mesh_pilot.agent.base.handover import Handover
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot
from mesh_pilot.agent.relay.messages import XdsProtocol
from mesh_pilot.agent.run.agent import ProxyAgent
from mesh_pilot.agent.settings import AgentFolders, DnsSettings, PlaneSettings, Ports
from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.net.rpc import Cardinality, GRPCError, RpcError, StreamTerminatedError, open_channel
from tests.support.agents import agent_settings
from tests.support.envoy import eventually, http_client
from tests.support.fake_plane import FakePlane, answer, fake_plane
from tests.support.injected import Injector
from tests.support.pretended import PretendEnvoy, pretend_envoys

PARTS = (
    "envoy", "socket", "status", "dns", "identity", "renewal", "trust", "relay", "subscriptions", "planes",
    "bootstrap", "health", "traffic",
)  # fmt: skip


class Client:
    """As Envoy does, a stream on the agent's socket: another each moment, which notes the version that it gets."""

    def __init__(self, socket: Path) -> None:
        self.address = f"unix://{socket}"
        self.version = ""

    async def run(self) -> None:
        while True:
            with suppress(RpcError, GRPCError, StreamTerminatedError):
                await self._stream()
            await trio.sleep(0.05)

    async def _stream(self) -> None:
        path, both = XdsProtocol.SOTW.path, Cardinality.STREAM_STREAM
        request = discovery_pb2.DiscoveryRequest(type_url=CLUSTER)
        async with open_channel(self.address) as channel, channel.request(path, both, bytes, bytes) as call:
            await call.send_message(request.SerializeToString())
            data = await call.recv_message()
            if data is not None:
                response = discovery_pb2.DiscoveryResponse.FromString(data)
                request.version_info, request.response_nonce = response.version_info, response.nonce
                await call.send_message(request.SerializeToString())
                self.version = response.version_info
                await trio.sleep(0.2)


async def no_signals() -> AsyncIterator[int]:
    await trio.Event().wait()
    yield 0


async def wrong(agent: ProxyAgent, client: Client, plane: FakePlane, ports: Ports, version: str) -> str:
    """What is not well; nothing, if a change reaches Envoy and the disk, and all ports answer."""
    plane.answers = lambda request: answer(version) if request.type_url == CLUSTER else None
    try:
        with trio.fail_after(3):
            await eventually(lambda: client.version == version)
    except trio.TooSlowError:
        return f"Envoy has {client.version}"
    try:
        async with http_client() as http:
            await http.get(f"http://127.0.0.1:{ports.status}/healthz/ready", timeout=2)
    except Exception as error:
        return f"status port: {error!r}"
    if not agent.envoy.ready.value:
        return agent.envoy.why_not_ready
    if agent.relay.statistics().kept != 1 or not agent.subscriptions.statistics().connected:
        return "nothing is kept, or the agent's own stream ended"
    return "" if agent.planes.current.value is not None else "no control plane"


async def life(folder: Path, ports: Ports, injector: Injector) -> None:
    handover = Handover()
    with closing(handover):
        async with fake_plane() as plane:
            await _life(folder, ports, injector, plane, handover)


async def _life(folder: Path, ports: Ports, injector: Injector, plane: FakePlane, handover: Handover) -> None:
    folders = AgentFolders(folder / "state", folder / "run")
    planes = PlaneSettings((Pilot(plane.address),), plaintext=True)
    settings = agent_settings(
        EnvoyNode("web-1"), folders=folders, planes=planes, ports=ports, dns=DnsSettings(enabled=True)
    )
    agent = ProxyAgent(settings, handover)
    client = Client(folders.socket)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run, no_signals(), no_signals())
        await eventually(lambda: folders.socket.exists() and agent.envoy.ready.value, what="the agent has started")
        nursery.start_soon(client.run)
        await eventually(lambda: agent.relay.statistics().kept == 1, what="an answer is kept")
        injector.is_armed = True
        if injector.at <= 0:
            injector.strike(-injector.at)
        await wrong(agent, client, plane, ports, "during")
        for child in PretendEnvoy.all[-1:]:
            child.send_signal(9)
        agent.planes.reconnect()
        agent.envoy.restart()
        began, number = trio.current_time(), 0
        while what := await wrong(agent, client, plane, ports, f"after-{number}"):
            if trio.current_time() - began > 30:
                raise AssertionError(f"{what}; {injector}; {agent.upkeep.statistics()}")
            number += 1
            await trio.sleep(0.3)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("at", range(-5, 11))
def test_the_agent_is_whole_after_an_exception_in_each_part(
    at: int, tmp_path: Path, free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_envoys(monkeypatch)
    admin, status, readiness, prometheus, dns = free_ports(5)
    """``at``: the await that raises in each part; below 1, the task that raises where it waits."""
    injector = Injector(at, *PARTS, is_armed=False)
    with capture_logs():
        trio.run(life, tmp_path, Ports(admin, status, readiness, prometheus, dns), injector, instruments=[injector])
    assert len(injector.raised) >= (len(PARTS) if at <= 0 else 3), injector
