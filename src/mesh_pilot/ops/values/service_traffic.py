"""The traffic of services: what callers sent to each, next to what its own proxies counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import attrs

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.model.json import SPREAD
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.routed_hosts import RoutedHosts
from mesh_pilot.ops.values.traffic import (
    GroupBy,
    SeenRow,
    TrafficChange,
    TrafficCounts,
    TrafficEdgeRow,
    TrafficSeen,
    change_of_rows,
    edge_rows,
)
from mesh_pilot.ops.values.traffic_ends import TrafficEnd, TrafficEnds
from mesh_pilot.ops.values.traffic_looks import TrafficLooks
from mesh_pilot.ops.values.traffic_parts import ServiceNumbers
from mesh_pilot.traffic.counts import together
from mesh_pilot.traffic.table import SLOT_SECONDS, SLOTS, ReportingProxy
from mesh_pilot.world import View


@attrs.frozen
class TrafficSeries:
    """Numbers of ten seconds each, the oldest first; the last are those of the ten seconds that are over."""

    seconds: float
    tries: Sequence[int]
    failures: Sequence[int]


@attrs.frozen
class ServiceTraffic:
    """The calls to a service: the sum of its callers, next to what its own proxies counted."""

    service: TrafficEnd
    change: TrafficChange = attrs.field(metadata=SPREAD)
    callers: int
    """Workloads that called it."""
    inbound: TrafficCounts | None
    """The calls that arrived at its own proxies, at its ports; null if none of them counts that."""
    is_shared: bool
    """True if other services have the same port of the same workload: ``inbound`` and ``denied`` are of all of them."""
    outside: int | None
    """Requests that arrived, retries included, less those that callers in the mesh made: calls from outside the mesh;
    null if unknown."""
    denied: int | None
    """Calls that policies denied; null if no proxy of it counts that."""
    routed_by: Sequence[str]
    """The VirtualServices that have its host, those made of routes of the Gateway API included; empty: no object names
    these calls."""
    series: TrafficSeries


@attrs.frozen
class NamespaceTraffic:
    """The calls to all services of a namespace."""

    namespace: str
    services: int
    change: TrafficChange = attrs.field(metadata=SPREAD)


@attrs.frozen
class ServicesSeen:
    """All services with calls, and their namespaces."""

    services: Sequence[ServiceTraffic]
    namespaces: Sequence[NamespaceTraffic]


async def services_seen(state: PlaneState, seen: TrafficSeen) -> ServicesSeen:
    """The services that were called, that which got worse most first."""
    key, stamp = ("services", seen.asked), (seen.stamp, state.world.revision)
    return await TrafficLooks.of(state).get(key, stamp, partial(_services, state, seen))


async def _services(state: PlaneState, seen: TrafficSeen) -> ServicesSeen:
    view, ends = state.world.view, TrafficEnds(state.world.view)
    calls = dict[ServiceKey, list[SeenRow]]()
    arrived = dict[ServiceKey, list[SeenRow]]()
    decided = dict[ServiceKey, list[SeenRow]]()
    shared = set[ServiceKey]()
    served = ServedPorts(view)

    def grouped() -> Iterator[None]:
        for row in seen.rows:
            called = ends.called(row.proxy, row.name) if row.kind is RowKind.CLUSTER else None
            if called is not None and called.kind == "service":
                calls.setdefault(ServiceKey(called.name, called.namespace), []).append(row)
            elif (called is not None and called.kind == "inbound") or row.kind is RowKind.LISTENER:
                port = called.port if called is not None else port_of_listener(row.name)
                own = served.at(row.proxy, port) if port else ()
                for key in own:
                    (arrived if called is not None else decided).setdefault(key, []).append(row)
                if len(own) > 1:
                    shared.update(own)
            yield

    await in_turns(grouped())
    routed = RoutedHosts(state)
    keys = {*calls, *arrived}

    def row(key: ServiceKey) -> ServiceTraffic:
        own, inbound, policies = calls.get(key, []), arrived.get(key, []), decided.get(key, [])
        change = change_of_rows(own, seen.seconds)
        counted = together(each.now for each in inbound)
        judged = together(each.now for each in policies)
        is_judged = judged.has_requests or counted.has_requests
        arrived_requests, of_callers = counted.requests, change.now.requests if own else 0
        outside = None
        if arrived_requests is not None and of_callers is not None and not change.now.is_partial and key not in shared:
            # Each retry arrives as a request, and the inbound cluster does not count those that a policy denied.
            outside = max(0, arrived_requests + judged[Counter.DENIED] - of_callers - (change.now.retries or 0))
        return ServiceTraffic(
            TrafficEnd("service", key.host, key.namespace),
            change,
            len({(each.proxy.workload.namespace, each.proxy.workload.name) for each in own if each.now}),
            TrafficCounts.of(counted, seen.seconds.now) if inbound else None,
            key in shared,
            outside,
            judged[Counter.DENIED] if is_judged else None,
            routed.by(key.host),
            _series(seen.part.services.get(key)),
        )

    rows = await in_turns(row(key) for key in keys)
    namespaces = dict[str, list[ServiceKey]]()
    for key in keys:
        namespaces.setdefault(key.namespace, []).append(key)
    of_namespaces = await in_turns(
        NamespaceTraffic(
            name, len(own), change_of_rows((each for key in own for each in calls.get(key, ())), seen.seconds)
        )
        for name, own in namespaces.items()
    )
    return ServicesSeen(
        sorted(rows, key=lambda each: (each.change.order, each.service)),
        sorted(of_namespaces, key=lambda each: (each.change.order, each.namespace)),
    )


def _series(own: ServiceNumbers | None) -> TrafficSeries:
    """The numbers of ten minutes: requests if a caller's agent counts them, else attempts, else connections."""
    if own is None:
        return _NO_SERIES
    requests, errors, attempts, failed, connections, connect_failures = own.numbers
    if own.has_requests and any(requests):
        return TrafficSeries(SLOT_SECONDS, requests, errors)
    if not own.has_requests and any(attempts):
        return TrafficSeries(SLOT_SECONDS, attempts, failed)
    return TrafficSeries(SLOT_SECONDS, connections, connect_failures)


