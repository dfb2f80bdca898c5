"""Proxies of Consul's own mesh and of ours use mutual TLS with each other; a shop moves from one to the other."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception
from tests.support.binaries import require_binary
from tests.support.connect_shop import STRICT, Shop, connect_shop
from tests.support.consul import Consul, real_consul
from tests.support.fleet import fleet
from tests.traffic.test_consul_entries import write

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

Ports = Callable[[int], list[int]]


@asynccontextmanager
async def built_in_proxy(consul: Consul, *arguments: str) -> AsyncIterator[None]:
    """Consul's own proxy that is not Envoy, which every version has."""
    command = [str(require_binary("consul")), "connect", "proxy", f"-http-addr={consul.address}", *arguments]
    with (consul.log.parent / f"{arguments[0].strip('-').replace('=', '-')}.log").open("wb") as log:
        process = await trio.lowlevel.open_process(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def test_a_sidecar_without_envoy_is_called_by_mutual_tls(tmp_path: Path, free_ports: Ports) -> None:
    to_db, to_web, sidecar = free_ports(3)
    async with real_consul(tmp_path, free_ports(4), config={"connect": {"enabled": True}}) as consul:
        await write(consul, "proxy-defaults", "global", Config={"protocol": "http"})
        timing = ConsulTiming(hold_seconds=0.3)
        settings = ConsulSettings(agent=Agent(consul.address), mesh=True, connect=True, timing=timing)
        async with fleet(tmp_path, STRICT, registries=(ConsulRegistry((settings,)),), guard=None) as mesh:
            db, web = await mesh.backend("db"), await mesh.backend("web")
            connect = {"SidecarService": {"Port": sidecar, "Checks": [{"AliasService": "db"}]}}
            meta = {"service_port": str(to_db)}
            await consul.register("db", address="127.0.0.2", port=db.port, meta=meta, Connect=connect)
            meta = {"service_port": str(to_web), "tls_mode": "istio"}
            connect = {"SidecarService": {"Port": web.port, "Checks": [{"AliasService": "web"}]}}
            await consul.register("web", address="127.0.0.12", port=web.port, meta=meta, Connect=connect)
            node = EnvoyNode("web", "default", "127.0.0.12", interception=Interception.NONE)
            envoy = await mesh.envoy(attrs.evolve(node, metadata={"SERVICE_ACCOUNT": "web"}))
            async with built_in_proxy(consul, "-sidecar-for=db"):
                url = f"http://127.0.0.1:{to_db}"
                await mesh.until_answered_by({"db"}, url, host="db.service.consul")
                stats = await envoy.stats("db.service.consul.*(handshake|total_match_count)")
                assert sum(v for k, v in stats.items() if k.endswith("ssl.handshake")) > 0
                assert not any(v for k, v in stats.items() if "tlsMode-disabled" in k), stats
                with pytest.raises(httpx.TransportError):
                    await mesh.get(f"http://127.0.0.12:{web.port}/")
            await mesh.assert_all_taken()


@pytest.fixture
async def shop(tmp_path: Path, free_ports: Ports) -> AsyncIterator[Shop]:
    http, grpc, *own = free_ports(5)
    ports = dict(zip(("server", "serf_lan", "serf_wan"), own, strict=True))
    config = {"connect": {"enabled": True}, "ports": {"http": http, "dns": -1, "grpc": grpc, "grpc_tls": -1, **ports}}
    async with (
        real_consul(tmp_path, [http, *own], config=config, variable="CONSUL_NEW") as consul,
        connect_shop(tmp_path, free_ports, consul, grpc) as running,
    ):
        await running.start_with_connect()
        yield running


@pytest.mark.parametrize("order", [("db", "api", "web"), ("web", "api", "db")], ids="-".join)
async def test_a_shop_moves_without_a_plaintext_hop_or_a_failed_request(shop: Shop, order: tuple[str, ...]) -> None:
    async with shop.load() as load:
        await shop.check_intentions()
        await shop.check_hops()
        for service in order:
            await shop.move(service)
            await shop.check_intentions()
            await shop.check_hops()
    assert load.failures == []
    await shop.mesh.assert_all_taken()
