"""What every source must keep to, as a suite to inherit from.

A source's tests give a fixture ``feed``, a foreign feed in the test's hand (see `Feed`), and get the suite:

    class TestFiles(SourceConformance):
        @pytest.fixture
        def feed(self, tmp_path: Path) -> Feed:
            return FilesFeed(tmp_path)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from mesh_pilot.model.events import Accepted, Delete, Event, Item, Rejected, Replace, Synced, Upsert, item_key
from mesh_pilot.sources.base.contract import Source

Key = tuple[str, ...]


class Feed(Protocol):
    """A feed of named objects, each with a version."""

    @property
    def source(self) -> Source:
        """The source that reads this feed; always the same object."""

    async def put(self, name: str, version: int) -> None:
        """A good object is there, or is changed."""

    async def put_bad(self, name: str) -> None:
        """An object is there, or is changed, that can't be accepted."""

    async def remove(self, name: str) -> None:
        """An object is gone."""

    async def break_off(self) -> None:
        """The feed as a whole can't be read any more."""

    async def restore(self) -> None:
        """It can be read again, and holds what it held, and what was put meanwhile."""

    def key(self, name: str) -> Key:
        """The item key of an object; of a service, not that of its endpoints."""

    def version(self, item: Item) -> int:
        """The version of an object as the source read it."""


@attrs.define
class Picture:
    """What someone who follows the events, by their contract, believes."""

    items: dict[Key, Item] = attrs.field(factory=dict)
    rejected: dict[object, Rejected] = attrs.field(factory=dict)
    synced: int = 0
    """How often Synced came."""

    def apply(self, event: Event) -> None:
        match event:
            case Upsert(_, item):
                self.items[item_key(item)] = item
                self.rejected.pop(item_key(item), None)
            case Delete(_, key):
                del self.items[key]
            case Replace(_, collection, items):
                kept = {key: item for key, item in self.items.items() if key[: len(collection)] != collection}
                self.items = kept | {item_key(item): item for item in items}
                self.rejected = {
                    where: rejected
                    for where, rejected in self.rejected.items()
                    if collection and not (isinstance(where, tuple) and where[: len(collection)] == collection)
                }
            case Rejected():
                self.rejected[event.key or event.origin.location] = event
            case Accepted(_, location):
                self.rejected = {key: r for key, r in self.rejected.items() if r.origin.location != location}
            case Synced():
                self.synced += 1


@attrs.define
class Follower:
    """A running source, and the picture that its events give."""

    channel: trio.MemoryReceiveChannel[Event]
    picture: Picture = attrs.field(factory=Picture)
    events: list[Event] = attrs.field(factory=list)
    """All that came, oldest first."""

    async def until(self, is_so: Callable[[Picture], bool]) -> None:
        """Take events until something is so."""
        with trio.fail_after(60):
            while not is_so(self.picture):
                event = await self.channel.receive()
                self.events.append(event)
                self.picture.apply(event)

    async def until_synced(self) -> None:
        await self.until(lambda picture: picture.synced > 0)

    def take_events(self) -> list[Event]:
        """What came since the last time this was asked."""
        taken, self.events = self.events, []
        return taken


@asynccontextmanager
async def running(source: Source, *, room: int = 1) -> AsyncIterator[Follower]:
    """A source at work, until the end of the block. `room`: events that may wait for the test."""
    send, receive = trio.open_memory_channel[Event](room)
    async with trio.open_nursery() as nursery, send, receive:
        with trio.fail_after(60):
            await nursery.start(source.run, send)
        yield Follower(receive)
        nursery.cancel_scope.cancel()