_NO_SERIES = TrafficSeries(SLOT_SECONDS, [0] * (SLOTS - 1), [0] * (SLOTS - 1))


# -- edges, and the services that they lead to


@attrs.frozen
class ConfiguredEdge:
    """An edge, with what the configuration says of the service that is called."""

    edge: TrafficEdgeRow = attrs.field(metadata=SPREAD)
    is_routed: bool | None
    """True if a VirtualService has the service's host; null where no service is called."""
    denied: int | None
    """Calls of all its callers that policies denied there; null if no proxy of it counts that."""


async def edges_seen(state: PlaneState, seen: TrafficSeen, by: GroupBy) -> Sequence[ConfiguredEdge]:
    """All edges of a look."""
    key, stamp = ("edges", seen.asked, by), (seen.stamp, state.world.revision)
    return await TrafficLooks.of(state).get(key, stamp, partial(configured_edges, state, seen, by))


async def configured_edges(
    state: PlaneState, seen: TrafficSeen, by: GroupBy, calls: Sequence[SeenRow] | None = None
) -> Sequence[ConfiguredEdge]:
    """The edges of a look, the one that got worse most first. ``calls``: only those of these rows."""
    rows = await edge_rows(state, attrs.evolve(seen, rows=calls) if calls is not None else seen, by)
    denied, routed = dict[ServiceKey, int](), RoutedHosts(state)
    served = ServedPorts(state.world.view)

    def counted() -> Iterator[None]:
        for row in seen.rows:
            port = port_of_listener(row.name) if row.kind is RowKind.LISTENER else 0
            if port and row.now.has_requests:
                for key in served.at(row.proxy, port):
                    denied[key] = denied.get(key, 0) + row.now[Counter.DENIED]
            yield

    await in_turns(counted())

    def configured(row: TrafficEdgeRow) -> ConfiguredEdge:
        if row.called.kind != "service":
            return ConfiguredEdge(row, None, None)
        key = ServiceKey(row.called.name, row.called.namespace)
        return ConfiguredEdge(row, bool(routed.by(key.host)), denied.get(key))

    return await in_turns(configured(row) for row in rows)


class ServedPorts:
    """The services that proxies serve. State: those that were looked up."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._found: dict[tuple[str, int], tuple[ServiceKey, ...]] = {}

    def at(self, proxy: ReportingProxy, port: int) -> tuple[ServiceKey, ...]:
        """The services at a port of a proxy's workload."""
        address = proxy.node.split("~")[1] if proxy.node.count("~") == 3 else ""
        key = address, port
        if key not in self._found:
            every = self._view.endpoints_at(address) if address else ()
            served = (service for service, own in every if any(each.port == port for each in own))
            self._found[key] = tuple(dict.fromkeys(served))
        return self._found[key]


def port_of_listener(name: str) -> int:
    """The workload's port of the statistics of an inbound listener, ``inbound_0.0.0.0_8080;``; 0 for others."""
    before, _, port = name.rstrip(";.").rpartition("_")
    return int(port) if before.startswith("inbound") and port.isdecimal() and len(port) < 6 else 0
