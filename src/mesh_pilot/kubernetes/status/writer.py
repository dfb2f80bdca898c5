"""The writer of status: it compares what is wanted with what there is, and writes what differs, while it leads."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import Access, ApiClient, ApiResource, ApiServerError, KubernetesError
from mesh_pilot.kubernetes.status.live import Json, LiveObject, LiveObjects
from mesh_pilot.kubernetes.status.merging import difference, new_status
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.replicas.election.base import Term

log = structlog.get_logger(scope="status")

WORKERS = 4
"""Writes that are under way at once."""

GATHERING_SECONDS = 0.2
"""The wait for more to be wanted of an object, before it is written."""

LONGEST_PAUSE_SECONDS = 300.0
"""The longest pause between two writes of the same to one object, if somebody undoes it each time."""

RIVAL_OBJECTS, RIVAL_SECONDS = 10, 60.0
"""So many objects whose status was undone within that time are the work of another control plane, not of a person."""

LONGEST_REST_SECONDS = 3600.0
"""The longest that a writer gives way to another at a time; the first is as long as `LONGEST_PAUSE_SECONDS`."""

MANAGER = "mesh-pilot"

NOT_FOUND = 404

_NO_RIGHT = "cannot patch resource"
"""The part of an API server's words for what no role allows; admission refuses single objects, with 403 as well."""


@attrs.frozen
class StatusWriterStatistics:
    wanted: int
    """Objects of which a status is wanted."""
    waiting: int
    """Objects to look at."""
    written: int
    conflicts: int
    """Writes that came too late: the object had changed."""
    failed: int
    trouble: str
    """The last reason why something can't be written; empty if there is none."""


@attrs.define
class _Pace:
    """The number of times that the same was written to an object."""

    wanted: Mapping[str, Json]
    times: int
    not_before: float


