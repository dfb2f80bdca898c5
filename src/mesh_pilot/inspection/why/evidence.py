"""The configuration of a proxy, looked up by name: only what decides about one request is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs

from mesh_pilot.inspection.why.listeners import WILDCARDS, ListenerFacts, listener_facts
from mesh_pilot.inspection.why.matchers import Message
from mesh_pilot.inspection.why.request import is_address


class RouteTableFacts(Protocol):
    """A route table, whose virtual hosts are decoded when they are needed."""

    @property
    def domains(self) -> Sequence[Sequence[str]]:
        """The domains of each virtual host."""

    @property
    def settings(self) -> Message:
        """The table's other fields."""

    def virtual_host(self, index: int) -> Message: ...


class Evidence(Protocol):
    """The configuration of one proxy."""

    def listeners(self) -> Iterable[ListenerFacts]: ...

    def listener(self, name: str) -> Message: ...

    def route_table(self, name: str) -> RouteTableFacts | None: ...

    def cluster(self, name: str) -> Message | None: ...

    def endpoints(self, name: str) -> Message | None:
        """The ClusterLoadAssignment of this name; None if it is not known."""

    def address_of(self, host: str, port: int) -> str:
        """The address that a client finds for a host; empty if that is not known, or any will do."""


@attrs.frozen
class JsonTable:
    """A RouteConfiguration as JSON."""

    table: Message
    hosts: Sequence[Message]

    @property
    def domains(self) -> Sequence[Sequence[str]]:
        return [host.get("domains", ()) for host in self.hosts]

    @property
    def settings(self) -> Message:
        return self.table

    def virtual_host(self, index: int) -> Message:
        return self.hosts[index]


class JsonEvidence:
    """A config dump, as Envoy's ``/config_dump?include_eds`` or the control plane has it."""

    def __init__(self, dump: Mapping[str, Any]) -> None:
        """Raises ValueError for JSON that is no config dump."""
        sections = dump.get("configs")
        if not isinstance(sections, list):
            raise ValueError("it is no config dump: it has no list 'configs'")
        self._listeners: dict[str, Message] = {}
        self._tables: dict[str, Message] = {}
        self._hosts: dict[str, list[Message]] = {}
        self._clusters: dict[str, Message] = {}
        self._endpoints: dict[str, Message] = {}
        self.made_from: dict[tuple[str, str], Sequence[str]] = {}
        """The objects of a resource, by field and name; only the control plane knows them."""
        for section in sections:
            for entry in _entries(section):
                self._take(entry)

    def _take(self, entry: Mapping[str, Any]) -> None:
        entry = {**entry, **entry.get("active_state", {})}
        for field, into, name in (
            ("listener", self._listeners, "name"),
            ("route_config", self._tables, "name"),
            ("cluster", self._clusters, "name"),
            ("endpoint_config", self._endpoints, "cluster_name"),
        ):
            message = entry.get(field)
            if isinstance(message, Mapping):
                into[str(message.get(name, ""))] = message
        host = entry.get("virtual_host")
        if isinstance(host, Mapping):
            self._hosts.setdefault(str(host.get("name", "")).rpartition("/")[0], []).append(host)

    def listeners(self) -> Iterable[ListenerFacts]:
        return [listener_facts(listener) for listener in self._listeners.values()]

    def listener(self, name: str) -> Message:
        return self._listeners[name]

    def route_table(self, name: str) -> JsonTable | None:
        table = self._tables.get(name)
        if table is None:
            return None
        return JsonTable(table, [*table.get("virtual_hosts", ()), *self._hosts.get(name, ())])

    def cluster(self, name: str) -> Message | None:
        return self._clusters.get(name)

    def endpoints(self, name: str) -> Message | None:
        return self._endpoints.get(name)

    def address_of(self, host: str, port: int) -> str:
        """The address beside the host among the domains of a virtual host, or that of the listener for its cluster."""
        for table in self._tables:
            found = self.route_table(table)
            for domains in found.domains if found is not None else ():
                if f"{host}:{port}" in domains and (address := next((d for d in domains if is_address(d)), "")):
                    return address
        at_port = [f for f in self.listeners() if f.port == port and f.address not in WILDCARDS and not f.binds]
        for facts in at_port:
            if any(cluster.endswith(f"|{host}") for cluster in _clusters_in(self._listeners[facts.name])):
                return facts.address
        return ""


def _entries(section: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(section, Mapping):
        for field, entries in section.items():
            # What is warming is not in use.
            if isinstance(entries, list) and field != "dynamic_warming_clusters":
                yield from (entry for entry in entries if isinstance(entry, Mapping))


def _clusters_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, member in value.items():
            if name == "cluster" and isinstance(member, str):
                yield member
            else:
                yield from _clusters_in(member)
    elif isinstance(value, list):
        for member in value:
            yield from _clusters_in(member)
