"""The configuration of a proxy, looked up by name: only what decides about one request is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs

from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.explain.inspection.dump import ConfigDump, DumpedResource
from mesh_pilot.explain.inspection.why.listeners import WILDCARDS, ListenerFacts, listener_facts
from mesh_pilot.explain.inspection.why.matchers import Message
from mesh_pilot.explain.inspection.why.request import is_address


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


class DumpEvidence:
    """A config dump: the control plane's, a live Envoy's, or a file of either."""

    def __init__(self, dump: ConfigDump) -> None:
        self._listeners = _messages(dump.listeners)
        self._tables = _messages(dump.routes)
        self._clusters = _messages(dump.clusters)
        self._endpoints = _messages(dump.endpoints)
        self._ejected = {name: _ejected(hosts) for name, hosts in dump.host_statuses.items()}

    def listeners(self) -> Iterable[ListenerFacts]:
        return [listener_facts(listener) for listener in self._listeners.values()]

    def listener(self, name: str) -> Message:
        return self._listeners[name]

    def route_table(self, name: str) -> JsonTable | None:
        table = self._tables.get(name)
        return JsonTable(table, as_objects(table, "virtual_hosts")) if table is not None else None

    def cluster(self, name: str) -> Message | None:
        return self._clusters.get(name)

    def endpoints(self, name: str) -> Message | None:
        """The assignment, with the health that Envoy itself found."""
        found = self._endpoints.get(name)
        ejected = self._ejected.get(name)
        return _with_ejected(found, ejected) if found is not None and ejected else found

    def address_of(self, host: str, port: int) -> str:
        """The address next to the host among the domains of a virtual host, or that of the listener for its cluster."""
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


def _messages(resources: Mapping[str, DumpedResource]) -> dict[str, Message]:
    return {name: resource.message for name, resource in resources.items()}


def _ejected(hosts: Sequence[Message]) -> frozenset[tuple[str, int]]:
    """The addresses of hosts that Envoy does not use, by its own health checks or outlier detection."""
    failed = ("failed_active_health_check", "failed_outlier_check")
    return frozenset(
        _socket(as_object(host, "address"))
        for host in hosts
        if any(as_object(host, "health_status").get(name) for name in failed)
    )


def _socket(address: Message) -> tuple[str, int]:
    socket = as_object(address, "socket_address")
    return str(socket.get("address", "")), int(socket.get("port_value", 0))


def _with_ejected(assignment: Message, ejected: frozenset[tuple[str, int]]) -> Message:
    groups = []
    for group in as_objects(assignment, "endpoints"):
        hosts = []
        for host in as_objects(group, "lb_endpoints"):
            is_out = _socket(as_object(host, "endpoint", "address")) in ejected
            hosts.append({**host, "health_status": "UNHEALTHY"} if is_out else host)
        groups.append({**group, "lb_endpoints": hosts})
    return {**assignment, "endpoints": groups}


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
