"""The API of control planes whose config store is Consul or a Kubernetes: a change comes back by the source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.kubernetes.source import KubernetesRegistry
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.api.app import BASE
from tests.support.api_double import ApiDouble, serving
from tests.support.config_stores import PREFIX, RESOURCES, route
from tests.support.consul import real_consul
from tests.support.planes import running_plane

TOKEN = "a-token-that-may-operate"
PATH = f"{BASE}/config/vs/shop/reviews"


@asynccontextmanager
async def registry_of(kind: str, folder: Path, ports: list[int]) -> AsyncIterator[Any]:
    """The registry, and the store's name."""
    if kind == "kubernetes":
        async with serving(ApiDouble(RESOURCES)) as access:
            yield KubernetesRegistry(access, has_services=False), "kubernetes"
    else:
        async with real_consul(folder, ports) as consul:
            settings = ConsulSettings(agent=Agent(consul.address), config_prefix=PREFIX)
            yield ConsulRegistry((settings,)), f"consul://{PREFIX}"


@pytest.mark.process
@pytest.mark.parametrize("kind", ["consul", "kubernetes"])
async def test_a_change_is_written_read_back_and_waited_for(kind: str, tmp_path: Path, free_ports: Any) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operate {TOKEN} tests\n")
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        registry_of(kind, tmp_path, free_ports(4)) as (registry, store),
        running_plane(
            registries=(registry,),
            config_store=store,
            access=AccessSettings(token_file=tokens),
            debounce_after=0.01,
        ) as plane,
        httpx.AsyncClient(
            trust_env=False, timeout=60, headers=headers, base_url=f"http://{plane.addresses.http}"
        ) as client,
    ):

        async def ask(method: str, status: int = 200, **more: Any) -> Any:
            reply = await client.request(method, PATH, **more)
            assert reply.status_code == status, reply.text
            return reply.json()

        # Without another object the deletion would leave Consul suddenly empty, which is doubted (--consul-hold).
        other = await client.put(f"{BASE}/config/vs/shop/other", json=route(name="other"))
        assert other.status_code == 200, other.text
        wait = {"wait": 30}
        created = await ask("PUT", json=route("1s"), params=wait)
        assert (created["action"], created["delivery"]["complete"]) == ("created", True), created
        found = await ask("GET")
        assert (found["in_store"], found["version"]) == (True, created["version"])
        assert found["object"]["spec"] == route("1s")["spec"]
        assert (await ask("PUT", json=found["object"], params=wait))["action"] == "unchanged"
        changed = await ask("PUT", json={**found["object"], "spec": route("2s")["spec"]}, params=wait)
        assert (changed["action"], changed["delivery"]["complete"]) == ("configured", True), changed
        refused = await ask("PUT", 412, json={**found["object"], "spec": route("3s")["spec"]})
        assert refused["version"] == changed["version"]
        deleted = await ask("DELETE", params=wait)
        assert (deleted["action"], deleted["delivery"]["complete"]) == ("deleted", True), deleted
