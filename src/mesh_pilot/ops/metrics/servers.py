"""Metrics of the servers: gRPC as go-grpc-prometheus names them, its connections, and the HTTP ports.

Source of the names: "Go gRPC Interceptors for Prometheus monitoring", which istiod uses with its histogram.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import Metric

from mesh_pilot.base.output import dropped_lines
from mesh_pilot.model.histogram import HistogramState
from mesh_pilot.net.rpc.calls import HANDLING_BOUNDS, CallStatistics, status_name, sum_calls
from mesh_pilot.ops.metrics.samples import histograms, metric, one, several
from mesh_pilot.ops.plane.state import PlaneState


def grpc_calls(state: PlaneState) -> Iterator[Metric]:
    """Calls by method, of all gRPC servers."""
    found: dict[str, list[CallStatistics]] = defaultdict(list)
    for server in state.rpc_servers:
        for path, calls in server.calls().items():
            found[path].append(calls)
    started = metric("grpc_server_started_total", "Calls that began", "counter")
    handled = metric("grpc_server_handled_total", "Calls that have ended, by their status", "counter")
    received = metric("grpc_server_msg_received_total", "Messages received", "counter")
    sent = metric("grpc_server_msg_sent_total", "Messages sent", "counter")
    times: list[tuple[dict[str, str], HistogramState]] = []
    for path, several_calls in sorted(found.items()):
        calls = sum_calls(several_calls)
        _, service, method = path.split("/", 2)
        labels = {"grpc_method": method, "grpc_service": service, "grpc_type": calls.kind}
        started.add_sample(started.name, labels, calls.started)
        received.add_sample(received.name, labels, calls.received)
        sent.add_sample(sent.name, labels, calls.sent)
        for status, count in sorted(calls.handled.items(), key=lambda item: item[0].value):
            handled.add_sample(handled.name, {**labels, "grpc_code": status_name(status)}, count)
        if calls.started:
            times.append((labels, HistogramState(HANDLING_BOUNDS, calls.seconds, calls.seconds_sum)))
    yield from (started, handled, received, sent)
    yield histograms("grpc_server_handling_seconds", "Seconds from the begin of a call to its end", times)


def connections(state: PlaneState) -> Iterator[Metric]:
    """gRPC connections."""
    grpc = [server.statistics() for server in state.rpc_servers]
    yield one("mesh_pilot_grpc_connections", "gRPC connections", "gauge", sum(s.connections_open for s in grpc))
    cut = sum(s.connections_cut for s in grpc)
    yield one("mesh_pilot_grpc_connections_cut", "connections closed through a fault of the peer", "counter", cut)
    oversized = sum(s.oversized_headers for s in grpc)
    yield one("mesh_pilot_grpc_oversized_headers", "calls with too large headers", "counter", oversized)
    for field, text, always in (
        ("failed_handshakes", "TLS handshakes that failed, by reason", ()),
        ("connections_retired", "connections ended for their age or their client's", ()),
        ("connections_refused", "connections closed at their limit, by reason", ("total", "stalled", "share")),
    ):
        counts = Counter(dict.fromkeys(always, 0))  # a rate needs a start
        for server in grpc:
            counts.update(getattr(server, field))
        yield several(f"mesh_pilot_grpc_{field}", text, "counter", "reason", counts)
    yield one("mesh_pilot_grpc_streams", "gRPC streams", "gauge", sum(s.streams_open for s in grpc))


def http(state: PlaneState) -> Iterator[Metric]:
    """The web and metrics ports."""
    connections = metric("mesh_pilot_http_connections", "HTTP connections", "gauge")
    requests = metric("mesh_pilot_http_requests", "HTTP responses, by status", "counter")
    closed = metric("mesh_pilot_http_closed", "HTTP connections that were closed, by reason", "counter")
    failures = metric("mesh_pilot_http_failures", "Internal errors in HTTP requests", "counter")
    for server in state.http_servers:
        own = server.statistics()
        labels = {"port": own.port}
        connections.add_sample(connections.name, labels, own.connections_open)
        for status, count in own.requests.items():
            requests.add_sample(requests.name, labels | {"status": str(status)}, count)
        for reason in ("timeouts", "malformed", "http2", "displaced", "refused"):
            closed.add_sample(closed.name, labels | {"reason": reason}, getattr(own, reason))
        failures.add_sample(failures.name, labels, own.failures)
    yield from (connections, requests, closed, failures)


def output(_: PlaneState) -> Iterator[Metric]:
    """Standard output and error."""
    yield several("mesh_pilot_output_dropped_lines", "Lines not taken", "counter", "output", dropped_lines())
