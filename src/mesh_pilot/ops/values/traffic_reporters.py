"""The proxies that report traffic, and connected ones that do not."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mesh_pilot.ops.plane.state import PlaneState

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


def each_once(rows: Iterable[ReporterState]) -> list[ReporterState]:
    """The proxies of several workers, by name: two may know one, which reports to another than serves it."""
    found = dict[str, ReporterState]()
    for row in rows:
        known = found.get(row.proxy_id, row)
        best = min(known, row, key=lambda each: _REPORTS.index(each.reports))
        found[row.proxy_id] = attrs.evolve(best, is_connected=known.is_connected or row.is_connected)
    return sorted(found.values(), key=lambda each: (each.proxy, each.proxy_id))


_REPORTS = ("requests", "attempts", "nothing")
