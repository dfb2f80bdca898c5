"""Tells the membership which workloads have streams, writes what it decides, and is the source of the objects.

A workload's record follows the streams of its proxy. Its agent's own stream, which is there before Envoy is and after
Envoy has died, keeps no entry alive: it only reports.

What is decided and what is done are apart: `Membership` has every rule and neither a clock nor a store, so that each
order of streams, replicas and writes can be tested; this module carries its changes out, one at a time. A change is
asked for again right before it is written, as the workload may have come back while an earlier write took its time.
Writes are conditional on what was read, and no lock is taken: replicas meet only where a workload has moved, and then
the later one must win, whoever leads. An object is served as soon as its workload is connected here, before the record
is written: a store that is away costs other replicas the news, not the workload its traffic.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.identity.trust.callers import TrustDomainsNow
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, EventSender, Item, Replace, Synced, Upsert, item_key
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.replicas.election.base import Election, LockError, Term
from mesh_pilot.replicas.registration.admission import AdmissionRules, admitted, reported_entries
from mesh_pilot.replicas.registration.awaited import AwaitedReports
from mesh_pilot.replicas.registration.membership import Change, Kept, Membership, Replicas
from mesh_pilot.replicas.registration.records import Record, RegisteredWorkload, items_of, records_of
from mesh_pilot.replicas.registration.stores import MemoryStore, RecordStore
from mesh_pilot.world import World
from mesh_pilot.world.service_entries import AUTO_REGISTRATION
from mesh_pilot.xds.ads.messages import StreamError
from mesh_pilot.xds.ads.observers import WorkloadObserver

log = structlog.get_logger(scope="registration")

LOOK_SECONDS = 2.0
"""The interval at which the other replicas are looked at, where there may be any."""

MAX_REASON = 500
"""Characters of a report's reason that are kept."""

TASK = "clean-up of auto-registered entries"


@attrs.frozen
class WorkloadJoined:
    """A stream of a workload has begun."""

    stream: int
    workload: RegisteredWorkload | None
    """The workload to register; None if it does not ask for that."""
    is_agent: bool
    is_awaited: bool = False
    """True if it becomes an endpoint with its first good report."""


@attrs.frozen
class HealthReported:
    """A report on a stream."""

    stream: int
    entries: tuple[ConfigKey, ...]
    """The WorkloadEntries of the workload that somebody has written."""
    identity: str
    error: str | None
    """Why the application is not healthy; None: it is."""


@attrs.frozen
class WorkloadLeft:
    """A stream is over."""

    stream: int


@attrs.frozen
class WorkloadRefused:
    """A stream was refused, as its workload must not be registered."""

    stream: int = 0


Message = WorkloadJoined | HealthReported | WorkloadLeft | WorkloadRefused


@attrs.frozen
class RegistrarStatistics:
    items: int
    """Objects in force."""
    entries: int
    """Auto-registered WorkloadEntries."""
    unhealthy: int
    """Workloads whose last report was not healthy."""
    registered: int
    """Entries made since the start."""
    updated: int
    """Entries that were taken over, or changed."""
    unregistered: int
    """Workloads that have left."""
    deleted: int
    """Entries deleted."""
    errors: int
    """Registrations refused, and writes that failed."""
    reports: Mapping[bool, int]
    """Reports of health, by their content."""
    place: str
    """Where the records are."""
    rejected: int = 0
    synced: bool = True
    waiting_for: str = ""


