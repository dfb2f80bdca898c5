"""The part of a worker in what is known of traffic: who reports, since when, and ten minutes of each service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import add

import attrs

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.traffic_ends import TrafficEnds
from mesh_pilot.ops.values.traffic_looks import TrafficLooks
from mesh_pilot.replicas.workers.questions import TrafficPartQuestion

SERIES = (
    *(Counter.REQUESTS, Counter.ERRORS, Counter.ATTEMPTS, Counter.FAILED_ATTEMPTS),
    *(Counter.CONNECTIONS, Counter.CONNECT_FAILURES),
)
"""Counters of which services have numbers of ten minutes."""

SILENT_SECONDS = 130.0
"""The time without a report after which a connected proxy counts as silent: an agent with nothing to tell says so once
a minute."""
MISSED = 3
"""The same in intervals, where these are long."""


@attrs.frozen
class ReporterState:
    """A proxy that reports, or a connected one that does not."""

    proxy: str
    proxy_id: str
    namespace: str
    is_connected: bool
    reports: str
    """``requests`` if an agent counts them, ``attempts`` if there are load reports alone, ``nothing``."""
    why: str
    """The reason where it reports nothing or no requests, and what to do; empty where requests are known."""


NO_REQUESTS = "load reports alone: run its Envoy by mesh-pilot proxy, whose agent counts requests"
NO_REPORTS = "the bootstrap asks for no load reports; docs/traffic.md has the lines, and mesh-pilot proxy writes them"
NO_REPORTS_OF_AGENT = "the agent has sent no report yet; an agent of an earlier version sends none"
NO_REPORTS_OF_GRPC = "a proxyless gRPC client: it sends load reports if its bootstrap and its library do"


@attrs.frozen
class ServiceNumbers:
    """Ten minutes of a service."""

    numbers: Sequence[Sequence[int]]
    """The numbers of each counter of ``SERIES``, by slot, the oldest first."""
    has_requests: bool
    """True if an agent of a caller counts requests."""


@attrs.frozen
class TrafficPart:
    """A worker's part, or all of them together."""

    reporters: Sequence[ReporterState] = ()
    known_seconds: float = 0.0
    """The length of the time of which there are reports."""
    services: Mapping[ServiceKey, ServiceNumbers] = attrs.field(factory=dict)


async def own_part(state: PlaneState) -> TrafficPart:
    """The part of this worker."""
    if state.traffic is None:
        return TrafficPart()
    looks, table = TrafficLooks.of(state), state.traffic.table
    services = await looks.get("series", (table.slot, state.world.revision), partial(_services, state))
    return TrafficPart(reporter_rows(state), table.known_seconds, services)


async def whole_part(state: PlaneState) -> TrafficPart:
    """The parts of all workers together, as far as they answer."""
    found = [await own_part(state)]
    if state.others is not None:
        answers = await state.others.ask(TrafficPartQuestion())
        found += [each for each in answers.values() if isinstance(each, TrafficPart)]
    if len(found) == 1:
        return found[0]
    reporters, services = dict[str, ReporterState](), dict[ServiceKey, ServiceNumbers]()
    for part in found:
        for each in part.reporters:
            known = reporters.get(each.proxy_id)
            reporters[each.proxy_id] = each if known is None else _better(known, each)
        for key, own in part.services.items():
            services[key] = _sum(services[key], own) if key in services else own
    ordered = sorted(reporters.values(), key=lambda each: (each.proxy, each.proxy_id))
    return TrafficPart(ordered, max(part.known_seconds for part in found), services)


_REPORTS = ("requests", "attempts", "nothing")


def _better(one: ReporterState, other: ReporterState) -> ReporterState:
    """A proxy that two workers know: it may report to another one than that which serves it."""
    chosen = min(one, other, key=lambda each: _REPORTS.index(each.reports))
    return attrs.evolve(chosen, is_connected=one.is_connected or other.is_connected)


def _sum(one: ServiceNumbers, other: ServiceNumbers) -> ServiceNumbers:
    numbers = [[*map(add, *pair)] for pair in zip(one.numbers, other.numbers, strict=True)]
    return ServiceNumbers(numbers, one.has_requests or other.has_requests)


async def _services(state: PlaneState) -> dict[ServiceKey, ServiceNumbers]:
    ends, found = TrafficEnds(state.world.view), dict[ServiceKey, ServiceNumbers]()

    def summed() -> Iterator[None]:
        assert state.traffic is not None
        for edge, numbers in state.traffic.table.histories(RowKind.CLUSTER, SERIES):
            called = ends.called(edge.proxy, edge.name)
            if called.kind == "service":
                key, own = ServiceKey(called.name, called.namespace), ServiceNumbers(numbers, edge.counts.has_requests)
                found[key] = _sum(found[key], own) if key in found else own
            yield

    await in_turns(summed())
    return found


def reporter_rows(state: PlaneState) -> list[ReporterState]:
    """The proxies that report, and connected ones that do not, by name."""
    connected = {each.proxy.id: each.proxy for each in state.xds.status.proxies() if each.proxy is not None}
    agents = {each.proxy.id for each in state.xds.status.streams() if each.proxy is not None and each.is_agent}
    found = dict[str, ReporterState]()
    for proxy, has_agent in state.traffic.table.reporters() if state.traffic is not None else ():
        is_connected = proxy.node in connected
        silent = _silent(state, proxy.node) if is_connected else ""
        reports, why = ("nothing", silent) if silent else ("requests", "") if has_agent else ("attempts", NO_REQUESTS)
        found[proxy.node] = ReporterState(proxy.name, proxy.node, proxy.workload.namespace, is_connected, reports, why)
    for node, own in connected.items():
        if node not in found:
            why = NO_REPORTS_OF_GRPC if own.is_grpc else NO_REPORTS_OF_AGENT if node in agents else NO_REPORTS
            found[node] = ReporterState(own.name, node, own.namespace, True, "nothing", why)
    return sorted(found.values(), key=lambda each: (each.proxy, each.proxy_id))


def _silent(state: PlaneState, node: str) -> str:
    """The reason for taking a connected proxy that has reported for silent; empty if it is not."""
    assert state.traffic is not None
    silent = state.traffic.table.silent_seconds(node)
    most = max(SILENT_SECONDS, MISSED * (state.reports.seconds if state.reports is not None else 0.0))
    return f"it is connected, and its last report came {silent:.0f} s ago" if silent > most else ""
