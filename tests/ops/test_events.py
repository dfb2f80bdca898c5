"""Server-sent events: what is told, how often, to how many, and what is left when a client goes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.ops.api import events
from mesh_pilot.ops.api.events import KEPT, LIFETIME_SECONDS, MAX_CLIENTS, EventFeed
from mesh_pilot.ops.plane.state import PlaneProgress
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane


class FakePlane(SimpleNamespace):
    """The parts of a plane's state that events are made of."""

    def __init__(self) -> None:
        totals = SimpleNamespace(
            rejects=SimpleNamespace(total=lambda: self.nacks), acks=SimpleNamespace(total=lambda: self.acks)
        )
        status = SimpleNamespace(
            proxies=lambda: [SimpleNamespace(proxy=SimpleNamespace(name=name)) for name in self.names],
            totals=totals,
            recent_nacks=lambda: (),
        )
        super().__init__(
            names=["web-1.shop"],
            nacks=0,
            acks=0,
            progress=PlaneProgress(),
            looks=0,
            world=SimpleNamespace(revision=1, rejections=self.rejections),
            reducer=SimpleNamespace(statistics=lambda: SimpleNamespace(events=self.world.revision)),
            xds=SimpleNamespace(status=status),
            other_states=list,
            not_ready=dict,
            stale=dict,
        )

    def rejections(self) -> tuple[object, ...]:
        self.looks += 1
        return ()


class Watcher:
    """A client of a feed."""

    def __init__(self, feed: EventFeed, last_seen: int | None = None) -> None:
        self.texts: list[str] = []
        self._feed = feed
        self._last_seen = last_seen

    async def run(self, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await self._feed.watch(self._take, self._last_seen)

    async def _take(self, text: str) -> None:
        self.texts.append(text)

    def kinds(self) -> list[str]:
        lines = [line for text in self.texts for line in text.splitlines()]
        return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


@pytest.fixture
def plane() -> Any:
    return FakePlane()


async def test_changes_are_told_at_most_twice_a_second_and_nothing_runs_while_nobody_watches(
    plane: Any, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    feed = EventFeed(plane)
    plane.world.revision = 50
    await trio.sleep(100)
    assert plane.looks == 0, "nobody watches"
    one, other = Watcher(feed), Watcher(feed)
    scopes = [await nursery.start(each.run) for each in (one, other)]
    for _ in range(100):
        plane.world.revision += 1
        await trio.sleep(0.1)
    assert one.kinds() == other.kinds()
    assert 18 <= one.kinds().count("revision") <= 20
    assert plane.looks <= 21, "one look is for all"
    for scope in scopes:
        scope.cancel()
    await trio.sleep(1)
    assert feed.clients == 0
    looks = plane.looks
    plane.world.revision += 1
    await trio.sleep(100)
    assert plane.looks == looks


async def test_events_say_what_has_changed(plane: Any, autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    feed = EventFeed(plane)
    watcher = Watcher(feed)
    await nursery.start(watcher.run)
    await trio.sleep(1)
    plane.names = ["web-2.shop"]
    await trio.sleep(1)
    plane.acks = 3
    await trio.sleep(1)
    plane.nacks = 1
    await trio.sleep(1)
    plane.stale = lambda: {"consul": "silent"}
    await trio.sleep(1)
    assert watcher.kinds() == ["proxies", "sync", "nack", "problems"]
    assert '"came": {"names": ["web-2.shop"], "more": 0}' in watcher.texts[1]
    assert '"stale": ["consul"]' in watcher.texts[-1]
    nursery.cancel_scope.cancel()


async def test_who_comes_back_gets_what_was_missed_or_is_told_that_too_much_was(
    plane: Any, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    feed = EventFeed(plane)
    first = Watcher(feed)
    await nursery.start(first.run)
    for _ in range(KEPT + 10):
        plane.world.revision += 1
        await trio.sleep(1)
    latest = int(first.texts[-1].splitlines()[0].removeprefix("id: "))
    assert latest > KEPT
    for last_seen, expected in ((latest - 2, ["revision"] * 2), (latest - KEPT - 1, ["reset"]), (9_999, ["reset"])):
        back = Watcher(feed, last_seen)
        scope = await nursery.start(back.run)
        await trio.sleep(1)
        assert back.kinds() == expected
        scope.cancel()
    nursery.cancel_scope.cancel()


async def test_the_only_client_that_comes_back_gets_what_happened_while_it_was_away(
    plane: Any, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    feed = EventFeed(plane)
    scope = await nursery.start(Watcher(feed).run)
    await trio.sleep(1)
    scope.cancel()
    await trio.sleep(2)
    plane.world.revision += 1
    for last_seen, expected in ((None, []), (0, ["revision"])):
        back = Watcher(feed, last_seen)
        scope = await nursery.start(back.run)
        await trio.sleep(1)
        assert back.kinds() == expected
        scope.cancel()
        await trio.sleep(2)
    nursery.cancel_scope.cancel()


async def test_a_stream_ends_after_a_while_and_when_the_plane_drains(plane: Any, autojump_clock: MockClock) -> None:
    feed = EventFeed(plane)
    watcher = Watcher(feed)
    begun = trio.current_time()
    await watcher.run()
    assert LIFETIME_SECONDS <= trio.current_time() - begun < LIFETIME_SECONDS + 1
    assert watcher.texts.count(": still here\n\n") >= LIFETIME_SECONDS / 16
    plane.progress.is_draining = True
    again = Watcher(feed)
    await again.run()
    assert again.kinds() == [] and feed.clients == 0


@pytest.mark.plane
async def test_events_come_over_http_and_a_client_that_goes_is_forgotten_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds: list[EventFeed] = []
    monkeypatch.setattr(events, "EventFeed", lambda state: feeds.append(EventFeed(state)) or feeds[-1])
    (tmp_path / "a.yaml").write_text(SERVICE)
    async with running_plane(tmp_path) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        url = f"http://{plane.addresses.http}/api/v1/events"
        host, _, port = plane.addresses.http.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(f"GET /api/v1/events HTTP/1.1\r\nHost: {plane.addresses.http}\r\n\r\n".encode())
            head = await _until(stream, "retry: 2000")
            assert "content-type: text/event-stream" in head and "cache-control: no-store" in head
            (tmp_path / "a.yaml").write_text(SERVICE.replace("10.0.0.1", "10.0.0.2"))
            assert "event: revision\n" in await _until(stream, 'data: {"revision": 2}\n')
            assert feeds[0].clients == 1
        await eventually(lambda: feeds[0].clients == 0, what="the client is forgotten before anything is written")
        feeds[0].clients = MAX_CLIENTS
        assert (await client.get(url)).status_code == 503
        feeds[0].clients = 0
        assert (await client.head(url)).status_code == 200
        assert [server.statistics().failures for server in plane.state.http_servers] == [0, 0]


async def _until(stream: trio.SocketStream, text: str) -> str:
    """All that comes until this has come."""
    received = ""
    while text not in received:
        received += (await stream.receive_some()).decode()
    return received
