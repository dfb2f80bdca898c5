"""Traffic in words: how many calls, how many of them fail, and whether that got worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.model.counts import counted, short_rate
from mesh_pilot.ops.values.service_traffic import ServiceTraffic
from mesh_pilot.ops.values.traffic import TrafficChange, TrafficCounts, TrafficEdgeRow

CALLERS = 10
"""Callers of a service that are named."""


def percentage(rate: float) -> str:
    """A share in percent; one that is not zero is not shown as zero."""
    return f"{100 * rate:.3g} %" if rate >= 0.0001 or not rate else "under 0.01 %"


def failing(counts: TrafficCounts) -> str:
    """The end of a sentence about calls: how many of them fail."""
    if not counts.tries:
        return "none fails"
    if counts.rate is None:
        return "an unknown share of them fails"
    return f"{percentage(counts.rate)} of them fail"


def took_this_way(counts: TrafficCounts) -> str:
    """The calls of a proxy to a cluster in ten minutes, in a sentence."""
    if not counts.tries:
        return "nothing took this way in the last ten minutes"
    lost = "" if counts.is_complete else " (counts are incomplete)"
    share = percentage(counts.rate) if counts.rate is not None else "an unknown share"
    return f"of {counts.tries:,} {counts.unit} in the last ten minutes that took this way {share} failed{lost}"


def _change(change: TrafficChange) -> str:
    now, before = change.now, change.before
    if not now.tries:
        return f"no {now.unit} now"
    text = f"{short_rate(now.per_second)} {now.unit} a second, {failing(now)}"
    if before is not None and before.rate is not None and now.rate is not None:
        text += f", before {percentage(before.rate)}"
    return f"{text}: worse" if change.is_worse else text


def service_lines(service: ServiceTraffic, callers: Sequence[TrafficEdgeRow]) -> Iterator[str]:
    """The calls to a service: all, those of each caller, what its own proxies counted, and what policies denied."""
    yield f"{counted(service.callers, 'workload calls', 'workloads call')} it: {_change(service.change)}"
    for edge in callers[:CALLERS]:
        subset = f" subset {edge.called.subset}" if edge.called.subset else ""
        yield f"  {edge.caller.name}.{edge.caller.namespace} to port {edge.called.port}{subset}: {_change(edge.change)}"
    if len(callers) > CALLERS:
        yield f"  and {len(callers) - CALLERS} more"
    if service.inbound is not None:
        own = service.inbound
        shared = ", with other services at the same port" if service.is_shared else ""
        rate = f"{short_rate(own.per_second)} {own.unit} a second"
        yield f"the service's own proxies counted {rate}, {failing(own)}{shared}"
    if service.outside:
        yield f"{service.outside:,} requests came from outside the mesh"
    if service.denied is not None:
        yield f"policies denied {counted(service.denied, 'call')}"
    if service.change.now.is_partial:
        yield "requests of some callers are unknown: they send load reports alone"
    if not service.change.now.is_complete:
        yield "counts are incomplete: some proxies began to report within this time, or lost an interval"
