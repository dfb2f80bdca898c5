"""Consul keeps to what every source must; the objects are configs in KV, the agent a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulSettings, ConsulSource
from mesh_pilot.model.events import Item
from tests.sources.conformance import Feed, RereadingSourceConformance
from tests.sources.files_feed import bad_text, text, version
from tests.support.consul import Cable, Consul, cable, real_consul

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("each_consul")]

PREFIX = "mesh-pilot/config"
TIMING = ConsulTiming(retry_seconds=0.05, retry_limit_seconds=0.2, hold_seconds=0.1, pace_seconds=0.05)


class ConsulFeed:
    """A key an object, behind a cable that can be cut."""

    def __init__(self, consul: Consul, line: Cable) -> None:
        self._consul = consul
        self._line = line
        self.source = ConsulSource(
            "consul", ConsulSettings(agent=Agent(line.address), config_prefix=PREFIX, timing=TIMING)
        )

    async def put(self, name: str, version: int) -> None:
        await self._consul.put(self._path(name), text(name, version))

    async def put_bad(self, name: str) -> None:
        await self._consul.put(self._path(name), bad_text(name))

    async def remove(self, name: str) -> None:
        await self._consul.delete(self._path(name))

    async def break_off(self) -> None:
        self._line.cut()

    async def restore(self) -> None:
        self._line.fix()

    def key(self, name: str) -> tuple[str, ...]:
        return ("config", "VirtualService", "default", name)

    def version(self, item: Item) -> int:
        return version(item)

    def _path(self, name: str) -> str:
        return f"{PREFIX}/VirtualService/default/{name}"


class TestConsul(RereadingSourceConformance):
    @pytest.fixture
    async def feed(self, tmp_path: Path, free_ports: Callable[[int], list[int]]) -> AsyncIterator[Feed]:
        async with real_consul(tmp_path, free_ports(4)) as consul, cable(consul.port) as line:
            yield ConsulFeed(consul, line)
