"""Server-sent events: what changes, while somebody watches; and a beat, so that silence means a fault.

Nothing is hooked into the push path. While clients watch, the plane's counters are compared twice a second, once for
all clients; without clients, nothing runs. A client that comes back names the last event that it has seen, and gets
those that it has missed, or ``reset`` if they are forgotten, also after a restart of the plane.

A stream does not end: with each beat it is asked whether its client is still let in.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import attrs
import trio
from starlette.requests import Request
from starlette.responses import Response

from mesh_pilot.model.json import Json
from mesh_pilot.model.redaction import redacted
from mesh_pilot.ops.api.route import ApiError, ApiRoute, Found
from mesh_pilot.ops.api.visitors import STILL_LET_IN, Scope, sees_all
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.replicas.workers.questions import WORKER_HOST
from mesh_pilot.xds.ads.status import NackRecord

INTERVAL_SECONDS = 0.5
"""Between two comparisons: a client gets at most two batches of events a second."""

MAX_CLIENTS = 50
"""Clients that watch at the same time; a further one is told ``full``."""

FULL = 'retry: 60000\nevent: full\ndata: {"poll_seconds": 10}\n\n'
"""The answer to one client too many: it is to ask now and then instead, and to come back later."""

OVER = 'event: over\ndata: {"reason": "revoked"}\n\n'
"""The last event to a client that is not let in any more."""

KEPT = 200
"""Events that are kept for clients that come back."""

WITH_NAMES = ("proxies", "nack", "problems")
"""Events that name proxies and more of any namespace."""

NAMED = 10
"""Proxies named in an event; ``more`` has the number of the others."""

BEAT_SECONDS = 5.0
"""Between two beats, by which a client knows that the plane is alive, and we that the client is."""

CUT = 300
"""The most characters of a reason in an event."""


@attrs.frozen
class PlaneCounts:
    """The numbers of the plane that events are made of."""

    revision: int
    refused: int
    proxies: frozenset[str]
    """The names of those that are connected to this worker."""
    connected: int
    """The number of proxies that are connected to all workers."""
    nacks: int
    acks: int
    ready: bool
    stale: tuple[str, ...]


class EventFeed:
    """The events of a plane. State: the latest picture and events, the number of clients, when it last looked."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self._events: deque[tuple[int, str, str]] = deque(maxlen=KEPT)
        """Number, text, and text without names, the latest last."""
        self._picture: PlaneCounts | None = None
        self._taken_at = 0.0
        self._number = 0
        self._refused = (-1, 0)
        """The events that the reducer had taken, and the number of refused objects then."""
        self.clients = 0

    def __repr__(self) -> str:
        return f"<EventFeed of {self.clients} clients, at event {self._number}>"

    def look(self) -> None:
        """Compare the plane with the latest picture, unless that was done just now."""
        now = trio.current_time()
        if self._picture is not None and now - self._taken_at < INTERVAL_SECONDS * 0.9:
            return
        before, self._picture, self._taken_at = self._picture, self._take(), now
        if before is not None:
            for kind, data in self._changes(before, self._picture):
                self._number += 1
                text = json.dumps(redacted(data), ensure_ascii=True)
                head = f"id: {self._id}\nevent: {kind}\ndata: "
                bare = "{}" if kind in WITH_NAMES else text
                self._events.append((self._number, f"{head}{text}\n\n", f"{head}{bare}\n\n"))

    async def watch(
        self,
        send: Callable[[str], Awaitable[None]],
        last_seen: str = "",
        is_let_in: Callable[[], bool] = lambda: True,
        *,
        with_names: bool = True,
    ) -> None:
        """Send events to one client until the plane drains, it is not let in any more, or ``send`` raises; cancelled,
        nothing is left. ``last_seen``: the id of the last event that it has seen; empty for a new client.
        ``with_names``: the client may view all namespaces."""
        self.clients += 1
        try:
            self.look()
            number = self._number_of(last_seen)
            await send("retry: 2000\n\n" + self._beat())
            beat_at = trio.current_time()
            while not self._state.progress.is_draining:
                self.look()
                text = self._since(number, with_names)
                number = self._number
                if trio.current_time() - beat_at >= BEAT_SECONDS:
                    if not is_let_in():
                        await send(OVER)
                        return
                    beat_at = trio.current_time()
                    text += self._beat()
                if text:
                    await send(text)
                await trio.sleep(INTERVAL_SECONDS)
        finally:
            self.clients -= 1

    @property
    def _id(self) -> str:
        """The id of the latest event: a plane that was restarted counts from the beginning again."""
        return f"{self._state.boot}-{self._number}"

    def _number_of(self, last_seen: str) -> int:
        """The number of the event of an id; the latest for none, -1 for one of another run."""
        if not last_seen:
            return self._number
        boot, _, number = last_seen.partition("-")
        is_known = boot == self._state.boot and number.isascii() and number.isdigit() and len(number) < 10
        return int(number) if is_known else -1

    def _beat(self) -> str:
        data = {
            "at": datetime.now(UTC).isoformat(),
            "revision": self._state.world.revision,
            "boot": self._state.boot,
        }
        return f"event: beat\ndata: {json.dumps(data)}\n\n"

    def _since(self, number: int, with_names: bool) -> str:
        """The events after this one; ``reset`` if some of them are forgotten."""
        oldest = self._number - len(self._events)
        if not oldest <= number <= self._number:
            return f"id: {self._id}\nevent: reset\ndata: {{}}\n\n"
        return "".join(text if with_names else bare for known, text, bare in self._events if known > number)

    def _take(self) -> PlaneCounts:
        state = self._state
        status = state.xds.status
        taken = state.reducer.statistics().events
        if self._refused[0] != taken:
            self._refused = (taken, len(state.world.rejections()))
        return PlaneCounts(
            revision=state.world.revision,
            refused=self._refused[1],
            proxies=frozenset(c.proxy.name for c in status.proxies() if c.proxy is not None),
            connected=_connected(state),
            nacks=status.totals.rejects.total(),
            acks=status.totals.acks.total(),
            ready=not state.not_ready(),
            stale=tuple(state.stale()),
        )

    def _changes(self, before: PlaneCounts, after: PlaneCounts) -> Iterator[tuple[str, Json]]:
        if after.revision != before.revision:
            yield "revision", {"revision": after.revision}
        if after.proxies != before.proxies or after.connected != before.connected:
            yield (
                "proxies",
                {
                    "connected": after.connected,
                    "came": _named(after.proxies - before.proxies),
                    "left": _named(before.proxies - after.proxies),
                },
            )
        if after.nacks != before.nacks:
            recent = self._state.xds.status.recent_nacks()[-min(after.nacks - before.nacks, NAMED) :]
            yield "nack", {"nacks": after.nacks - before.nacks, "latest": [_nack(record) for record in recent]}
        elif after.acks != before.acks:
            yield "sync", {"acks": after.acks - before.acks}
        if (after.refused, after.ready, after.stale) != (before.refused, before.ready, before.stale):
            yield "problems", {"refused": after.refused, "ready": after.ready, "stale": list(after.stale)}