class SourceConformance:
    """The suite."""

    async def test_the_first_picture_is_whole_before_synced(self, feed: Feed) -> None:
        await feed.put("one", 1)
        await feed.put("two", 2)
        async with running(feed.source) as follower:
            await follower.until_synced()
            assert self._versions(feed, follower) == {feed.key("one"): 1, feed.key("two"): 2}
            assert isinstance(follower.events[-1], Synced)

    async def test_an_empty_feed_syncs(self, feed: Feed) -> None:
        async with running(feed.source) as follower:
            await follower.until_synced()
            assert follower.picture.items == {}

    async def test_what_comes_changes_and_goes_later_is_told(self, feed: Feed) -> None:
        await feed.put("one", 1)
        async with running(feed.source) as follower:
            await follower.until_synced()
            await feed.put("two", 1)
            await follower.until(lambda picture: feed.key("two") in picture.items)
            await feed.put("one", 2)
            await follower.until(lambda picture: feed.version(picture.items[feed.key("one")]) == 2)
            await feed.remove("two")
            await follower.until(lambda picture: feed.key("two") not in picture.items)
            assert self._versions(feed, follower) == {feed.key("one"): 2}
            assert follower.picture.synced == 1

    async def test_events_carry_the_name_of_the_source(self, feed: Feed) -> None:
        await feed.put("one", 1)
        await feed.put_bad("two")
        async with running(feed.source) as follower:
            await follower.until_synced()
            await feed.put("two", 1)
            await follower.until(lambda picture: feed.key("two") in picture.items and not picture.rejected)
            assert {event.source for event in follower.events} == {feed.source.name}

    async def test_a_bad_object_does_not_stop_the_others(self, feed: Feed) -> None:
        await feed.put("one", 1)
        await feed.put_bad("two")
        await feed.put("three", 1)
        async with running(feed.source) as follower:
            await follower.until(lambda picture: picture.synced > 0 and bool(picture.rejected))
            assert self._versions(feed, follower) == {feed.key("one"): 1, feed.key("three"): 1}
            (rejected,) = follower.picture.rejected.values()
            assert rejected.problems
            assert rejected.problems[0].reason
            assert rejected.origin.source == feed.source.name
            assert rejected.origin.location

    async def test_an_object_that_goes_bad_stays_in_force_until_it_is_good_again(self, feed: Feed) -> None:
        await feed.put("one", 1)
        await feed.put("two", 1)
        async with running(feed.source) as follower:
            await follower.until_synced()
            await feed.put_bad("one")
            await follower.until(lambda picture: bool(picture.rejected))
            await feed.put("two", 2)
            await follower.until(lambda picture: feed.version(picture.items[feed.key("two")]) == 2)
            assert feed.version(follower.picture.items[feed.key("one")]) == 1
            await feed.put("one", 3)
            await follower.until(lambda picture: not picture.rejected)
            assert feed.version(follower.picture.items[feed.key("one")]) == 3

    async def test_a_bad_object_that_is_removed_is_gone_and_its_rejection_over(self, feed: Feed) -> None:
        await feed.put("one", 1)
        async with running(feed.source) as follower:
            await follower.until_synced()
            await feed.put_bad("one")
            await follower.until(lambda picture: bool(picture.rejected))
            await feed.remove("one")
            await follower.until(lambda picture: not picture.rejected)
            assert follower.picture.items == {}

    async def test_an_outage_deletes_nothing_and_what_changed_meanwhile_comes_after_it(self, feed: Feed) -> None:
        await feed.put("one", 1)
        await feed.put("two", 1)
        async with running(feed.source) as follower:
            await follower.until_synced()
            await feed.break_off()
            await feed.put("one", 2)
            await feed.put("three", 1)
            await feed.restore()
            await follower.until(lambda picture: feed.key("three") in picture.items)
            await follower.until(lambda picture: feed.version(picture.items[feed.key("one")]) == 2)
            assert not any(isinstance(event, Delete) for event in follower.events)
            assert feed.version(follower.picture.items[feed.key("two")]) == 1

    async def test_a_feed_that_is_down_at_the_start_is_synced_once_it_is_there(self, feed: Feed) -> None:
        await feed.put("one", 1)
        await feed.break_off()
        async with running(feed.source) as follower:
            assert feed.source.statistics().waiting_for
            assert not feed.source.statistics().synced
            await feed.restore()
            await follower.until_synced()
            assert self._versions(feed, follower) == {feed.key("one"): 1}
            assert feed.source.statistics().waiting_for == ""

    async def test_a_source_that_is_run_again_sends_its_picture_anew(self, feed: Feed) -> None:
        await feed.put("one", 1)
        await feed.put("two", 1)
        async with running(feed.source) as follower:
            await follower.until_synced()
        await feed.put("one", 2)
        await feed.remove("two")
        await feed.put("three", 1)
        async with running(feed.source) as follower:
            expected = {feed.key("one"): 2, feed.key("three"): 1}
            await follower.until(lambda picture: picture.synced > 0 and self._versions(feed, follower) == expected)

    async def test_a_source_that_was_stopped_while_it_sent_resumes(self, feed: Feed) -> None:
        await feed.put("one", 1)
        send, receive = trio.open_memory_channel[Event](0)
        async with trio.open_nursery() as nursery, send, receive:
            await nursery.start(feed.source.run, send)
            with trio.fail_after(60):
                await receive.receive()
            nursery.cancel_scope.cancel()
        async with running(feed.source) as follower:
            await follower.until_synced()
            assert self._versions(feed, follower) == {feed.key("one"): 1}

    async def test_statistics_say_what_it_holds(self, feed: Feed) -> None:
        await feed.put("one", 1)
        await feed.put_bad("two")
        async with running(feed.source) as follower:
            await follower.until(lambda picture: picture.synced > 0 and bool(picture.rejected))
            statistics = feed.source.statistics()
            assert (statistics.items, statistics.rejected, statistics.synced) == (len(follower.picture.items), 1, True)

    def _versions(self, feed: Feed, follower: Follower) -> dict[Key, int]:
        """The version of each object; the endpoints of a service come with it."""
        return {key: feed.version(item) for key, item in follower.picture.items.items() if key[0] != "endpoints"}


class RereadingSourceConformance(SourceConformance):
    """The suite for a source that reads everything again in each run."""

    async def test_a_rejection_that_ends_between_two_runs_is_over(self, feed: Feed) -> None:
        await feed.put("one", 1)
        await feed.put_bad("two")
        async with running(feed.source) as first:
            await first.until(lambda picture: picture.synced > 0 and bool(picture.rejected))
        await feed.remove("two")
        async with running(feed.source) as follower:
            follower.picture = attrs.evolve(first.picture, synced=0)
            await follower.until(lambda picture: picture.synced > 0 and not picture.rejected)
            assert self._versions(feed, follower) == {feed.key("one"): 1}
