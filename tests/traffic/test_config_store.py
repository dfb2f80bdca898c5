"""A change of the config store at a real Envoy: the answer waits for its ACK, and tells its NACK."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.api.app import BASE
from tests.support.envoy import RealEnvoy
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, routes, service
from tests.support.mistakes import BROKEN_LUA
from tests.support.shop import CLIENT

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]

HOST = "reviews.test"
TOKEN = "a-token-that-may-operate"
PROXY = f"{CLIENT.name}.{CLIENT.namespace}"


def with_timeout(timeout: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        routes(HOST, f"- {{timeout: {timeout}, route: [{{destination: {{host: {HOST}}}}}]}}")
    )
    return found


def with_broken_script() -> dict[str, Any]:
    """An EnvoyFilter of which only an Envoy can know that it is wrong."""
    found: dict[str, Any] = yaml.safe_load(
        manifest(
            "EnvoyFilter",
            "script",
            {
                "configPatches": [
                    {
                        "applyTo": "HTTP_FILTER",
                        "match": {"context": "SIDECAR_OUTBOUND"},
                        "patch": {
                            "operation": "INSERT_BEFORE",
                            "value": {"name": "broken", "typed_config": BROKEN_LUA},
                        },
                    }
                ]
            },
        )
    )
    return found


async def routes_of(envoy: RealEnvoy) -> str:
    """The routes that an Envoy has, as text."""
    return (await envoy.get("/config_dump?resource=dynamic_route_configs")).text


class Writer:
    def __init__(self, world: Fleet) -> None:
        self.world = world

    async def ask(self, method: str, document: dict[str, Any], **query: Any) -> Any:
        metadata = document["metadata"]
        path = f"/config/{document['kind']}/{metadata['namespace']}/{metadata['name']}"
        reply = await self.world.client.request(
            method,
            f"http://{self.world.plane.addresses.http}{BASE}{path}",
            params=query,
            headers={"authorization": f"Bearer {TOKEN}"},
            json=document if method == "PUT" else None,
        )
        assert reply.status_code == 200, reply.text
        return reply.json()


@pytest.fixture
async def writer(tmp_path: Path, free_ports: Any) -> AsyncIterator[Writer]:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operate {TOKEN} tests\n")
    more: dict[str, Any] = {"access": AccessSettings(token_file=tokens), "config_store": str(tmp_path / "config")}
    async with fleet(tmp_path, **more) as world:
        backend = await world.backend("v1")
        await world.apply(service(HOST, 9080, at(backend)))
        yield Writer(world)


@pytest.mark.smoke
async def test_the_answer_waits_for_the_ack_of_an_envoy_and_its_nack_is_told(writer: Writer) -> None:
    world = writer.world
    envoy = await world.envoy(CLIENT)

    created = await writer.ask("PUT", with_timeout("11s"), wait=60)
    assert created["action"] == "created"
    delivery = created["delivery"]
    assert (delivery["complete"], delivery["proxies"], delivery["have"], delivery["sent"]) == (True, 1, 1, 1), delivery
    assert '"timeout": "11s"' in await routes_of(envoy), "at once"

    envoy.process.send_signal(signal.SIGSTOP)
    try:
        late = (await writer.ask("PUT", with_timeout("12s"), wait=0.5))["delivery"]
    finally:
        envoy.process.send_signal(signal.SIGCONT)
    assert (late["complete"], late["have"], late["waiting_names"]) == (False, 0, [PROXY])
    later = (await writer.ask("GET", with_timeout("12s"), wait=60))["delivery"]
    assert (later["complete"], later["have"]) == (True, 1)
    assert '"timeout": "12s"' in await routes_of(envoy)

    refused = (await writer.ask("PUT", with_broken_script(), wait=60))["delivery"]
    assert (refused["complete"], refused["have"], refused["waiting"]) == (False, 0, 0)
    assert {(each["proxy"], each["type"]) for each in refused["nacks"]} == {(PROXY, "LDS")}
    assert "script load error" in refused["nacks"][0]["reason"]

    gone = await writer.ask("DELETE", with_broken_script(), wait=60)
    assert (gone["action"], gone["delivery"]["complete"]) == ("deleted", True), gone