def _connected(state: PlaneState) -> int:
    """The proxies that are connected, to all workers."""
    here = sum(1 for each in state.xds.status.proxies() if each.proxy is not None)
    return here + sum(worker.connected for worker in state.other_states())


def _named(names: frozenset[str]) -> Json:
    return {"names": sorted(names)[:NAMED], "more": max(0, len(names) - NAMED)}


def _nack(record: NackRecord) -> Json:
    return {"proxy": record.nack.proxy.name[:CUT], "reason": record.nack.reason[:CUT]}


class EventStream(Response):
    """A response that lasts until its client goes or is not let in any more, or the plane drains."""

    media_type = "text/event-stream"

    def __init__(self, feed: EventFeed, last_seen: str, *, with_names: bool = True) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._feed = feed
        self._last_seen = last_seen
        self._with_names = with_names

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def send_text(text: str) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        async def until_the_client_goes() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_the_client_goes)
            is_let_in = scope.get(STILL_LET_IN, lambda: True)
            await self._feed.watch(send_text, self._last_seen, is_let_in, with_names=self._with_names)
            await send({"type": "http.response.body", "body": b""})
            nursery.cancel_scope.cancel()


def routes(state: PlaneState) -> list[ApiRoute]:
    feed = EventFeed(state)

    async def events(request: Request) -> Found:
        if request.headers.get("host") == WORKER_HOST:
            raise ApiError(400, "events are those of all workers: leave ?worker out")
        if feed.clients >= MAX_CLIENTS:
            return Response(FULL, media_type=EventStream.media_type, headers={"cache-control": "no-store"})
        if request.method == "HEAD":
            return Response(media_type=EventStream.media_type)
        return EventStream(feed, request.headers.get("last-event-id", ""), with_names=sees_all(request))

    return [
        ApiRoute(
            "/events",
            "Server-sent events: `revision`, `proxies`, `nack`, `sync` and `problems`, at most two batches a second; "
            "`beat` each five seconds; `reset` if events were missed, `full` and `over` at the end.",
            events,
            scope=Scope.ANY,
        )
    ]
