"""Server-sent events: what is told, how often, to how many, and what is left when a client goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.ops.api import events
from mesh_pilot.ops.api.events import BEAT_SECONDS, KEPT, MAX_CLIENTS, EventFeed
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
            boot="b00",
            not_ready=dict,
            stale=dict,
        )

    def rejections(self) -> tuple[object, ...]:
        self.looks += 1
        return ()


class Watcher:
    """A client of a feed."""

    def __init__(self, feed: EventFeed, last_seen: str = "", is_let_in: Callable[[], bool] = lambda: True) -> None:
        self.texts: list[str] = []
        self._is_let_in = is_let_in
        self._feed = feed
        self._last_seen = last_seen

    async def run(self, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await self._feed.watch(self._take, self._last_seen, self._is_let_in)

    async def _take(self, text: str) -> None:
        self.texts.append(text)

    def kinds(self) -> list[str]:
        lines = [line for text in self.texts for line in text.splitlines()]
        kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        return [kind for kind in kinds if kind != "beat"]


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
    told = [text for text in watcher.texts if "event: beat" not in text]
    assert '"came": {"names": ["web-2.shop"], "more": 0}' in told[0]
    assert '"stale": ["consul"]' in told[-1]
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
    ids = [line.removeprefix("id: b00-") for text in first.texts for line in text.splitlines() if "id: " in line]
    latest = int(ids[-1])
    assert latest > KEPT
    for last_seen, expected in (
        (f"b00-{latest - 2}", ["revision"] * 2),
        (f"b00-{latest - KEPT - 1}", ["reset"]),
        ("b00-9999", ["reset"]),
        (f"0ld-{latest}", ["reset"]),
        (str(latest), ["reset"]),
    ):
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
    for last_seen, expected in (("", []), ("b00-0", ["revision"])):
        back = Watcher(feed, last_seen)
        scope = await nursery.start(back.run)
        await trio.sleep(1)
        assert back.kinds() == expected
        scope.cancel()
        await trio.sleep(2)
    nursery.cancel_scope.cancel()


async def test_a_beat_comes_at_once_and_each_few_seconds_until_the_plane_drains(
    plane: Any, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    feed = EventFeed(plane)
    watcher = Watcher(feed)
    await nursery.start(watcher.run)
    await trio.sleep(3600)
    beats = [text for text in watcher.texts if "event: beat" in text]
    assert 3600 / BEAT_SECONDS - 70 <= len(beats) <= 3600 / BEAT_SECONDS + 1
    assert '"revision": 1, "boot": "b00"' in beats[0] and beats[0] == watcher.texts[0]
    plane.progress.is_draining = True
    await trio.sleep(1)
    assert (watcher.kinds(), feed.clients) == ([], 0)


async def test_who_is_not_let_in_any_more_is_told_so_within_seconds(plane: Any, autojump_clock: MockClock) -> None:
    feed = EventFeed(plane)
    begun = trio.current_time()
    watcher = Watcher(feed, is_let_in=lambda: trio.current_time() - begun < 60)
    await watcher.run()
    assert 60 <= trio.current_time() - begun <= 60 + 2 * BEAT_SECONDS
    assert (watcher.kinds(), feed.clients) == (["over"], 0)


@pytest.mark.plane
async def test_events_come_over_http_and_a_client_that_goes_is_forgotten_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds: list[EventFeed] = []  # the gate has one of its own, made before that of the pages
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
            assert feeds[-1].clients == 1
        await eventually(lambda: feeds[-1].clients == 0, what="the client is forgotten before anything is written")
        feeds[-1].clients = MAX_CLIENTS
        reply = await client.get(url)
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert "event: full\n" in reply.text and "retry: 60000\n" in reply.text
        feeds[-1].clients = 0
        assert (await client.head(url)).status_code == 200
        assert [server.statistics().failures for server in plane.state.http_servers] == [0, 0]


async def _until(stream: trio.SocketStream, text: str) -> str:
    """All that comes until this has come."""
    received = ""
    while text not in received:
        received += (await stream.receive_some()).decode()
    return received
