"""The source of a Consul datacenter: its services, their instances with their health, and configs in KV.

Theory of operation
===================

Each thing that is followed (the catalog, each service, the keys in KV, each kind of mesh data) is one blocking query,
sent again as soon as it is answered (``blocking_query``). An answer is whole, so what differs from the last one is what
has changed; nothing is kept of an index but to ask for the next answer. Consul's own streaming, which its agents use
among themselves, is not part of the HTTP API.

* *Few connections.* Consul limits connections per client, so services share the queries of a pool, and a few queries
  that cover all services say which of them to read (``query_pool``, ``change_finder``).
* *Doubt.* Consul answers what a token may not read with nothing, and so does a server that has lost its data. Before
  an empty answer counts, ``sight`` asks whether the token is blind, and ``hold_over`` waits.
* *Order.* Answers come in many tasks. Whoever takes one in holds ``publishing`` until its events are sent, so events go
  out in the order in which the state changed. The first picture waits until every query was answered once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from heapq import nsmallest

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.base.offload import LARGE_BYTES, offload
from mesh_pilot.base.reading import as_list, as_strings
from mesh_pilot.consul.client.api import Answer, ConsulApi, open_api
from mesh_pilot.consul.client.blocking_query import OutageGate, TakeAnswer, run_blocking_query
from mesh_pilot.consul.client.client import ConsulError
from mesh_pilot.consul.client.query_pool import PooledQuery, PooledService, QueryPool
from mesh_pilot.consul.client.service_filter import service_filter
from mesh_pilot.consul.client.settings import ConsulSettings
from mesh_pilot.consul.source.change_finder import ChangeFinder, ChangeTriggers
from mesh_pilot.consul.source.configs import Value, location_of, named_by, read_config, read_tree
from mesh_pilot.consul.source.connect import ROOTS, ConnectData, leaf_of
from mesh_pilot.consul.source.hold_over import HoldOver, service_at, service_place
from mesh_pilot.consul.source.instance import ConsulInstance, is_entry, read_instance
from mesh_pilot.consul.source.mapping import left_out, read_service
from mesh_pilot.consul.source.mesh_data import INTENTIONS, AllowedQuery, Denied, IntentionsAnswer, MeshData
from mesh_pilot.consul.source.names import no_name
from mesh_pilot.consul.source.peers import PeerEntries, Peering, PeeringQuery, read_peering
from mesh_pilot.consul.source.sight import BLIND_SECONDS, BLIND_SERVICE_SECONDS, CATALOG, CONFIGS, PEERING, Sight
from mesh_pilot.consul.source.statistics import ConsulStatistics
from mesh_pilot.model.config import Config, ConfigError, ConfigKey, Origin, Problem
from mesh_pilot.model.events import Event, EventSender, Synced
from mesh_pilot.sources.base.published import Precedence, PublishedState

log = structlog.get_logger(scope="sources")

RETURN_SECONDS = 3.0
"""The longest wait between two questions whether Consul is back."""

FEW_KEYS = 3
"""A prefix of fewer keys may go whole, while Consul has services."""

OWN_SERVICE = "consul"
"""The service of Consul's own servers: not one of the mesh."""


