"""What a change costs when it comes over MCP: the same as from a file, whatever else there is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from mesh_pilot.base.offload import LARGE_BYTES
from mesh_pilot.model.events import Upsert
from mesh_pilot.sources.mcp.translate import DecodedItem, decode_item
from mesh_pilot.xds.mcp.collections import McpCollection
from mesh_pilot.xds.mcp.messages import McpResource
from tests.sources.conformance import running
from tests.sources.files_feed import FilesFeed
from tests.sources.mcp_feed import SERVICES, McpFeed, XdsFeed, virtual_service

MANY = 3000


@pytest.mark.sweep(1)
@pytest.mark.parametrize("way", ["incremental", "whole", "delta", "state of the world"])
async def test_one_change_among_three_thousand_is_one_object_judged_and_one_event(  # type: ignore[no-untyped-def]
    nursery, free_ports: Callable[[int], list[int]], way: str
) -> None:
    (port,) = free_ports(1)
    if way in ("incremental", "whole"):
        feed = await McpFeed.open(nursery, port, incremental=way == "incremental")
    else:  # which ask for every kind in two versions
        feed = await XdsFeed.open_xds(nursery, port, delta=way == "delta")
    for number in range(MANY):
        await feed.put(f"vs-{number}", 1)
    async with running(feed.source, room=10_000) as follower:
        await follower.until_synced()
        assert feed.source.statistics().judged == MANY
        follower.take_events()
        await feed.put("vs-7", 2)
        await follower.until(lambda picture: feed.version(picture.items[feed.key("vs-7")]) == 2)
        assert [type(event) for event in follower.take_events()] == [Upsert]
        assert feed.source.statistics().judged == MANY + 1


async def test_the_event_of_a_change_is_the_one_that_a_file_gives(  # type: ignore[no-untyped-def]
    nursery, free_ports: Callable[[int], list[int]], tmp_path: Path
) -> None:
    """So all that follows from it costs the same."""
    told: list[Upsert] = []
    for feed in (await McpFeed.open(nursery, free_ports(1)[0]), FilesFeed(tmp_path)):
        for number in range(10):
            await feed.put(f"vs-{number}", 1)
        async with running(feed.source, room=100) as follower:
            await follower.until_synced()
            follower.take_events()
            await feed.put("vs-7", 2)
            await follower.until(lambda picture, feed=feed: feed.version(picture.items[feed.key("vs-7")]) == 2)  # type: ignore[misc]
            (event,) = follower.take_events()
            assert isinstance(event, Upsert)
            told.append(event)
    assert told[0].item == told[1].item


async def test_a_large_object_is_decoded_beside_the_loop(  # type: ignore[no-untyped-def]
    nursery, free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, bool] = {}

    def read(collection: McpCollection, resource: McpResource, *arguments: Any) -> DecodedItem:
        where[resource.name] = threading.current_thread() is threading.main_thread()
        return decode_item(collection, resource, *arguments)

    monkeypatch.setattr("mesh_pilot.sources.mcp.receiver.decode_item", read)
    feed = await McpFeed.open(nursery, free_ports(1)[0])
    large = virtual_service("large", 1)
    feed.served.put(SERVICES, attrs.evolve(large, body=large.body * (2 * LARGE_BYTES // len(large.body))))
    feed.served.put(SERVICES, virtual_service("small", 1))
    async with running(feed.source, room=100) as follower:
        await follower.until_synced()
    assert where == {"default/large": False, "default/small": True}
