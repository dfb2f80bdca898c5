"""Metrics of connected proxies: what they were sent, how long it took, what they refuse, what cannot be generated.

Source of the names: Istio, ``pkg/xds/monitoring.go``, ``pilot/pkg/xds/monitoring.go``, ``typed_xds_cache.go``.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from mesh_pilot.engine.failures import COLLECTION, INDEXES, OBJECT, PROXY, Condition
from mesh_pilot.explain.truth.facts import of_proxies
from mesh_pilot.explain.truth.states import TruthState
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, RESOURCE_TYPES, ROUTE
from mesh_pilot.ops.metrics.samples import (
    TYPE_LABELS,
    bounded,
    by_type,
    histogram,
    histograms,
    metric,
    one,
    several,
)
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.problems import conflict_counts, failure_counts, patch_counts
from mesh_pilot.xds.ads.statistics import PushTimesState

_SYNC = {
    TruthState.IN_FORCE: "synced",
    TruthState.WARMING: "warming",
    TruthState.PENDING: "behind",
    TruthState.REFUSED: "refusing",
}
_SHORT_TYPES = tuple(t.short for t in RESOURCE_TYPES.values())
_REJECTS = tuple((t, TYPE_LABELS[t]) for t in (CLUSTER, ENDPOINT, LISTENER, ROUTE))


def proxies(state: PlaneState) -> Iterator[Metric]:
    """Connected proxies, and the responses to them."""
    server = state.xds.statistics()
    xds = server.xds
    yield bounded("pilot_xds", "Proxies connected, by their version", "gauge", "version", xds.connected_by_version)
    agents = "Agents connected next to their proxies, by their version"
    yield bounded("mesh_pilot_agents", agents, "gauge", "version", xds.agents_by_version)
    found = of_proxies(state.xds.status)
    sync = {word: found[each] for each, word in _SYNC.items()}
    yield several("mesh_pilot_proxies", "Proxies by what they have of the latest revision", "gauge", "sync", sync)
    yield by_type("pilot_xds_pushes", "Responses sent", xds.pushes)
    yield by_type("pilot_total_xds_rejects", "Responses that proxies refused", xds.rejects, always=True)
    yield by_type("pilot_xds_expired_nonce", "Requests that answer an older response", xds.stale_requests)
    yield by_type("mesh_pilot_xds_acks", "Responses that proxies accepted", xds.acks)
    yield by_type("mesh_pilot_xds_sent_bytes", "Bytes of responses sent", xds.bytes_sent)
    text = "Streams ended with an error, by status"
    yield several("mesh_pilot_xds_refused_streams", text, "counter", "status", xds.refused_streams)
    yield one("mesh_pilot_xds_unserved_types", "Types not served that streams asked for", "counter", xds.unserved)
    text = "Streams ended as a client asked for too much"
    yield several("mesh_pilot_xds_bound_exceeded", text, "counter", "bound", xds.exceeded_bounds)
    yield one("mesh_pilot_xds_delayed_requests", "Requests that waited", "counter", xds.delayed_requests)
    yield one("mesh_pilot_xds_delayed_streams", "New streams that waited", "counter", xds.delayed_streams)
    suppressed = server.suppressed_log_lines
    yield one("mesh_pilot_xds_suppressed_log_lines", "Log lines not written", "counter", suppressed)
    yield from _times(xds.times)
    encoder = server.encoder
    text = "Responses found encoded, and those that were not"
    reads = {"hit": encoder.shared, "miss": encoder.encoded}
    yield several("xds_cache_reads", text, "counter", "type", reads)
    evicted = {"size": encoder.evicted, "clear": encoder.trimmed}
    yield several("xds_cache_evictions", "Encoded responses that left the cache", "counter", "type", evicted)
    yield one("xds_cache_size", "Encoded responses in the cache", "gauge", encoder.cached)


def _times(xds: PushTimesState) -> Iterator[Metric]:
    converged = xds.convergence_seconds
    yield histogram("pilot_proxy_convergence_time", "Seconds from a change to its last ACK", converged)
    queued = xds.queue_seconds
    yield histogram("pilot_proxy_queue_time", "Seconds that a proxy waits until its push begins", queued)
    yield histograms(
        "pilot_xds_push_time",
        "Seconds to generate and send a response",
        [({"type": TYPE_LABELS[type_url]}, each) for type_url, each in xds.push_seconds.items()],
    )
    yield histogram("pilot_xds_send_time", "Seconds to send a generated response", xds.send_seconds)
    yield histograms(
        "pilot_xds_config_size_bytes",
        "Sizes of responses",
        [({"type": type_url}, each) for type_url, each in xds.sizes.items()],
    )


def findings(state: PlaneState) -> Iterator[Metric]:
    """Problems of the connected proxies."""
    largest = state.xds.status.statistics().largest_request
    yield one("pilot_xds_recv_max", "Bytes of the largest request so far", "gauge", largest)
    yield from _rejects(state)
    found = state.catalog.diagnostics()
    text = "Patches that could not be carried out"
    yield bounded("mesh_pilot_envoy_filter_problems", text, "gauge", "name", patch_counts(found))
    for kind, count in conflict_counts(found).items():
        yield one(kind.value, "Services or Gateways that have no place on a listener", "gauge", count)


def _rejects(state: PlaneState) -> Iterator[Metric]:
    """Proxies that refuse a type now."""
    refusing = state.xds.status.refusing()
    for type_url, short in _REJECTS:
        nodes = dict.fromkeys(refusing.get(type_url, ()), 1)
        yield bounded(f"pilot_xds_{short}_reject", f"Proxies that refuse {short.upper()} now", "gauge", "node", nodes)


def failures(state: PlaneState) -> Iterator[Metric]:
    """Internal errors."""
    standing = failure_counts(state.failures())
    total = state.world.failed.total
    name, text = "pilot_total_xds_internal_errors", "Resources that could not be generated, since the start"
    yield one(name, text, "counter", sum(total[kind] for kind in (*_SHORT_TYPES, PROXY)))
    now = metric("mesh_pilot_failing_resources", "What cannot be generated now, and its state", "gauge")
    for kind in (*_SHORT_TYPES, PROXY, OBJECT, INDEXES, COLLECTION):
        for condition in Condition:
            now.add_sample(now.name, {"type": kind.lower(), "state": condition.value}, standing[kind, condition])
    yield now
    name, text = "mesh_pilot_intake_errors", "Internal errors while objects were taken in"
    yield one(name, text, "counter", state.world.statistics().failures)