@attrs.define
class _Run:
    """The state of one run. Each service is followed in a cancel scope, by name."""

    api: ConsulApi
    events: EventSender
    nursery: trio.Nursery
    gate: OutageGate
    pool: QueryPool
    triggers: ChangeTriggers
    is_sharing: bool = False
    """True if there are more services than slots, so that the triggers are followed."""
    followed: dict[str, trio.CancelScope] = attrs.field(factory=dict)
    leaves: dict[str, trio.CancelScope] = attrs.field(factory=dict)
    """Likewise, the services whose leaves in Consul's own mesh are followed."""
    unanswered: set[str] = attrs.field(factory=set)
    """The queries that have not been answered once since the run began."""
    publishing: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while the state is changed and the events are sent: events go out in order, and no task is cancelled between
    the two."""


class ConsulSource:
    """Sends the services of a Consul datacenter and how they change.

    State: `_state`, `_instances` (of each service, as they are served), `_odd` (the services with entries that are
    passed over) and `_values` (of each key in KV, as last read) survive a restart; `_hold`, what answers lack and
    is kept; `_run`, the state of this run, and the counters of the runs before it.
    """

    def __init__(self, name: str, settings: ConsulSettings) -> None:
        self.name = name
        self.settings = settings
        self._filter = service_filter(settings.service_filter, settings.service_tag)
        self._state = PublishedState[str](name, Precedence.FIRST)
        self._values: dict[str, Value] = {}
        self._instances: dict[str, tuple[ConsulInstance, ...]] = {}
        self._odd: frozenset[str] = frozenset()
        self._hold = HoldOver(name, settings.timing.hold_seconds)
        self._run: _Run | None = None
        self._sight = Sight(name, settings)
        self._mesh = MeshData(name, settings, self._state) if settings.mesh and not settings.peer else None
        self._connect = ConnectData(self._state) if settings.mesh and settings.connect else None
        self._peer = PeerEntries(settings) if settings.peer else None
        self._queries = self._read_bytes = self._failures = self._outages = 0

    @property
    def place(self) -> str:
        return self.settings.place

    def __repr__(self) -> str:
        state = self.statistics()
        return f"<ConsulSource {self.name}: {state.services} services, {state.items} items, {state.rejected} rejected>"

    def statistics(self) -> ConsulStatistics:
        run = self._run
        down_since = run.gate.down_since if run else None
        return ConsulStatistics(
            items=len(self._state),
            rejected=len(self._state.rejections()),
            synced=self._state.is_announced,
            waiting_for=self._waiting_for(),
            services=len(run.followed) if run else 0,
            queries=self._queries + (run.api.http.requests if run else 0),
            read_bytes=self._read_bytes + (run.api.http.read_bytes if run else 0),
            failures=self._failures + (run.pool.failures if run else 0),
            under_way=run.pool.under_way if run else 0,
            waiting=run.pool.pending if run else 0,
            outages=self._outages + (run.gate.outages if run else 0),
            stale_seconds=0.0 if down_since is None else trio.current_time() - down_since,
            trouble=self._trouble(),
            held_back=self._hold.held,
            blindness=self._sight.reason,
            blind_seconds=self._sight.seconds,
        )

    def left_out(self, host: str) -> Sequence[str]:
        """The instances of a host that get no traffic; see `sources.base.contract.LeavesOut`."""
        lines = []
        for each in left_out(host, self._instances, self.settings):
            address, _ = each.instance.reached_at(self.settings.address_tag)
            where = f"{each.instance.id} on {each.instance.node}, {address}:{each.port}"
            lines.append(f"{where}, {each.state.name.lower()}: {each.reason}")
        return lines

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send everything, then every change, until cancelled. What is known is kept for the next run.

        Raises ConsulError for TLS files that can't be used.
        """
        self._state.restart()
        timing = self.settings.timing
        async with open_api(self.settings) as api, trio.open_nursery() as nursery:
            backoff = Backoff(timing.retry_seconds, min(timing.retry_limit_seconds, RETURN_SECONDS))
            check = partial(api.services, 0, 0) if self._peer is None else api.peering
            gate = OutageGate(self.name, check, backoff)
            pool = QueryPool(self.settings)
            finder = ChangeFinder(pool, api, lambda: self._instances, timing)
            triggers = ChangeTriggers(pool, finder, lambda: self._instances)
            self._run = run = _Run(api, events, nursery, gate, pool, triggers)
            try:
                run.unanswered = {CATALOG, *([CONFIGS] if self.settings.config_prefix else [])}
                mesh_queries = [*self._entry_queries(api)]
                run.unanswered |= {what for what, _, _ in mesh_queries}
                run.unanswered |= {ROOTS} if self._connect is not None else set()
                task_status.started()
                nursery.start_soon(gate.run)
                if self.settings.config_prefix:
                    tree = partial(api.tree, self.settings.config_prefix)
                    nursery.start_soon(self._follow, run, CONFIGS, tree, partial(self._take_configs, run))
                take_entries = self._take_mesh if self._peer is None else self._take_peer_entries
                for what, query, kind in mesh_queries:
                    nursery.start_soon(self._follow, run, what, query, partial(take_entries, run, what, kind))
                if self._connect is not None:
                    roots = AllowedQuery(partial(self._connect.ask_roots, api))
                    nursery.start_soon(self._follow, run, ROOTS, roots, partial(self._take_roots, run))
                if self._peer is None:
                    await self._follow(run, CATALOG, api.services, partial(self._take_catalog, run))
                else:
                    peering = PeeringQuery(api, self.settings.peer)
                    await self._follow(run, CATALOG, peering, partial(self._take_peering, run))
            finally:
                self._queries += api.http.requests
                self._read_bytes += api.http.read_bytes
                self._failures += run.pool.failures
                self._outages += gate.outages
                self._run = None

    def _entry_queries(self, api: ConsulApi) -> Iterable[tuple[str, PooledQuery, str]]:
        if self._mesh is not None:
            return self._mesh.queries(api)
        return self._peer.queries(api) if self._peer is not None and self.settings.mesh else ()

    async def _follow(
        self,
        run: _Run,
        what: str,
        query: PooledQuery,
        take: TakeAnswer,
        *,
        service: PooledService | None = None,
        pace_seconds: float | None = None,
    ) -> None:
        await run_blocking_query(what, query, take, run.gate, run.pool, self.settings, service, pace_seconds)

    def _share_queries(self, run: _Run) -> None:
        """Follow the triggers as soon as there are more services than slots; of a peer's services they tell nothing."""
        if self._peer is not None:
            return
        if len(run.followed) > run.pool.slots and not run.is_sharing:
            run.is_sharing = True
            log.info(
                "more Consul services than concurrent queries; some share a query",
                source=self.name,
                slots=run.pool.slots,
            )
            run.nursery.start_soon(run.triggers.finder.run)
            pace = self.settings.timing.trigger_pace_seconds
            for what, query, take in run.triggers.queries(run.api):
                run.nursery.start_soon(partial(self._follow, run, what, query, take, pace_seconds=pace))

    # -- answers

    async def _take_catalog(self, run: _Run, answer: Answer, is_lost: bool) -> float | None:
        """Take a catalog."""
        if self._sight.note_catalog(run.api, answer):
            await self._publish(run, CATALOG, (), _cause(answer))
            return BLIND_SECONDS
        return await self._take_names(run, self._wanted(answer.data), answer, is_lost)

    async def _take_peering(self, run: _Run, answer: Answer, is_lost: bool) -> float | None:
        """Take the names of the services that were imported from a peer."""
        peering = answer.data
        assert isinstance(peering, Peering)
        if self._sight.note(PEERING, peering.trouble):
            # It may have forgotten some; those that it names are there.
            return await self._take_names(run, peering.services | self._known(run), answer, is_lost)
        # After a change of its leader, Consul learns from the peer again what was imported.
        return await self._take_names(run, peering.services, answer, True)

    def _known(self, run: _Run) -> frozenset[str]:
        """The services of which anything is known."""
        return frozenset((*run.followed, *filter(None, map(service_at, self._state.locations))))

    async def _take_names(self, run: _Run, wanted: frozenset[str], answer: Answer, is_lost: bool) -> float | None:
        """Take the names of services: follow those that are new, drop those that are gone."""
        names = frozenset(name for name in wanted if _can_be_asked_for(name))
        async with run.publishing:
            gone = self._known(run) - wanted
            seconds = self._hold.keep_seconds(CATALOG, is_lost or not names, bool(gone))
            new = sorted(names - run.followed.keys())
            run.followed |= {name: trio.CancelScope() for name in new}
            self._share_queries(run)
            if self._peer is None:
                await run.triggers.take_index("catalog", answer, is_lost)
            for name in new:
                run.unanswered.add(service_place(name))
                run.nursery.start_soon(self._follow_service, run, name, run.followed[name])
            events = (
                []
                if seconds
                else [event for name in sorted(gone) for event in self._drop_service(run, name, _cause(answer))]
            )
            for name in sorted(wanted - names):
                events += self._state.refuse(service_place(name), (no_name(name),))
            await self._publish(run, CATALOG, events, _cause(answer))
            return seconds or None

    def _drop_service(self, run: _Run, name: str, cause: str) -> Sequence[Event]:
        if name in run.followed:
            run.followed.pop(name).cancel()
        run.unanswered.discard(service_place(name))
        self._hold.forget(service_place(name))
        self._instances.pop(name, None)
        self._odd -= {name}
        events = self._state.drop(service_place(name), cause=cause)
        if self._mesh is not None:
            self._mesh.take_service(name, None, ())
            events += self._readdressed(name, (), cause)
        if self._connect is not None:
            if name in run.leaves:
                run.leaves.pop(name).cancel()
                self._sight.note(leaf_of(name), "")
            events += self._connect.take_leaf(name, None, cause)
            events += self._connect.take_service(name, None, cause)
        return events

    def _readdressed(self, name: str, instances: Sequence[ConsulInstance], cause: str) -> list[Event]:
        """The events of other services whose virtual addresses or sidecars the instances of a service say or are."""
        others = self._mesh.take_proxies(name, instances) - {name} if self._mesh is not None else set()
        others |= self._connect.take_proxies(name, instances) - {name} if self._connect is not None else set()
        return [event for other in sorted(others) for event in self._read_again(other, cause)]

    def _read_again(self, name: str, cause: str) -> Sequence[Event]:
        known = self._instances.get(name)
        return self._read_service(name, known, 0, cause) if known is not None else ()

    def _wanted(self, data: object) -> frozenset[str]:
        """The services of a catalog that belong in the mesh."""
        if not isinstance(data, Mapping):
            return frozenset()
        admits = self._filter.admits
        return frozenset(
            name for name, tags in data.items() if name not in ("", OWN_SERVICE) and admits(name, as_strings(tags))
        )

    async def _follow_service(self, run: _Run, name: str, scope: trio.CancelScope) -> None:
        query, take = partial(run.api.instances, name), partial(self._take_service, run, name)
        with scope, run.pool.service(name) as service:
            if run.is_sharing:
                # A service that is read before the triggers are would be read again.
                with trio.move_on_after(self.settings.timing.connect_seconds):
                    await run.triggers.begun.wait()
            await self._follow(run, service_place(name), query, take, service=service)

    async def _take_service(self, run: _Run, name: str, answer: Answer, is_lost: bool) -> float | None:
        """Take the instances of a service."""
        where = service_place(name)
        entries = as_list(answer.data)
        found = tuple(map(self._instance, filter(is_entry, entries)))
        strays = len(entries) - len(found)
        there = {(instance.node, instance.id) for instance in found}
        gone = [i for i in self._instances.get(name, ()) if (i.node, i.id) not in there]
        if self._peer is not None and gone and await self._is_peering_in_doubt(run):
            return BLIND_SERVICE_SECONDS
        if not found and self._hold.is_over(where) and await self._sight.look(run.api):
            return BLIND_SERVICE_SECONDS
        async with run.publishing:
            seconds = self._hold.keep_seconds(where, is_lost or not found or bool(strays), bool(gone))
            now, events = (*found, *gone) if seconds else found, list[Event]()
            if strays or name in self._odd or now != self._instances.get(name):
                self._instances[name] = now
                others = self._readdressed(name, now, _cause(answer))
                events = [*self._read_service(name, now, strays, _cause(answer)), *others]
                self._odd = self._odd | {name} if strays else self._odd - {name}
            elif _indexes(now) != _indexes(self._instances[name]):
                self._instances[name] = now  # else those stay of which the endpoints were made: their parts are shared
            await self._publish(run, where, events, _cause(answer))
            self._follow_leaves(run, (name,))
            return seconds or None

    def _instance(self, entry: object) -> ConsulInstance:
        """The instance of an entry. One of a peer has the peer for a datacenter: its own name says nothing here."""
        found = read_instance(entry)
        return attrs.evolve(found, datacenter=self.settings.peer) if self._peer is not None else found

    async def _is_peering_in_doubt(self, run: _Run) -> bool:
        """True if instances may be missing because the peering ended; also if Consul does not say."""
        try:
            peering = read_peering(self.settings.peer, (await run.api.peering()).data)
        except ConsulError:
            return True
        return self._sight.note(PEERING, peering.trouble)

    def _follow_leaves(self, run: _Run, names: Iterable[str]) -> None:
        """Follow the leaves of those of these services that want one, once it is known whose they have to be."""
        connect = self._connect
        if connect is None or not connect.trust_domain:
            return
        for name in names:
            if name in run.followed and name not in run.leaves and connect.wants_leaf(self._instances[name]):
                run.leaves[name] = trio.CancelScope()
                run.nursery.start_soon(self._follow_leaf, run, connect, name, run.leaves[name])

    async def _follow_leaf(self, run: _Run, connect: ConnectData, name: str, scope: trio.CancelScope) -> None:
        """Follow the leaf of a service in Consul's own mesh. It shares the queries of services."""
        what, query = leaf_of(name), AllowedQuery(partial(run.api.connect_leaf, name))
        with scope, run.pool.service(what) as service:
            await self._follow(run, what, query, partial(self._take_leaf, run, connect, name), service=service)

    async def _take_leaf(
        self, run: _Run, connect: ConnectData, name: str, answer: Answer, _is_lost: bool
    ) -> float | None:
        reason = ""
        if isinstance(answer.data, Denied):
            reason = f"Consul gives no leaf of {name}, its last one is kept: {answer.data.reason}; give service:write"
        if self._sight.note(leaf_of(name), reason):
            return BLIND_SECONDS
        async with run.publishing:
            events = connect.take_leaf(name, answer.data, _cause(answer))
            await self._publish(run, leaf_of(name), events, _cause(answer))
        return None

    async def _take_roots(self, run: _Run, answer: Answer, _is_lost: bool) -> float | None:
        """Take the roots of Consul's own mesh; leaves of another CA come with them."""
        connect, mesh = self._connect, self._mesh
        assert connect is not None and mesh is not None
        denied = answer.data.reason if isinstance(answer.data, Denied) else ""
        reason = f"Consul does not tell its roots, so that none of its proxies is called: {denied}" if denied else ""
        is_blind = self._sight.note(ROOTS, reason)
        async with run.publishing:
            events: list[Event] = []
            if not is_blind:
                found, is_other = connect.take_roots(answer.data, _cause(answer))
                events += found
                mesh.mesh.set_trust_domain(connect.trust_domain)
                for name in [*self._instances] if is_other else ():
                    events += self._read_again(name, _cause(answer))
                run.pool.mark_changed(map(leaf_of, run.leaves))
                self._follow_leaves(run, self._instances)
            await self._publish(run, ROOTS, events, _cause(answer))
        return BLIND_SECONDS if is_blind else None

    def _read_service(self, name: str, instances: Sequence[ConsulInstance], strays: int, cause: str) -> Sequence[Event]:
        where = service_place(name)
        odd = (Problem("", f"{strays} entries without a node and a service are passed over"),) if strays else ()
        mesh = self._mesh
        try:
            if self._peer is not None:
                reading = read_service(name, instances, self.settings, takes_over=self._peer.of(name))
            elif mesh is None:
                reading = read_service(name, instances, self.settings)
            else:
                facts = self._connect.facts(name) if self._connect is not None else None
                reading = read_service(name, instances, mesh.settings_for(name), mesh.virtual_addresses(name), facts)
        except Exception as error:
            log.error("internal error over a service", source=self.name, service=name, exc_info=error)
            return self._state.refuse(where, (_internal_error(error),))
        if reading.service is None and reading.problems:
            return self._state.refuse(where, (*reading.problems, *odd))
        if mesh is not None:
            mesh.take_service(name, reading, instances)
        granted = self._connect.take_service(name, reading, cause) if self._connect is not None else ()
        return [*granted, *self._state.put(where, reading.items(), (*reading.problems, *odd), cause=cause)]

    async def _take_configs(self, run: _Run, answer: Answer, is_lost: bool) -> float | None:
        """Take all objects in the KV store; only those that differ are parsed."""
        if not await self._sight.sees_configs(run.api, answer):
            await self._publish(run, CONFIGS, (), _cause(answer))
            return BLIND_SECONDS
        values, problems = read_tree(answer.data)
        prefix = location_of(self.settings.config_prefix)
        async with run.publishing:
            gone = sorted(self._values.keys() - values.keys())
            # Somebody deletes keys; a prefix of many that goes whole, or a Consul that lost its data, is no such thing.
            explicit = not is_lost and bool(values or (self._instances and len(self._values) < FEW_KEYS))
            seconds = self._hold.keep_seconds(CONFIGS, not explicit, bool(gone))
            events = list(self._state.put(prefix, (), problems))
            for key in () if seconds else gone:
                del self._values[key]
                self._redo(location_of(key))
                events += self._state.drop(location_of(key), cause=_cause(answer), explicit=explicit)
            for key, value in sorted(values.items()):
                if self._values.get(key) != value:
                    is_large = isinstance(value, bytes) and len(value) > LARGE_BYTES
                    config = await offload(is_large, partial(self._read_config, key, value))
                    self._values[key] = value
                    events += self._taken(location_of(key), config, _cause(answer))
            await self._publish(run, CONFIGS, events, _cause(answer))
            return seconds or None

    async def _take_mesh(self, run: _Run, what: str, kind: str, answer: Answer, is_lost: bool) -> float | None:
        """Take all config entries of a kind, or all intentions."""
        mesh, seconds = self._mesh, 0.0
        assert mesh is not None
        if await self._is_blind(run, what, answer.data):
            await self._publish(run, what, (), _cause(answer))
            return BLIND_SECONDS
        async with run.publishing:
            events: list[Event] = []
            if isinstance(answer.data, IntentionsAnswer):
                seconds = self._hold.keep_seconds(what, not answer.data.intentions, mesh.loses_intentions(answer.data))
                if not seconds:
                    mesh.take_intentions(answer.data)
            else:
                seconds = self._hold.keep_seconds(
                    what, is_lost or not answer.data, mesh.lacks_entries(kind, answer.data)
                )
                names = mesh.take_entries(kind, answer.data, keeps=bool(seconds))
                for name in self._instances if names is None else names:
                    events += self._read_again(name, _cause(answer))
            await self._publish(run, what, events, _cause(answer))
            return seconds or None

    async def _take_peer_entries(self, run: _Run, what: str, kind: str, answer: Answer, is_lost: bool) -> float | None:
        """Take all config entries of a kind that say for whom the peer takes over."""
        peer = self._peer
        assert peer is not None
        if await self._is_blind(run, what, answer.data):
            await self._publish(run, what, (), _cause(answer))
            return BLIND_SECONDS
        async with run.publishing:
            seconds = self._hold.keep_seconds(what, is_lost or not answer.data, peer.lacks(kind, answer.data))
            names = peer.take(kind, answer.data, self._instances, keeps=bool(seconds))
            events = [event for name in names for event in self._read_again(name, _cause(answer))]
            await self._publish(run, what, events, _cause(answer))
            return seconds or None

    async def _is_blind(self, run: _Run, what: str, data: object) -> bool:
        """True if mesh data may lack what is there."""
        if isinstance(data, Denied):
            return self._sight.note(what, f"Consul denies {what} to the token: {data.reason}")
        if what == INTENTIONS and isinstance(data, IntentionsAnswer) and not data.intentions and run.followed:
            return not await self._sight.sees_intentions(run.api, what, min(run.followed))
        return self._sight.note(what, "")

    def _read_config(self, key: str, value: Value) -> Config | ConfigError:
        """The object at a key, or what is wrong with it. It changes nothing, and may run in a thread."""
        named = named_by(self.settings.config_prefix, key)
        try:
            return read_config(self.settings.config_prefix, key, value, self.name)
        except ConfigError as error:
            return ConfigError(error.origin, named, error.problems)
        except Exception as error:
            log.error("internal error while decoding an object", source=self.name, key=key, exc_info=error)
            return ConfigError(Origin(self.name, location_of(key)), named, (_internal_error(error),))

    def _taken(self, where: str, config: Config | ConfigError, cause: str) -> Sequence[Event]:
        if isinstance(config, ConfigError):
            key = ("config", *config.key) if config.key is not None else None
            return self._state.refuse(where, config.problems, line=config.origin.line, key=key)
        if self._mesh is not None and not self._is_in_kv(config.key):
            self._mesh.mesh.redo(config.key)
            for holder in self._state.holders(("config", *config.key)):
                self._state.drop(holder)  # what is still made from Consul's mesh data returns
        return self._state.put(where, (config,), cause=cause)

    def _redo(self, where: str) -> None:
        """A location in KV goes: what was made from Consul's mesh data may take the place of its objects."""
        for kind, *name in self._state.content(where).objects if self._mesh is not None else ():
            if self._mesh is not None and kind == "config":
                self._mesh.mesh.redo(ConfigKey(*name))

    # -- events

    async def _publish(self, run: _Run, what: str, events: Sequence[Event], cause: str) -> None:
        """Send the events of an answer; the first picture is sent once every query was answered."""
        run.unanswered.discard(what)
        if not self._state.is_announced:
            if run.unanswered:
                return
            await self._convert(cause)
            rejections = self._state.rejections()
            log.info("initial sync complete", source=self.name, services=len(run.followed), rejected=len(rejections))
            events = [*self._state.announce(), Synced(self.name)]
        else:
            events = [*events, *await self._convert(cause)]
        for event in events:
            await run.events.send(event)

    async def _convert(self, cause: str) -> list[Event]:
        """The events of what has changed in the objects that Consul's own mesh data is."""
        if self._mesh is None:
            return []
        return [event async for events in self._mesh.events(cause, self._is_in_kv) for event in events]

    def _is_in_kv(self, key: ConfigKey) -> bool:
        """True if the object of this key in force is one in KV: users wrote it, and it wins."""
        prefix = location_of(self.settings.config_prefix)
        return bool(self.settings.config_prefix) and self._state.place_of(("config", *key), "").startswith(prefix)

    def _waiting_for(self) -> str:
        if self._state.is_announced:
            return ""
        if self._run is None:
            return "not started"
        trouble = self._trouble()
        missing = self._run.unanswered
        what = ", ".join(nsmallest(3, missing)) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return f"{what}: {trouble}" if trouble else f"{what} to be answered"

    def _trouble(self) -> str:
        if self._run is None:
            return ""
        return self._run.gate.error or next(iter(self._run.pool.troubles.values()), "")


def _indexes(instances: Iterable[ConsulInstance]) -> list[int]:
    return [each.modified_at for each in instances]


def _cause(answer: Answer) -> str:
    return f"Consul index {answer.index}" if answer.index else "Consul"


def _can_be_asked_for(name: str) -> bool:
    """True if a service's name can be a segment of a path."""
    return "/" not in name and name not in (".", "..")


def _internal_error(error: Exception) -> Problem:
    return Problem("", f"internal error of mesh-pilot ({type(error).__name__}: {error}); please report it")
