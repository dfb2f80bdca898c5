"""Services with several ports, called through real Envoys.

``Ports`` is new in Consul 1.22, which is not available here: these tests run against a double that is written from its
documentation. Checks of one port run against a real Consul, too, with ports of metadata.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception
from tests.support.consul import TTL, real_consul
from tests.support.consul_double import ConsulDouble, consul_double
from tests.support.echo import Backend
from tests.support.envoy import eventually
from tests.support.fleet import fleet

pytestmark = pytest.mark.envoy

HOST = "shop.service.consul"
CLIENT = EnvoyNode("web", "default", "127.0.0.2", interception=Interception.NONE)
MESH = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"

Ports = Callable[[int], list[int]]


@pytest.fixture
async def consul() -> AsyncIterator[ConsulDouble]:
    async with consul_double() as double:
        yield double


def registries(address: str) -> tuple[ConsulRegistry, ...]:
    return (ConsulRegistry((ConsulSettings(agent=Agent(address)),)),)


def put(consul: ConsulDouble, id: str, public: Backend, admin: Backend, ports: list[int], *, default: str) -> None:
    """Register two backends as the ports of one instance; ``ports``: those by which clients call them."""
    listed = [
        {"Name": "http-admin", "Port": admin.port, "Default": default == "http-admin"},
        {"Name": "http", "Port": public.port, "Default": default == "http"},
    ]
    meta = {"service_port": str(ports[0]), "service_port_http-admin": str(ports[1]), "service_port_http": str(ports[0])}
    consul.register("shop", id, public.host, Ports=listed, Meta=meta)


async def test_each_port_of_a_service_has_its_name_and_its_health(
    tmp_path: Path, free_ports: Ports, consul: ConsulDouble
) -> None:
    ports = free_ports(2)
    public, admin = (f"http://127.0.0.1:{port}/" for port in ports)
    async with fleet(tmp_path, mesh=MESH, registries=registries(consul.address)) as mesh:
        for id in ("one", "two"):
            backends = [await mesh.backend(f"{id}-{name}") for name in ("public", "admin")]
            put(consul, id, *backends, ports, default="http")
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"one-public", "two-public"}, public, host=HOST)
        await mesh.until_answered_by({"one-admin", "two-admin"}, admin, host=f"{HOST}:{ports[1]}")
        for name in ("shop.virtual.consul", "http.shop.virtual.consul"):
            await mesh.until_answered_by({"one-public", "two-public"}, public, host=name)
        name = f"http-admin.shop.virtual.consul:{ports[1]}"
        await mesh.until_answered_by({"one-admin", "two-admin"}, admin, host=name)

        consul.check("shop", "one", "port:http-admin", "critical", "connection refused")
        await mesh.until_answered_by({"two-admin"}, admin, host=f"{HOST}:{ports[1]}")
        await mesh.until_answered_by({"one-public", "two-public"}, public, host=HOST)
        consul.check("shop", "two", "whole", "critical")
        await mesh.until_answered_by({"one-public"}, public, host=HOST)
        assert (await mesh.get(admin, host=f"{HOST}:{ports[1]}")).status_code == 503
        consul.check("shop", "one", "port:http-admin", "passing")
        await mesh.until_answered_by({"one-admin"}, admin, host=f"{HOST}:{ports[1]}")
        await mesh.assert_all_taken()


async def test_a_port_is_the_same_one_by_its_name_whichever_is_the_default(
    tmp_path: Path, free_ports: Ports, consul: ConsulDouble
) -> None:
    ports = free_ports(2)
    public, admin = (f"http://127.0.0.1:{port}/" for port in ports)
    async with fleet(tmp_path, mesh=MESH, registries=registries(consul.address)) as mesh:
        for id, default in (("one", "http"), ("three", "http"), ("two", "http-admin")):
            backends = [await mesh.backend(f"{id}-{name}") for name in ("public", "admin")]
            put(consul, id, *backends, ports, default=default)
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({f"{id}-public" for id in ("one", "two", "three")}, public, host=HOST)
        host = f"{HOST}:{ports[1]}"
        await mesh.until_answered_by({f"{id}-admin" for id in ("one", "two", "three")}, admin, host=host)
        with pytest.raises(AssertionError, match="Ports: instances say http, http-admin; http is used"):
            mesh.assert_nothing_refused()


async def test_a_sidecar_takes_what_is_for_all_ports_of_its_instance(
    tmp_path: Path, free_ports: Ports, consul: ConsulDouble
) -> None:
    async with fleet(tmp_path, mesh=MESH, registries=registries(consul.address)) as mesh:
        public, admin = await mesh.backend("public"), await mesh.backend("admin")
        listed = [{"Name": "http", "Port": public.port, "Default": True}, {"Name": "http-admin", "Port": admin.port}]
        meta = dict(zip(("service_port", "service_port_http-admin"), map(str, free_ports(2)), strict=True))
        consul.register("shop", "one", "127.0.0.6", Ports=listed, Meta=meta)
        envoy = await mesh.envoy(EnvoyNode("shop", "default", "127.0.0.6", interception=Interception.NONE))
        wanted = {f"127.0.0.6:{public.port}", f"127.0.0.6:{admin.port}"}

        async def is_open() -> bool:
            return wanted <= set((await envoy.listening()).values())

        await eventually(is_open, what="both inbound listeners are open")
        for backend in (public, admin):
            reply = await mesh.get(f"http://127.0.0.6:{backend.port}/", host=HOST)
            assert reply.json()["name"] == backend.name
        await mesh.assert_all_taken()


@pytest.mark.usefixtures("each_consul")
async def test_a_check_of_one_port_in_a_real_consul(tmp_path: Path, free_ports: Ports) -> None:
    ports = free_ports(2)
    public, admin = (f"http://127.0.0.1:{port}/" for port in ports)
    async with (
        real_consul(tmp_path, free_ports(4)) as consul,
        fleet(tmp_path, mesh=MESH, registries=registries(consul.address)) as mesh,
    ):
        for id in ("one", "two"):
            open_to_all, hidden = await mesh.backend(f"{id}-public"), await mesh.backend(f"{id}-admin")
            meta = {
                "protocol": "http",
                "service_port": str(ports[0]),
                "port_http-admin": str(hidden.port),
                "service_port_http-admin": str(ports[1]),
            }
            checks = [{"Name": "alive", **TTL}, {"Name": "port:http-admin", "CheckID": f"{id}-admin", **TTL}]
            await consul.register(
                "shop", id=id, address=open_to_all.host, port=open_to_all.port, meta=meta, Checks=checks
            )
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"one-admin", "two-admin"}, admin, host=f"{HOST}:{ports[1]}")
        await consul.ask("PUT", "/v1/agent/check/fail/one-admin")
        await mesh.until_answered_by({"two-admin"}, admin, host=f"{HOST}:{ports[1]}")
        await mesh.until_answered_by({"one-public", "two-public"}, public, host=HOST)
        await mesh.assert_all_taken()
