"""The proxies that report traffic, and those that do not."""

from __future__ import annotations

from collections import Counter

import attrs

from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.traffic import TrafficSeen


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
        reports, why = ("requests", "") if has_agent else ("attempts", NO_REQUESTS)
        found[proxy.node] = ReporterState(
            proxy.name, proxy.node, proxy.workload.namespace, proxy.node in connected, reports, why
        )
    for node, own in connected.items():
        if node not in found:
            why = NO_REPORTS_OF_GRPC if own.is_grpc else NO_REPORTS_OF_AGENT if node in agents else NO_REPORTS
            found[node] = ReporterState(own.name, node, own.namespace, True, "nothing", why)
    return sorted(found.values(), key=lambda each: (each.proxy, each.proxy_id))


@attrs.frozen
class TrafficWindow:
    """The time that counts are of, and who counts."""

    is_on: bool
    """False if the control plane takes no reports."""
    advice: str
    """The thing to do, where nothing can be told; empty where something can."""
    seconds: float
    """The length of the time, which ended at most one interval ago; shorter than asked where no more is known."""
    before_seconds: float
    """The length of the time before, with which it is compared; 0 where nothing is remembered yet."""
    is_complete: bool
    """False if the counts of some of the time were lost."""
    by_agents: int
    """Proxies of which requests are known, as an agent counts them."""
    by_load_reports: int
    """Proxies of which only attempts are known."""
    silent: int
    """Connected proxies that report nothing."""


OFF = "traffic is off by a setting of the control plane (docs/traffic.md)"
NOBODY = "no proxy has connected yet: mesh-pilot proxy connects a machine"
NO_REPORTER = "no proxy reports traffic: run Envoys by mesh-pilot proxy, or turn load reports on (docs/traffic.md)"
NOT_YET = "the first reports are ten seconds away"


def traffic_window(state: PlaneState, seen: TrafficSeen) -> TrafficWindow:
    """The time of a look, and who counts."""
    reporters = reporter_rows(state)
    counts = Counter(each.reports for each in reporters)
    advice = ""
    if state.traffic is None:
        advice = OFF
    elif not reporters:
        advice = NOBODY
    elif not counts["requests"] and not counts["attempts"]:
        advice = NO_REPORTER
    elif not seen.seconds.now:
        advice = NOT_YET
    return TrafficWindow(
        state.traffic is not None,
        advice,
        seen.seconds.now,
        seen.seconds.before,
        all(row.now.is_complete for row in seen.rows),
        counts["requests"],
        counts["attempts"],
        counts["nothing"],
    )
