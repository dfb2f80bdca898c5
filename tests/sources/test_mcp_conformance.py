"""MCP keeps to what every source must: dialled by us in each dialect, over xDS, and dialling us."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sources.conformance import Feed, SourceConformance
from tests.sources.mcp_feed import McpFeed, SinkFeed, XdsFeed


class TestResourceSource(SourceConformance):
    @pytest.fixture
    async def feed(self, nursery, free_ports: Callable[[int], list[int]]) -> Feed:  # type: ignore[no-untyped-def]
        return await McpFeed.open(nursery, free_ports(1)[0])


class TestWholeCollections(SourceConformance):
    @pytest.fixture
    async def feed(self, nursery, free_ports: Callable[[int], list[int]]) -> Feed:  # type: ignore[no-untyped-def]
        return await McpFeed.open(nursery, free_ports(1)[0], incremental=False)


class TestAggregated(SourceConformance):
    @pytest.fixture
    async def feed(self, nursery, free_ports: Callable[[int], list[int]]) -> Feed:  # type: ignore[no-untyped-def]
        return await McpFeed.open(nursery, free_ports(1)[0], only="/istio.mcp.v1alpha1.AggregatedMeshConfigService/")


class TestResourceSink(SourceConformance):
    @pytest.fixture
    async def feed(self, nursery, free_ports: Callable[[int], list[int]]) -> Feed:  # type: ignore[no-untyped-def]
        return await SinkFeed.open(nursery, free_ports(1)[0])


class TestDeltaXds(SourceConformance):
    @pytest.fixture
    async def feed(self, nursery, free_ports: Callable[[int], list[int]]) -> Feed:  # type: ignore[no-untyped-def]
        return await XdsFeed.open_xds(nursery, free_ports(1)[0], delta=True)


class TestStateOfTheWorldXds(SourceConformance):
    @pytest.fixture
    async def feed(self, nursery, free_ports: Callable[[int], list[int]]) -> Feed:  # type: ignore[no-untyped-def]
        return await XdsFeed.open_xds(nursery, free_ports(1)[0], delta=False)
