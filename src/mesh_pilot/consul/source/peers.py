"""Imports of a datacenter from a cluster peer: the names of services, the state of the peering, and for whom
the peer takes over.

Consul copies what a peer exports into its own catalog, instances and health with it. When the peering ends, at either
side, it deletes the copies: so of a peering that is not active nothing that is missing counts as gone.

Consul's catalog does not list imported services; the peering does. Neither its state nor that list moves the index of
the peering, so that a query that waits would miss them: the peering is asked for every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import attrs
import trio

from mesh_pilot.base.reading import as_object, as_string, as_strings
from mesh_pilot.consul.client.api import Answer, ConsulApi
from mesh_pilot.consul.client.client import ConsulDeniedError
from mesh_pilot.consul.client.query_pool import PooledQuery
from mesh_pilot.consul.client.settings import DEFAULT_PARTITION, ConsulSettings
from mesh_pilot.consul.mesh.entries import ConfigEntry, read_entry
from mesh_pilot.consul.mesh.failover import Rank, Takeovers, takeovers
from mesh_pilot.consul.source.mapping import RESERVED
from mesh_pilot.consul.source.mesh_data import AllowedQuery, entries_by_name, entries_of

PEERING_SECONDS = 5.0
"""The interval at which a peering is asked for."""

ACTIVE = "ACTIVE"
RESOLVER, GROUP = "service-resolver", "sameness-group"


@attrs.frozen
class Peering:
    """A peering as Consul says it is."""

    trouble: str
    """Why what is missing of its services does not count as gone; empty: it does."""
    services: frozenset[str] = frozenset()
    """The names of services that were imported, in Consul's default namespace."""


def read_peering(name: str, data: object) -> Peering:
    """The peering of an answer; a field of the wrong type counts as absent."""
    if data is None:
        reason = f"Consul has no peering {name!r}: establish it, or leave --consul-peer {name} out"
        return Peering(f"{reason}; what was imported before is kept")
    state = as_string(data, "State")
    trouble = "" if state == ACTIVE else f"the peering with {name!r} is {state or 'in no state'}"
    imported = as_strings(as_object(data, "StreamStatus").get("ImportedServices"))
    # Consul Enterprise writes partition and namespace before the name.
    names = {each.rpartition("/")[2] for each in imported if each.split("/")[-2:-1] in ([], ["default"])}
    return Peering(trouble and f"{trouble}; what was imported before is kept", frozenset(names))


@attrs.define
class PeeringQuery:
    """Asks for a peering every few seconds, and answers when it is another one. State: the last one, and its number."""

    api: ConsulApi
    name: str
    known: Peering | None = None
    index: int = 0

    async def __call__(self, index: int, wait_seconds: float) -> Answer:
        if index and index == self.index:
            await trio.sleep(PEERING_SECONDS)
        try:
            found = read_peering(self.name, (await self.api.peering()).data)
        except ConsulDeniedError as error:
            found = Peering(f"the token may not read the peering with {self.name!r}: give it peering:read ({error})")
        if found != self.known:
            self.index += 1
            self.known = found
        return Answer(self.index, found)


class PeerEntries:
    """The entries that say for whom a peer takes over. State: each kind's by name, and the takeovers they come to."""

    def __init__(self, settings: ConsulSettings) -> None:
        self._settings = settings
        self._entries: dict[str, dict[str, ConfigEntry]] = {RESOLVER: {}, GROUP: {}}
        self._takeovers = Takeovers({})

    def of(self, service: str) -> tuple[tuple[str, Rank], ...]:
        """The services for which a service of the peer takes over, each with its rank there."""
        return self._takeovers.of(service)

    def queries(self, api: ConsulApi) -> Iterable[tuple[str, PooledQuery, str]]:
        """The queries, with their names and the kinds of entries they are for."""
        for kind in self._entries:
            yield entries_of(kind), AllowedQuery(partial(api.entries, kind)), kind

    def lacks(self, kind: str, data: object) -> bool:
        """True if an answer lacks entries that are known."""
        return bool(self._entries[kind].keys() - entries_by_name(data).keys())

    def take(self, kind: str, data: object, services: Iterable[str], *, keeps: bool) -> list[str]:
        """Take the entries of a kind: those of the peer's services that take over for others now.

        Entries that the answer lacks stay if it ``keeps`` them. Their problems are those of the mesh's own datacenter.
        """
        found: Mapping[str, object] = entries_by_name(data)
        read = {name: read_entry(kind, entry, RESERVED) for name, entry in found.items()}
        self._entries[kind] = {**(self._entries[kind] if keeps else {}), **read}
        before = self._takeovers
        partition = self._settings.partition or DEFAULT_PARTITION
        self._takeovers = takeovers(self._settings.peer, partition, self._entries[RESOLVER], self._entries[GROUP])
        return [name for name in services if before.of(name) != self.of(name)]
