"""Metrics of MCP under the names of Istio's ``pkg/mcp``, told apart by source, and some of our own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from mesh_pilot.config_api.server import McpServiceStatistics
from mesh_pilot.sources.mcp.statistics import SIZE_BOUNDS, McpSourceStatistics, SinkServerStatistics
from mesh_pilot.sources.supervisor import SupervisorStatistics

COMPONENT = {"component": "pilot"}


def mcp_metrics(sources: Iterable[SupervisorStatistics], served: McpServiceStatistics) -> Iterator[Metric]:
    """Of what is read from each source, and of what is served."""
    acks = Metric("istio_mcp_request_acks_total", "Responses accepted", "unknown")
    nacks = Metric(
        "istio_mcp_request_nacks_total", "Responses refused, for some of their objects or as a whole", "unknown"
    )
    failures = Metric("istio_mcp_recv_failures_total", "Streams that ended with an error, by status", "unknown")
    streams = Metric("istio_mcp_reconnections", "Streams opened", "unknown")
    sizes = Metric("istio_mcp_message_sizes_bytes", "Sizes of responses", "histogram")
    connected = Metric("mesh_pilot_mcp_connected", "Whether a stream is open", "gauge")
    held = Metric("mesh_pilot_mcp_resources", "Resources held", "gauge")
    waiting = Metric("mesh_pilot_mcp_silent_collections", "Collections asked for and not answered yet", "gauge")
    age = Metric("mesh_pilot_mcp_last_response_age_seconds", "How long ago a response came last", "gauge")
    for own in sources:
        said = own.source
        if not isinstance(said, (McpSourceStatistics, SinkServerStatistics)):
            continue
        labels = {"source": own.name}
        for metric, counts, label in (
            (acks, said.traffic.acks, "collection"),
            (nacks, said.traffic.nacks, "collection"),
            (failures, said.traffic.failures, "code"),
        ):
            for value, count in sorted(counts.items()):
                metric.add_sample(metric.name, COMPONENT | labels | {label: value}, count)
        streams.add_sample(streams.name, COMPONENT | labels, said.streams)
        connected.add_sample(connected.name, labels, said.connected)
        waiting.add_sample(waiting.name, labels, said.silent)
        for collection, count in said.collections.items():
            held.add_sample(held.name, labels | {"collection": collection}, count)
        if said.traffic.last_response_seconds is not None:
            age.add_sample(age.name, labels, said.traffic.last_response_seconds)
        total = 0
        for bound, count in zip((*map(str, SIZE_BOUNDS), "+Inf"), said.traffic.sizes, strict=True):
            total += count
            sizes.add_sample(f"{sizes.name}_bucket", COMPONENT | labels | {"le": bound}, total)
        sizes.add_sample(f"{sizes.name}_sum", COMPONENT | labels, said.traffic.bytes_received)
        sizes.add_sample(f"{sizes.name}_count", COMPONENT | labels, total)
    yield from (acks, nacks, failures, streams, sizes, connected, held, waiting, age)
    clients = Metric("istio_mcp_clients_total", "Sinks that read from us now", "gauge")
    clients.add_sample(clients.name, COMPONENT, served.streams)
    sent = Metric("mesh_pilot_mcp_served", "Responses sent to sinks", "unknown")
    sent.add_sample(sent.name, {}, served.sent)
    refused = Metric("mesh_pilot_mcp_served_refused", "Responses that sinks refused", "unknown")
    refused.add_sample(refused.name, {}, served.refused)
    yield from (clients, sent, refused)