class StatusWriter:
    """Writes the wanted status of objects.

    State: `_wanted`, by object and part of the status; `_queue`, objects to look at, each with the time from which on;
    `_paces`, of objects that were written; `_unwritable`, resources that can't be written, and until when; `_undone`,
    objects whose status was undone, with the times; `_rests_until`, while another control plane writes, and how often
    that was so, `_rests`.
    """

    def __init__(
        self,
        access: Access,
        live: LiveObjects,
        *,
        per_second: float = 50.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        uniform: Callable[[float, float], float] = random.uniform,
        client: Callable[[Access], ApiClient] = ApiClient,
    ) -> None:
        self._access = access
        self._live = live
        self._pause = WORKERS / per_second
        self._now = now
        self._uniform = uniform
        self._client = client
        self._wanted: dict[ConfigKey, dict[str, Json]] = {}
        self._queue: list[tuple[float, ConfigKey]] = []
        self._queued: dict[ConfigKey, float] = {}
        self._paces: dict[ConfigKey, _Pace] = {}
        self._unwritable: dict[ApiResource, float] = {}
        self._undone: dict[ConfigKey, float] = {}
        self._rests_until = 0.0
        self._rests = 0
        self._is_leading = False
        self._news = trio.Event()
        self._written = self._conflicts = self._failed = 0
        self._trouble = ""
        live.follow(self._changed)

    def __repr__(self) -> str:
        return f"<StatusWriter {len(self._wanted)} wanted, {len(self._queued)} to look at>"

    def statistics(self) -> StatusWriterStatistics:
        return StatusWriterStatistics(
            len(self._wanted), len(self._queued), self._written, self._conflicts, self._failed, self._trouble
        )

    def want(self, key: ConfigKey, part: str, status: Json | None) -> None:
        """Have an object say this in a part of its status; None: that part has nothing to say."""
        parts = self._wanted.get(key, {})
        if parts.get(part) == status:
            return
        if status is None:
            parts.pop(part, None)
        else:
            self._wanted.setdefault(key, parts)[part] = status
        if not parts:
            self._wanted.pop(key, None)
        self._look(key, GATHERING_SECONDS)

    async def run(self, term: Term) -> None:
        """Write, while this replica leads; afterwards nothing is wanted.

        Cancelled, at most WORKERS writes may or may not have happened.
        """
        self._queue, self._queued, self._is_leading = [], {}, True
        self._unwritable.clear()
        try:
            for key in self._wanted:
                self._look(key, 0.0)
            async with self._client(self._access) as client, trio.open_nursery() as nursery:
                for _ in range(WORKERS):
                    nursery.start_soon(self._work, client, term)
        finally:
            self._is_leading = False
            self._wanted.clear()
            self._paces.clear()

    # -- the queue

    def _changed(self, key: ConfigKey) -> None:
        """An object has changed at the server."""
        if key not in self._live:
            self._paces.pop(key, None)
        elif key in self._wanted:
            self._look(key, GATHERING_SECONDS)

    def _look(self, key: ConfigKey, after_seconds: float) -> None:
        """Look at an object after a while, unless that is to be done earlier."""
        if not self._is_leading:
            return
        due = trio.current_time() + after_seconds
        if key in self._queued and self._queued[key] <= due:
            return
        self._queued[key] = due
        heapq.heappush(self._queue, (due, key))
        self._news.set()

    async def _next(self) -> ConfigKey:
        while True:
            while self._queue and self._queued.get(self._queue[0][1]) != self._queue[0][0]:
                heapq.heappop(self._queue)
            wait = self._queue[0][0] - trio.current_time() if self._queue else float("inf")
            if wait <= 0:
                _, key = heapq.heappop(self._queue)
                del self._queued[key]
                return key
            if self._news.is_set():
                self._news = trio.Event()
            with trio.move_on_after(wait):
                await self._news.wait()

    # -- writing

    async def _work(self, client: ApiClient, term: Term) -> None:
        backoff = Backoff()
        while True:
            key = await self._next()
            try:
                if not await self._settle(client, term, key):
                    await trio.lowlevel.checkpoint()
                    continue
            except KubernetesError as error:
                if isinstance(error, ApiServerError) and error.status == NOT_FOUND:
                    continue  # it is gone
                self._fail(str(error))
                asked = error.retry_after_seconds if isinstance(error, ApiServerError) else 0.0
                wait = max(backoff.next_seconds(), min(asked, LONGEST_PAUSE_SECONDS))
                self._look(key, wait)  # not sooner by another worker
                await trio.sleep(wait)
                continue
            backoff.reset()
            await trio.sleep(self._pause)

    async def _settle(self, client: ApiClient, term: Term, key: ConfigKey) -> bool:
        """Write the status of an object, if it is not as wanted. True if a request was made. Raises KubernetesError."""
        live, parts = self._live.get(key), dict(self._wanted.get(key, {}))
        if live is None or not parts:
            return False
        status = new_status(key, parts, live, self._now())
        if status == live.status:
            return False
        pace = self._paces.get(key)
        if pace is not None and pace.wanted == parts and trio.current_time() < pace.not_before:
            self._look(key, pace.not_before - trio.current_time())
            return False
        resting = max(self._unwritable.get(live.resource, 0.0), self._rests_until)
        if (wait := resting - trio.current_time()) > 0:
            self._look(key, wait)
            return False
        term.check()
        metadata = {"resourceVersion": live.resource_version} if live.resource_version else {}
        try:
            found = await client.patch(
                live.resource,
                live.name,
                {"metadata": metadata, "status": difference(live.status, status)},
                live.namespace,
                subresource="status",
                field_manager=MANAGER,
                version=live.version,
            )
        except ApiServerError as error:
            await self._refused(client, key, live, error)
            return True
        if self._live.get(key) is live:
            self._live.take(key, found)
        self._unwritable.pop(live.resource, None)
        self._written += 1
        self._remember(key, parts)
        return True

    async def _refused(self, client: ApiClient, key: ConfigKey, live: LiveObject, error: ApiServerError) -> None:
        """The server did not take a status. Raises KubernetesError for what may go on its own."""
        path = live.resource.path(live.version, live.namespace, live.name)
        match error.status:
            case 409:
                self._conflicts += 1
                self._live.take(key, await client.get(path))
                self._look(key, 0.0)
            case 404:  # the object is gone, or another of its name has come, or objects of its kind have no status
                self._live.take(key, await client.get(path))
                if self._live.get(key) == live:
                    self._give_up(live, error)
                self._look(key, 0.0)
            case 403 if _NO_RIGHT in str(error):
                self._give_up(live, error)
                self._look(key, 0.0)
            case 422 | 400 | 403:
                self._fail(str(error))
                self._remember(key, self._wanted.get(key, {}), LONGEST_PAUSE_SECONDS)
                log.warning("status is refused", object="/".join(key), why=str(error))
            case _:
                raise error

    def _give_up(self, live: LiveObject, error: ApiServerError) -> None:
        self._fail(str(error))
        if live.resource not in self._unwritable:
            more = f"tried again every {LONGEST_PAUSE_SECONDS / 60:.0f} minutes"
            log.warning("status of a kind cannot be written", kind=live.resource.kind, why=str(error), effect=more)
        self._unwritable[live.resource] = trio.current_time() + LONGEST_PAUSE_SECONDS

    def _remember(self, key: ConfigKey, parts: Mapping[str, Json], pause: float | None = None) -> None:
        """It was written; the same again must wait, longer each time."""
        pace = self._paces.get(key)
        times = pace.times + 1 if pace is not None and pace.wanted == parts else 0
        seconds = min(LONGEST_PAUSE_SECONDS, 2.0**times) if pause is None else pause
        self._paces[key] = _Pace(dict(parts), times, trio.current_time() + seconds)
        if times:
            self._note_undone(key)
        if times == 5:
            log.warning("somebody else writes the same status; it is written less and less often", object="/".join(key))

    def _note_undone(self, key: ConfigKey) -> None:
        """Give way to another control plane: two that write in turn would do so forever, and one is enough."""
        now = trio.current_time()
        self._undone = {other: at for other, at in self._undone.items() if now - at < RIVAL_SECONDS} | {key: now}
        if len(self._undone) < RIVAL_OBJECTS:
            return
        self._undone.clear()
        # At random, so that of two that give way at once one is the first to write again.
        seconds = min(LONGEST_PAUSE_SECONDS * 2.0**self._rests, LONGEST_REST_SECONDS) * self._uniform(0.5, 1.0)
        self._rests += 1
        self._rests_until = now + seconds
        self._trouble = "another control plane writes the same status"
        log.warning(
            "another control plane writes the same status; this one gives way",
            seconds=round(seconds),
            advice="have one of them write: --leader-election for both, or no --status- flags for one",
        )

    def _fail(self, reason: str) -> None:
        self._failed += 1
        self._trouble = reason
