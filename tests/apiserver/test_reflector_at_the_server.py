"""A reflector at a real API server: the one that the double is a double of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, load_access, reflect
from tests.apiserver.following import Following
from tests.support.apiserver import ApiServer

CONFIG_MAPS = ApiResource("", ("v1",), "configmaps", "ConfigMap")
SELECTION = "test=reflector"

pytestmark = [pytest.mark.slow, pytest.mark.process]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path / "server")
    try:
        server.start()
        yield server
    finally:
        server.kill(etcd=True)


async def follow(client: ApiClient, *, task_status: trio.TaskStatus[Following]) -> None:
    seen = Following(client)
    task_status.started(seen)
    backoff = Backoff(first_seconds=0.05, limit_seconds=0.5)
    await reflect(client, CONFIG_MAPS, seen, backoff, namespace="default", label_selector=SELECTION)


def config_map(name: str, value: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"test": "reflector"}}, "data": {"a": value}}


@pytest.mark.parametrize("streams", [True, False])
async def test_changes_restarts_and_an_older_backup_are_followed(own_server: ApiServer, streams: bool) -> None:
    access = load_access(own_server.kubeconfig())
    async with ApiClient(access) as client, trio.open_nursery() as nursery:
        client.streams_lists = streams
        for name in "abc":
            await client.create(CONFIG_MAPS, config_map(name, "1"), "default")
        backup = await trio.to_thread.run_sync(own_server.backup)
        seen = await nursery.start(follow, client)
        with trio.fail_after(60):
            await seen.until(lambda: seen.version)
            assert seen.take() == ["listed a b c"]
            await client.patch(CONFIG_MAPS, "a", {"data": {"a": "2"}}, "default")
            await client.create(CONFIG_MAPS, config_map("d", "1"), "default")
            await client.delete(CONFIG_MAPS, "b", "default")
            await seen.until(lambda: len(seen.told) == 3)
            assert seen.take() == ["there a", "there d", "gone b"]
            await trio.to_thread.run_sync(own_server.kill)
            await seen.until(lambda: seen.is_lost)
            await trio.to_thread.run_sync(own_server.start)
            await seen.until(lambda: not seen.is_lost)
            await client.patch(CONFIG_MAPS, "a", {"data": {"a": "3"}}, "default")
            await seen.until(lambda: seen.told)
            assert seen.take() == ["there a"], "nothing else has changed"
            await trio.to_thread.run_sync(own_server.restore, backup)
            await seen.until(lambda: len(seen.told) == 3)
            assert sorted(seen.take()) == ["gone d", "there a", "there b"]
            await client.patch(CONFIG_MAPS, "c", {"data": {"a": "2"}}, "default")
            await seen.until(lambda: seen.told)
            assert seen.take() == ["there c"]
            assert client.streams_lists in (streams, False), "an old etcd has none"
        nursery.cancel_scope.cancel()
