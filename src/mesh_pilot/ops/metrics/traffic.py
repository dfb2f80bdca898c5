"""Metrics of reports of traffic. What the reports tell is not a metric: each edge would be a series."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from mesh_pilot.ops.metrics.samples import one, several
from mesh_pilot.ops.plane.state import PlaneState


def reports(state: PlaneState) -> Iterator[Metric]:
    """The streams of reports, and the table that they fill; nothing while that is off."""
    if state.traffic is None or state.reports is None:
        return
    table, server = state.traffic.table.statistics(), state.reports.statistics()
    yield one("mesh_pilot_traffic_streams", "Open streams of reports", "gauge", server.streams)
    yield one("mesh_pilot_traffic_reports", "Reports that were taken", "counter", server.reports)
    yield one("mesh_pilot_traffic_delayed_reports", "Reports that waited", "counter", server.delayed)
    yield one("mesh_pilot_traffic_broken_streams", "Streams that may have lost a report", "counter", server.broken)
    text = "Streams of reports ended with an error, by status"
    yield several("mesh_pilot_traffic_refused_streams", text, "counter", "status", server.refused)
    yield one("mesh_pilot_traffic_proxies", "Proxies whose reports are remembered", "gauge", table.callers)
    yield one("mesh_pilot_traffic_rows", "Rows that are remembered of them", "gauge", table.rows)
    memory = state.traffic.memory.statistics()
    yield one("mesh_pilot_traffic_memory_bytes", "Traffic of the last month, packed", "gauge", memory.bytes)
    text = "Rows and reports that were not taken as the table was full"
    refused = {"rows": table.refused_rows, "reports": table.refused_callers}
    yield several("mesh_pilot_traffic_overflow", text, "counter", "what", refused)