class WorkloadAdmission(WorkloadObserver):
    """Observes streams: decides who is admitted, and passes on what happens.

    State: the proxies of streams, the workloads that they register, and the streams that something was told of.
    """

    def __init__(
        self, world: World, domains: TrustDomainsNow, rules: AdmissionRules, tell: Callable[[Message], None]
    ) -> None:
        self._world = world
        self._domains = domains
        self._rules = rules
        self._tell = tell
        self._proxies: dict[int, tuple[Proxy, str]] = {}
        """With the address that each connects from."""
        self._told: set[int] = set()
        self._joined: dict[int, RegisteredWorkload] = {}
        self._entries: dict[tuple[str, str], Counter[ConfigKey]] = {}
        """The streams of each entry, by the identity and address of its workload."""

    def __repr__(self) -> str:
        return f"<WorkloadAdmission {len(self._proxies)} streams>"

    def joining(self, client: int, proxy: Proxy, peer: str) -> None:
        """Raises StreamError for a workload that asks for a registration it must not have."""
        try:
            workload = admitted(proxy, peer, self._world, self._domains(), self._rules, self._entries_of)
        except StreamError:
            self._tell(WorkloadRefused())
            raise
        self._proxies[client] = proxy, peer
        if workload is not None:
            self._joined[client] = workload
            self._entries.setdefault((workload.identity, workload.address), Counter())[workload.key] += 1
            self._say(client, WorkloadJoined(client, workload, bool(proxy.agent), self._is_awaited(workload)))

    def _is_awaited(self, workload: RegisteredWorkload) -> bool:
        group = self._world.config.peek(ConfigKey("WorkloadGroup", workload.key.namespace, workload.group))
        return workload.is_checked or (group is not None and group.spec.probe is not None)

    def _entries_of(self, identity: str, address: str) -> Collection[ConfigKey]:
        return self._entries.get((identity, address), Counter()).keys()

    def reported(self, client: int, error: str | None) -> None:
        found = self._proxies.get(client)
        if found is not None:
            proxy, peer = found
            entries = tuple(reported_entries(proxy, peer, self._world, self._domains(), self._rules))
            shortened = error[:MAX_REASON] if error is not None else None
            self._say(client, HealthReported(client, entries, proxy.identity, shortened))

    def left(self, client: int) -> None:
        self._proxies.pop(client, None)
        if (workload := self._joined.pop(client, None)) is not None:
            owner = workload.identity, workload.address
            streams = self._entries[owner]
            streams[workload.key] -= 1
            if not streams[workload.key]:
                del streams[workload.key]
            if not streams:
                del self._entries[owner]
        if client in self._told:
            self._told.discard(client)
            self._tell(WorkloadLeft(client))

    def _say(self, client: int, message: Message) -> None:
        self._told.add(client)
        self._tell(message)


