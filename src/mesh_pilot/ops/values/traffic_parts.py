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
from mesh_pilot.ops.values.traffic_reporters import ReporterState, each_once, reporter_rows
from mesh_pilot.replicas.workers.questions import TrafficPartQuestion

SERIES = (
    *(Counter.REQUESTS, Counter.ERRORS, Counter.ATTEMPTS, Counter.FAILED_ATTEMPTS),
    *(Counter.CONNECTIONS, Counter.CONNECT_FAILURES),
)
"""Counters of which services have numbers of ten minutes."""


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
    services = dict[ServiceKey, ServiceNumbers]()
    for part in found:
        for key, own in part.services.items():
            services[key] = _sum(services[key], own) if key in services else own
    reporters = each_once(each for part in found for each in part.reporters)
    return TrafficPart(reporters, max(part.known_seconds for part in found), services)


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
