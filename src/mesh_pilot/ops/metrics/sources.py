"""Metrics of the sources, of the state that is kept of them, and of MCP.

Source of the names: Istio, ``pkg/mcp``, ``pilot/pkg/model/jwks_resolver.go``, ``pkg/wasm``,
``pilot/pkg/util/informermetric``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import trio
from prometheus_client.core import Metric

from mesh_pilot.ops.metrics.samples import metric, one, several
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.sources.acme.source import AcmeSource
from mesh_pilot.sources.base.contract import AwaitingPods, Staleness, Watching
from mesh_pilot.sources.base.supervisor import SupervisorStatistics
from mesh_pilot.sources.jwks import KeySource
from mesh_pilot.sources.mcp.statistics import SIZE_BOUNDS, McpSourceStatistics, SinkServerStatistics
from mesh_pilot.sources.wasm.source import ModuleSource
from mesh_pilot.xds.config_api.server import McpServiceStatistics

_COMPONENT = {"component": "pilot"}


def sources(state: PlaneState) -> Iterator[Metric]:
    """Each source."""
    missing = set(state.world.unsynced())
    synced = metric("mesh_pilot_source_synced", "1 if a source's picture is complete", "gauge")
    items = metric("mesh_pilot_source_items", "Objects of a source", "gauge")
    rejected = metric("mesh_pilot_source_rejected", "What a source was given and refuses", "gauge")
    restarts = metric("mesh_pilot_source_restarts", "Restarts of a source that died", "counter")
    stale = metric("mesh_pilot_source_stale_seconds", "How old a picture is, while its source is silent", "gauge")
    held = metric("mesh_pilot_source_held_objects", "Objects in force that a source has lost at once", "gauge")
    ages, pictures = state.ages(), state.reducer.intake.held()
    for supervisor in state.supervisors:
        own = supervisor.statistics()
        labels = {"source": own.name}
        synced.add_sample(synced.name, labels, own.name not in missing)
        items.add_sample(items.name, labels, own.source.items)
        rejected.add_sample(rejected.name, labels, own.source.rejected)
        restarts.add_sample(restarts.name, labels, own.restarts)
        if own.name in ages or isinstance(own.source, Staleness):
            stale.add_sample(stale.name, labels, ages.get(own.name, 0.0))
        held.add_sample(held.name, labels, pictures[own.name].objects if own.name in pictures else 0)
    yield from (synced, items, rejected, restarts, stale, held)


def fetches(state: PlaneState) -> Iterator[Metric]:
    """Requests to servers of others: for key sets, certificates and modules, and lists and watches."""
    for supervisor in state.supervisors:
        if isinstance(supervisor.source, KeySource):
            own = supervisor.source.statistics()
            name, text = "pilot_jwks_resolver_network_fetch", "Fetches of key sets"
            yield one(f"{name}_success_total", f"{text} that succeeded", "counter", own.fetched)
            yield one(f"{name}_fail_total", f"{text} that failed", "counter", own.failed)
        if isinstance(supervisor.source, AcmeSource):
            acme = supervisor.source.statistics()
            by_result = {"success": acme.issued, "failure": acme.failed}
            text = "Orders of certificates, by result"
            yield several("mesh_pilot_acme_orders", text, "counter", "result", by_result)
            name, text = "mesh_pilot_acme_certificate_expiry_timestamp", "The end of a credential that is ordered"
            yield several(name, text, "gauge", "credential", {path: at.timestamp() for path, at in acme.ends.items()})
        if isinstance(supervisor.source, ModuleSource):
            own, (modules, size) = supervisor.source.statistics(), supervisor.source.cached
            by_result = {"success": own.fetched, "failure": own.failed}
            text = "Fetches of WebAssembly modules, by result"
            yield several("wasm_remote_fetch_count", text, "counter", "result", by_result)
            yield one("wasm_cache_entries", "WebAssembly modules on disk", "gauge", modules)
            yield one("mesh_pilot_wasm_cache_bytes", "Size of the WebAssembly modules on disk", "gauge", size)
    supervised = {supervisor.source.name: supervisor.source.statistics() for supervisor in state.supervisors}
    text = "Lists and watches of a source that failed"
    counts = {name: own.watch_errors for name, own in supervised.items() if isinstance(own, Watching)}
    yield several("controller_sync_errors_total", text, "counter", "cluster", counts)
    pending = sum(own.pending_pods for own in supervised.values() if isinstance(own, AwaitingPods))
    yield one("pilot_k8s_endpoints_pending_pod", "Pods with endpoints that are not known yet", "gauge", pending)


def kept(state: PlaneState) -> Iterator[Metric]:
    """The state."""
    if state.recorder is None:
        return
    own, now = state.recorder.statistics(), trio.current_time()
    yield one("mesh_pilot_state_bytes", "Size of the file of the state", "gauge", own.bytes)
    yield one("mesh_pilot_state_writes", "Writes into it", "counter", own.writes)
    yield one("mesh_pilot_state_failures", "Writes that failed", "counter", own.failures)
    failing = 0.0 if own.failing_since is None else now - own.failing_since
    yield one("mesh_pilot_state_failing_seconds", "Seconds for which writing has failed", "gauge", failing)
    age = 0.0 if own.last_write is None else now - own.last_write
    yield one("mesh_pilot_state_write_age_seconds", "Time since the last write", "gauge", age)
    ages = metric("mesh_pilot_state_picture_age_seconds", "Age of the picture that is kept of a source", "gauge")
    for source, at in own.confirmed.items():
        ages.add_sample(ages.name, {"source": source}, max(0.0, time.time() - at.timestamp()))
    yield ages


def mcp(state: PlaneState) -> Iterator[Metric]:
    """MCP, as sink and as server."""
    supervised = (supervisor.statistics() for supervisor in state.supervisors)
    yield from _mcp_metrics(supervised, state.mcp.statistics())


def _mcp_metrics(supervised: Iterable[SupervisorStatistics], served: McpServiceStatistics) -> Iterator[Metric]:
    """MCP, as sink and as server, under the names of Istio's ``pkg/mcp``."""
    acks = Metric("istio_mcp_request_acks_total", "Responses accepted", "unknown")
    nacks = Metric(
        "istio_mcp_request_nacks_total", "Responses refused, for some of their objects or as a whole", "unknown"
    )
    failures = Metric("istio_mcp_recv_failures_total", "Streams that ended with an error, by status", "unknown")
    streams = Metric("istio_mcp_reconnections", "Streams opened", "unknown")
    sizes = Metric("istio_mcp_message_sizes_bytes", "Sizes of responses", "histogram")
    connected = Metric("mesh_pilot_mcp_connected", "1 if a stream is open", "gauge")
    resources = Metric("mesh_pilot_mcp_resources", "Resources held", "gauge")
    waiting = Metric("mesh_pilot_mcp_silent_collections", "Collections asked for and not answered yet", "gauge")
    age = Metric("mesh_pilot_mcp_last_response_age_seconds", "Seconds since the last response", "gauge")
    for own in supervised:
        source = own.source
        if not isinstance(source, (McpSourceStatistics, SinkServerStatistics)):
            continue
        labels = {"source": own.name}
        for counted, counts, label in (
            (acks, source.traffic.acks, "collection"),
            (nacks, source.traffic.nacks, "collection"),
            (failures, source.traffic.failures, "code"),
        ):
            for value, count in sorted(counts.items()):
                counted.add_sample(counted.name, _COMPONENT | labels | {label: value}, count)
        streams.add_sample(streams.name, _COMPONENT | labels, source.streams)
        connected.add_sample(connected.name, labels, source.connected)
        waiting.add_sample(waiting.name, labels, source.silent)
        for collection, count in source.collections.items():
            resources.add_sample(resources.name, labels | {"collection": collection}, count)
        if source.traffic.last_response_seconds is not None:
            age.add_sample(age.name, labels, source.traffic.last_response_seconds)
        total = 0
        for bound, count in zip((*map(str, SIZE_BOUNDS), "+Inf"), source.traffic.sizes, strict=True):
            total += count
            sizes.add_sample(f"{sizes.name}_bucket", _COMPONENT | labels | {"le": bound}, total)
        sizes.add_sample(f"{sizes.name}_sum", _COMPONENT | labels, source.traffic.bytes_received)
        sizes.add_sample(f"{sizes.name}_count", _COMPONENT | labels, total)
    yield from (acks, nacks, failures, streams, sizes, connected, resources, waiting, age)
    clients = Metric("istio_mcp_clients_total", "Sinks that read from us now", "gauge")
    clients.add_sample(clients.name, _COMPONENT, served.streams)
    sent = Metric("mesh_pilot_mcp_served", "Responses sent to sinks", "unknown")
    sent.add_sample(sent.name, {}, served.sent)
    refused = Metric("mesh_pilot_mcp_served_refused", "Responses that sinks refused", "unknown")
    refused.add_sample(refused.name, {}, served.refused)
    yield from (clients, sent, refused)
