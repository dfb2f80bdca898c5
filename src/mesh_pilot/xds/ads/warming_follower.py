"""Follows what warms at the client of a stream: shows it, logs it, and tells quarantine what is overdue."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import structlog
import trio

from mesh_pilot.engine.snapshots import SnapshotStore
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.warming import WarmingResource, read_report
from mesh_pilot.xds.ads.messages import Nack, Response
from mesh_pilot.xds.ads.observers import AnswerObserver
from mesh_pilot.xds.ads.references import references_of
from mesh_pilot.xds.ads.status import Connection
from mesh_pilot.xds.ads.stream import Stream
from mesh_pilot.xds.ads.warming import NOT_IN_USE, NOTED_TYPES, WARMING_SECONDS, WarmingWatch

log = structlog.get_logger(scope="xds")


class WarmingFollower:
    """State: that of its watch, the resources in the log, and whether there is something to look at."""

    def __init__(self, connection: Connection, answers: AnswerObserver, store: SnapshotStore) -> None:
        self.watch = WarmingWatch(lambda resource: store.shared(references_of, resource))
        self._connection = connection
        self._answers = answers
        self._logged: frozenset[tuple[str, str]] = frozenset()
        self._is_due = True

    def sent(self, response: Response) -> None:
        """The client is sent a response."""
        if response.type_url in NOTED_TYPES:
            self._is_due = True
            self.watch.note_sent(response, trio.current_time())

    def requested(self, type_url: str) -> None:
        """The client requests something of a type, or answers. Most pushes are of others: they cost no look."""
        if type_url in NOTED_TYPES:
            self._is_due = True

    def told(self) -> None:
        """The client's agent has reported."""
        self._is_due = True

    def look(self, stream: Stream, now: float, *, is_answered: bool) -> float:
        """Look at the client of a stream that has nothing to send; returns when to look again without news."""
        if not self._is_due:
            return inf
        connection, watch = self._connection, self.watch
        report = connection.agents_report()
        watch.look(stream, report, now, is_answered=is_answered)
        if watch.is_idle and not (report or connection.warming or self._logged):
            self._is_due = False
            return inf
        connection.warming = watch.shown(now)
        if connection.warming or self._logged:
            self._write_log(stream)
        if stream.proxy is not None:
            for type_url, found in watch.overdue(now).items():
                self._answers.warms(connection.id, _refusal(stream, stream.proxy, type_url, found))
        return watch.deadline(now)

    def reported(self, report: str | None) -> None:
        """The client is an agent, and reports what warms at its Envoy."""
        try:
            self._connection.warms(read_report(report))
        except ValueError as error:
            log.warning(
                "an agent's report of what warms cannot be read; its last one counts",
                stream=self._connection.id,
                peer=self._connection.peer,
                reason=str(error)[:200],
            )

    def _write_log(self, stream: Stream) -> None:
        found = {(each.resource.type_url, each.resource.name): each.resource for each in self._connection.warming}
        proxy = stream.proxy.id if stream.proxy is not None else ""
        for key, each in found.items():
            if key not in self._logged:
                log.warning(
                    "warming: accepted, but not in use; the proxy keeps what it had before",
                    proxy=proxy,
                    type=each.short,
                    resource=each.name,
                    waits_for=each.what,
                )
        if self._logged and not found:
            log.info("nothing warms any more", proxy=proxy)
        self._logged = frozenset(found)


def _refusal(stream: Stream, proxy: Proxy, type_url: str, found: Sequence[WarmingResource]) -> Nack:
    """The refusal that resources amount to which a client accepts and never uses."""
    held = stream.explained(type_url)
    resources = tuple(held[each.name] for each in found if each.name in held)
    waits = "; ".join(f"{each.name} waits for {each.what}" for each in found)
    return Nack(
        proxy,
        type_url,
        nonce="",
        version=stream.holds(type_url).version,
        reason=f"{NOT_IN_USE} after {WARMING_SECONDS:g} s: {waits}",
        names=tuple(each.name for each in resources),
        configs=tuple(dict.fromkeys(key for each in resources for key in each.configs)),
        resources=resources,
        is_warming=True,
    )
