"""Objects that became bad while the control plane was down: their last good version is served all the same."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.consul_stub import consul_stub
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

GARBAGE = "}{ garbage"
OBJECTS = "/v1/kv/mesh"
BAD = SERVICE.replace("9080", "many")


def named(name: str) -> str:
    return SERVICE.replace("reviews", name)


@asynccontextmanager
async def plane(folder: Path, **more: Any) -> AsyncIterator[ControlPlane]:
    async with running_plane(
        folder / "config", state=StateSettings(folder=folder / "state"), debounce_after=0.01, **more
    ) as running:
        await eventually(lambda: not running.state.reducer.intake.stale(), what="all is confirmed")
        yield running


def hosts(plane: ControlPlane) -> set[str]:
    return {key.host for key, _ in plane.state.world.services.items()}


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Two files, which a control plane has read and ended."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "good.yaml").write_text(named("good"))
    (tmp_path / "config" / "reviews.yaml").write_text(SERVICE + "---\n" + named("ratings"))
    async with plane(tmp_path) as first:
        assert hosts(first) == {"good.test", "reviews.test", "ratings.test"}
    return tmp_path


@pytest.mark.parametrize("text", [GARBAGE, BAD + "---\n" + named("ratings"), SERVICE + "---\n" + GARBAGE])
async def test_a_file_is_broken_and_mended(folder: Path, text: str) -> None:
    file = folder / "config" / "reviews.yaml"
    file.write_text(text)
    for _ in range(2):
        with capture_logs() as logs:
            async with plane(folder) as again:
                assert hosts(again) == {"good.test", "reviews.test", "ratings.test"}
                assert again.state.world.rejections()
        told = [e for e in logs if e["event"] == "refused objects stay as they were before the restart"]
        assert [entry["source"] for entry in told] == ["files"]
    async with plane(folder) as last:
        file.write_text(SERVICE.replace("10.0.0.1", "10.0.0.2"))
        await eventually(lambda: hosts(last) == {"good.test", "reviews.test"}, what="the file is as it says")
        await eventually(lambda: not last.state.world.rejections())
        (endpoints,) = [found for key, found in last.state.world.endpoints.items() if key.host == "reviews.test"]
        assert [endpoint.address for endpoint in endpoints] == ["10.0.0.2"]


async def test_a_file_is_broken_and_deleted(folder: Path) -> None:
    file = folder / "config" / "reviews.yaml"
    file.write_text(GARBAGE)
    async with plane(folder) as again:
        assert hosts(again) == {"good.test", "reviews.test", "ratings.test"}
        file.unlink()
        await eventually(lambda: hosts(again) == {"good.test"}, what="it is gone")
        assert not again.state.world.rejections()


async def test_a_file_is_deleted_while_the_plane_is_down(folder: Path) -> None:
    (folder / "config" / "reviews.yaml").unlink()
    async with plane(folder) as again:
        assert hosts(again) == {"good.test"}


async def test_a_key_of_consul_has_a_bad_object(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()

    def pair(name: str, text: str) -> dict[str, Any]:
        key = f"mesh/ServiceEntry/shop/{name}"
        return {"Key": key, "Value": base64.b64encode(text.encode()).decode(), "Flags": 0}

    timing = ConsulTiming(retry_seconds=0.02, retry_limit_seconds=0.1, hold_seconds=0.1, pace_seconds=0.02)
    async with consul_stub() as stub:
        consul = ConsulSettings(agent=Agent(stub.address), timing=timing, config_prefix="mesh")
        registry = ConsulRegistry((consul,))
        stub.answer("/v1/catalog/services", {"consul": []}, index=10)
        stub.answer(OBJECTS, [pair("reviews", SERVICE), pair("good", named("good"))], index=10)
        async with plane(tmp_path, registries=(registry,)) as first:
            assert hosts(first) == {"good.test", "reviews.test"}
        stub.answer(OBJECTS, [pair("reviews", GARBAGE), pair("good", named("good"))], index=11)
        async with plane(tmp_path, registries=(registry,)) as again:
            assert hosts(again) == {"good.test", "reviews.test"}
            assert again.state.world.rejections()
            stub.answer(OBJECTS, [pair("good", named("good"))], index=12)
            await eventually(lambda: hosts(again) == {"good.test"}, what="it is gone")
