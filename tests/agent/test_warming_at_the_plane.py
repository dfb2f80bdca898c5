"""An Envoy with its agent that accepts a listener and never uses it: shown, found, and withheld from it alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.resource import LISTENER
from tests.support.agent_streams import ads_stream, node_of
from tests.support.binaries import require_binary
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane
from tests.support.proxy_process import proxy_process
from tests.support.warming import FROM_ANOTHER_SERVER, shorten_warming

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(180)]


async def page(plane: ControlPlane, path: str) -> Any:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return json.loads((await client.get(f"http://{plane.addresses.http}{path}")).text)


async def entry_of(plane: ControlPlane, proxy: str) -> dict[str, Any]:
    found = [each for each in await page(plane, "/debug/syncz") if each["proxy"] == proxy]
    return found[0] if found else {"status": {}, "warming": [], "withheld": []}


@pytest.mark.parametrize("variant", ["--delta", "--sotw"])
async def test_a_filter_from_a_server_that_is_away_is_withheld_from_the_proxy_that_waits_for_it(
    tmp_path: Path, free_ports: Callable[[int], list[int]], variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_binary("envoy")
    shorten_warming(monkeypatch, 6)
    config = tmp_path / "config"
    config.mkdir()
    (config / "reviews.yaml").write_text(SERVICE)
    async with running_plane(config) as plane:
        flags = ("--name=web-1", "--namespace=shop", "--ip=127.0.0.1", f"--pilot={plane.addresses.grpc}")
        async with (
            proxy_process(tmp_path / "proxy", free_ports(4), *flags, "--plaintext", variant) as proxy,
            ads_stream(plane.addresses.grpc, node_of(name="web-2")) as other,
        ):
            await proxy.wait_ready()

            async def is_synced() -> bool:
                return (await entry_of(plane, "web-1.shop"))["status"].get("LDS") == "SYNCED"

            await eventually(is_synced, what="it has its listeners")
            (config / "partner.yaml").write_text(FROM_ANOTHER_SERVER)
            seen: dict[str, Any] = {}

            async def is_withheld() -> bool:
                seen.update(await entry_of(plane, "web-1.shop"))
                return bool(seen["withheld"]) and not seen["trial"]

            await eventually(is_withheld, seconds=90, what="the EnvoyFilter is withheld")
            assert [each["object"] for each in seen["withheld"]] == ["EnvoyFilter/shop/partner"]
            assert seen["withheld"][0]["from"].endswith("alone")
            assert seen["status"]["LDS"] == "SYNCED"
            answer = await other.ask(LISTENER)
            assert any(b"partner-filter" in each.value for each in answer.resources)
            (config / "partner.yaml").unlink()

            async def is_over() -> bool:
                return not (await entry_of(plane, "web-1.shop"))["withheld"]

            await eventually(is_over, what="nothing is withheld any more")
    assert "Traceback" not in proxy.log.read_text()


async def test_without_quarantine_it_is_warming_for_as_long_as_it_waits(
    tmp_path: Path, free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_binary("envoy")
    shorten_warming(monkeypatch, 1)
    config = tmp_path / "config"
    config.mkdir()
    (config / "reviews.yaml").write_text(SERVICE)
    (config / "partner.yaml").write_text(FROM_ANOTHER_SERVER)
    async with running_plane(config, quarantine=None) as plane:
        flags = ("--name=web-1", "--namespace=shop", "--ip=127.0.0.1", f"--pilot={plane.addresses.grpc}")
        async with proxy_process(tmp_path / "proxy", free_ports(4), *flags, "--plaintext") as proxy:
            seen: dict[str, Any] = {}

            async def warms() -> bool:
                seen.update(await entry_of(plane, "web-1.shop"))
                return bool(seen["warming"])

            await eventually(warms, what="a listener of an Envoy that starts warms")
            assert seen["status"]["LDS"] == "WARMING"
            (found,) = seen["warming"]
            assert (found["type"], found["waits_for"], found["held"]) == ("LDS", ["ECDS partner-filter"], "")
            assert not await proxy.is_ready()
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                metrics = (await client.get(f"http://{plane.addresses.http}/metrics")).text
            assert 'mesh_pilot_proxies{sync="warming"} 1.0' in metrics
            (config / "partner.yaml").unlink()
            await proxy.wait_ready()

            async def is_synced() -> bool:
                return (await entry_of(plane, "web-1.shop"))["status"].get("LDS") == "SYNCED"

            await eventually(is_synced, what="it uses its listeners")