class Registrar:
    """A source: the auto-registered entries and the health of workloads. ``tell`` takes what happens.

    State: the membership, the objects that were sent, which streams report of which workloads, counters.
    """

    name = AUTO_REGISTRATION

    def __init__(
        self,
        election: Election,
        *,
        grace_seconds: float,
        store: RecordStore | None = None,
    ) -> None:
        """``store``: of all replicas; None: the records are this process's, and outlive it in its state."""
        self._election = election
        self._replica = election.statistics().replica.id
        self._members = Membership(self._replica, grace_seconds=grace_seconds)
        self._store = store
        self._seeds: tuple[Record, ...] = ()
        self.place = store.place if store is not None else "proxies"
        self._items: dict[ConfigKey, dict[tuple[str, ...], Item]] = {}
        """The objects sent, by workload."""
        self._keys: dict[Hashable, dict[ConfigKey, None]] = {}
        """Workloads by the stream that reports of them."""
        self._reporters: dict[ConfigKey, dict[Hashable, None]] = {}
        self._term: Term | None = None
        self._news = trio.Event()
        self._counts: Counter[str] = Counter()
        self._reports: Counter[bool] = Counter()
        self._is_failing = False
        self._is_retiring = False
        self._lines = LogLimiter()
        self._awaited = AwaitedReports()
        election.while_leading(TASK, self._clean_up)

    def __repr__(self) -> str:
        return f"<Registrar {self._members!r}>"

    def statistics(self) -> RegistrarStatistics:
        records = self.records()
        counts = self._counts
        return RegistrarStatistics(
            items=sum(map(len, self._items.values())),
            entries=sum(1 for record in records if record.workload.group),
            unhealthy=sum(1 for record in records if record.is_healthy is False),
            registered=counts["registered"],
            updated=counts["updated"],
            unregistered=counts["unregistered"],
            deleted=counts["deleted"],
            errors=counts["errors"],
            reports=dict(self._reports),
            place=self.place,
        )

    def records(self) -> tuple[Record, ...]:
        """The record of each workload, by name."""
        found = map(self._members.in_force, sorted(self._members.known()))
        return tuple(record for record in found if record is not None)

    def shown(self) -> list[dict[str, str | bool | None]]:
        """The records for a page."""
        return [
            {
                "namespace": record.key.namespace,
                "name": record.key.name,
                "group": record.workload.group,
                "address": record.workload.address,
                "identity": record.workload.identity,
                "replica": record.controller,
                "connected": record.is_connected,
                "healthy": record.is_healthy,
                "reason": record.reason,
            }
            for record in self.records()
        ]

    def seed(self, items: Sequence[Item]) -> None:
        """The objects of an earlier run: their workloads have a while to come back."""
        self._seeds = tuple(records_of({item_key(item): item for item in items}, ""))

    # -- what happens

    def tell(self, message: Message, worker: int = 0) -> None:
        """Something has happened on a stream of a worker."""
        stream = (worker, message.stream)
        match message:
            case WorkloadJoined(workload=workload) if workload is not None:
                self._reports_of(stream, workload.key)
                if not message.is_agent:
                    self._join(stream, workload)
                    if message.is_awaited:
                        self._awaited.joined(workload)
            case HealthReported():
                self._report(stream, message)
            case WorkloadLeft() if not self._is_retiring:
                self._leave(stream)
            case WorkloadRefused():
                self._counts["errors"] += 1
        self._news.set()

    def retire(self) -> None:
        """This replica is about to end its streams: from here on their ends say nothing of workloads."""
        self._is_retiring = True

    def worker_ended(self, worker: int) -> None:
        """All streams of a worker are over."""
        if self._is_retiring:
            return
        for stream in [stream for stream in self._keys if isinstance(stream, tuple) and stream[0] == worker]:
            self._leave(stream)
        self._news.set()

    def _join(self, stream: Hashable, workload: RegisteredWorkload) -> None:
        if self._members.is_taken(workload):
            self._counts["errors"] += 1
            event = "workload is not registered until the entry of another identity is gone"
            if self._lines.admit((event, workload.key), trio.current_time()) is not None:
                log.warning(event, entry=str(workload.key), identity=workload.identity)
        self._members.connected(stream, workload, time.time())

    def _reports_of(self, stream: Hashable, key: ConfigKey) -> None:
        self._keys.setdefault(stream, {})[key] = None
        self._reporters.setdefault(key, {})[stream] = None

    def _report(self, stream: Hashable, message: HealthReported) -> None:
        self._reports[message.error is None] += 1
        for key in message.entries:
            if key not in self._keys.get(stream, {}):
                self._reports_of(stream, key)
                self._members.connected(
                    (stream, key), RegisteredWorkload(key=key, identity=message.identity), time.time()
                )
        for key in self._keys.get(stream, {}):
            self._awaited.done(key)
            self._members.reported(key, is_healthy=message.error is None, reason=message.error or "")

    def _leave(self, stream: Hashable) -> None:
        self._members.disconnected(stream)
        for key in self._keys.pop(stream, {}):
            self._members.disconnected((stream, key))
            reporters = self._reporters.get(key, {})
            reporters.pop(stream, None)
            if not reporters:
                self._reporters.pop(key, None)
                self._awaited.done(key)
                self._members.forget_report(key)

    async def _clean_up(self, term: Term) -> None:
        """While this replica leads: the entries of replicas that are gone are its business, too."""
        self._term = term
        self._news.set()
        try:
            await trio.sleep_forever()
        finally:
            self._term = None

    # -- the source

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See ``sources.base.contract.Source``. Cancelled, the records stay as they are."""
        task_status.started()
        if self._store is None:
            self._store = MemoryStore(self._seeds)
        store = self._store
        if self._seeds:  # until the store can be read
            self._members.replace({record.key: Kept(record, 0) for record in self._seeds})
            self._seeds = ()
        self._items = {key: self._items_of(key) for key in self._members.known()}
        self._members.take_touched()
        items = tuple(item for found in self._items.values() for item in found.values())
        await events.send(Replace(self.name, (), items))
        await events.send(Synced(self.name))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.follow, self._take)
            nursery.start_soon(self._awaited.run)
            nursery.start_soon(self._work, store, events)

    def _take(self, kept: Mapping[ConfigKey, Kept], index: int | None) -> None:
        self._members.replace(kept, index)
        self._news.set()

    async def _work(self, store: RecordStore, events: EventSender) -> None:
        backoff = Backoff()
        while True:
            self._news = trio.Event()
            await self._publish(events)
            replicas = self._replicas(store)
            has_written = is_behind = False
            pause = math.inf
            for change in self._members.changes(trio.current_time(), replicas):
                if not self._members.is_due(change, trio.current_time(), replicas):
                    continue
                try:
                    index = await store.write(change)
                except LockError as error:
                    if has_written:
                        backoff.reset()  # it is this one that Consul does not take
                    pause = backoff.next_seconds()
                    self._members.failed(change)
                    self._failed(change, error)
                    break
                if index is None:  # another replica was first, and we are about to read what it wrote
                    is_behind = True
                    continue
                self._wrote(change, index)
                has_written = True
            else:
                backoff.reset()
                self._is_failing = False
            if pause < math.inf:
                await trio.sleep(pause)
            elif not has_written:
                soon = trio.current_time() + (LOOK_SECONDS if store.is_shared or is_behind else math.inf)
                with trio.move_on_at(soon if is_behind else min(self._members.deadline(replicas), soon)):
                    await self._news.wait()

    def _replicas(self, store: RecordStore) -> Replicas:
        if not store.is_shared:
            return Replicas(leads=True, present=frozenset((self._replica,)))
        present = frozenset(replica.id for replica in self._election.statistics().replicas)
        leads = self._term is not None and not self._term.ended
        return Replicas(leads, present if self._replica in present else None)

    def _failed(self, change: Change, error: LockError) -> None:
        self._counts["errors"] += 1
        if not self._is_failing:
            log.warning(
                "workload cannot be written down; it counts here, and other replicas do not know of it yet",
                entry=str(change.key),
                reason=str(error),
            )
        self._is_failing = True

    def _wrote(self, change: Change, index: int) -> None:
        self._members.wrote(change, index)
        record = change.record
        if record is None:
            self._counts["deleted"] += 1
            event = "auto-registered entry deleted"
        elif not record.is_connected:
            self._counts["unregistered"] += 1
            event = "auto-registered workload disconnected"
        elif not change.index:
            self._counts["registered"] += 1
            event = "workload registered"
        else:
            self._counts["updated"] += 1
            event = "registered workload updated"
        write = log.info if self._lines.admit(event, trio.current_time()) is not None else log.debug
        write(event, entry=f"{change.key.namespace}/{change.key.name}")

    async def _publish(self, events: EventSender) -> None:
        for key in self._members.take_touched():
            found, before = self._items_of(key), self._items.pop(key, {})
            if found:
                self._items[key] = found
            for which, item in found.items():
                if before.get(which) != item:
                    await events.send(Upsert(self.name, item))
            for which in before.keys() - found.keys():
                await events.send(Delete(self.name, which))

    def _items_of(self, key: ConfigKey) -> dict[tuple[str, ...], Item]:
        record = self._members.in_force(key)
        return {item_key(item): item for item in items_of(record)} if record is not None else {}
