"""``/metrics``: the ``statistics()`` of all parts, under the names that Istio's dashboards use.

Istio's counters do not end in ``_total``. Prometheus' Python client would append it, so they are exposed as untyped,
which makes no difference to queries. Source of the names: Istio, "pilot-discovery", exported metrics.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs
import structlog
import trio
from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mesh_pilot import __version__
from mesh_pilot.config_api.server import McpServiceStatistics
from mesh_pilot.failures import COLLECTION, INDEXES, OBJECT, PROXY, Condition
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, RESOURCE_TYPES, ROUTE
from mesh_pilot.ops.ca_pages import rollout
from mesh_pilot.ops.caller_metrics import caller_metrics
from mesh_pilot.ops.quarantine_pages import quarantined_kinds, report
from mesh_pilot.ops.reports import conflict_counts, failure_counts, patch_counts
from mesh_pilot.ops.responses import printable
from mesh_pilot.ops.state import PlaneState
from mesh_pilot.ops.worker_metrics import WorkerMetrics, WorkerTotals
from mesh_pilot.rpc.rate_limits import LogLimiter
from mesh_pilot.security.authority.rotation import RotationPhase
from mesh_pilot.sources.base import Staleness
from mesh_pilot.sources.mcp.statistics import SIZE_BOUNDS, McpSourceStatistics, SinkServerStatistics
from mesh_pilot.sources.supervisor import SupervisorStatistics
from mesh_pilot.xds.messages import Phase
from mesh_pilot.xds.status import Durations

log = structlog.get_logger(scope="ops")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_MISSING, _MISSING_TEXT = "mesh_pilot_missing_metrics", "Groups of metrics that could not be collected"

COMPONENT = {"component": "pilot"}

_SHORT_TYPES = tuple(t.short for t in RESOURCE_TYPES.values())
_TYPE_LABELS = {url: t.short.lower() for url, t in RESOURCE_TYPES.items()}


_OF_PROCESS = (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR)


class Metrics:
    """The Prometheus registry of one control plane."""

    def __init__(self, state: PlaneState) -> None:
        self._registry = CollectorRegistry()
        self._parts = _PlaneCollector(state)
        self._registry.register(self._parts)
        for collector in _OF_PROCESS:
            self._registry.register(collector)

    def of_this_worker(self) -> WorkerMetrics:
        """The metrics that are made of those of all workers."""
        parts = self._parts
        parts.missing = 0
        process = [metric for collector in _OF_PROCESS for metric in collector.collect()]
        summed, greatest = list(parts.collect_groups(parts.summed)), list(parts.collect_groups(parts.greatest))
        return WorkerMetrics(os.getpid(), [*summed, parts.missing_metric()], greatest, process)

    def of_all(self, workers: Mapping[int, WorkerMetrics], restarts: Mapping[int, int], total: WorkerTotals) -> bytes:
        """Everything in Prometheus' text format, with the other workers' metrics as they answered."""
        parts = self._parts
        own = self.of_this_worker()
        parts.missing = 0
        of_first = list(parts.collect_groups(parts.of_first))
        own = attrs.evolve(own, summed=[*own.summed, parts.missing_metric()])
        metrics = [*of_first, *total.merged({1: own, **workers}, restarts)]
        return generate_latest(_Collected(map(_escaped, metrics)))

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        try:
            return generate_latest(self._registry)
        except UnicodeEncodeError:
            self._parts.printable = True
            return generate_latest(self._registry)


class _PlaneCollector(Collector):
    """Collects the metrics of every part at each scrape."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self._limiter = LogLimiter()
        self.missing = 0
        """Groups that could not be collected since this was last set to 0."""
        self.of_first = (
            self._versions,
            self._world,
            self._changes,
            self._authority,
            self._election,
            self._sources,
            self._kept,
            self._trust,
            self._http,
            self._registrations,
        )
        """Groups that the first worker has alone, or all alike."""
        self.greatest = (self._failures, self._findings)
        """Groups of what several workers find in the same objects."""
        self.summed = (
            self._proxies,
            self._quarantine,
            self._signed,
            self._vault,
            self._mcp,
            self._callers,
            self._work,
        )
        """Groups that each worker has for its proxies."""
        self.printable = False
        """True if labels with lone surrogates exist, so that all labels have to be checked."""

    def describe(self) -> Iterator[Metric]:
        """Empty, so that registration neither checks names nor calls parts before they run."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All metrics. A group that fails is omitted and counted in ``mesh_pilot_missing_metrics``."""
        self.missing = 0
        for metric in self.collect_groups((*self.of_first, *self.greatest, *self.summed)):
            yield _escaped(metric) if self.printable else metric
        yield self.missing_metric()

    def missing_metric(self) -> Metric:
        """The number of groups that could not be collected."""
        return _one(_MISSING, _MISSING_TEXT, "gauge", self.missing)

    def collect_groups(self, groups: Iterable[Callable[[], Iterator[Metric]]]) -> Iterator[Metric]:
        """The metrics of these groups."""
        for group in groups:
            try:
                metrics = list(group())
            except Exception as error:
                self.missing += 1
                name = getattr(group, "__name__", "")
                if self._limiter.admit(name, time.monotonic()) is not None:
                    log.error("cannot collect a group of metrics", group=name.strip("_"), exc_info=error)
                continue
            yield from metrics

    def _versions(self) -> Iterator[Metric]:
        yield _one("istio_build", "Which version this is", "gauge", 1, component="pilot", tag=__version__)
        yield _one("pilot_info", "Which version this is", "gauge", 1, version=__version__)

    def _callers(self) -> Iterator[Metric]:
        yield from caller_metrics(self._state)

    def _mcp(self) -> Iterator[Metric]:
        supervised = (supervisor.statistics() for supervisor in self._state.supervisors)
        yield from _mcp_metrics(supervised, self._state.mcp.statistics())

    def _failures(self) -> Iterator[Metric]:
        standing = failure_counts(self._state.failures())
        total = self._state.world.failed.total
        name, text = "pilot_total_xds_internal_errors", "Resources that could not be generated, since the start"
        yield _one(name, text, "counter", sum(total[kind] for kind in (*_SHORT_TYPES, PROXY)))
        now = _metric("mesh_pilot_failing_resources", "What cannot be generated now, and its state", "gauge")
        for kind in (*_SHORT_TYPES, PROXY, OBJECT, INDEXES, COLLECTION):
            for condition in Condition:
                now.add_sample(now.name, {"type": kind.lower(), "state": condition.value}, standing[kind, condition])
        yield now
        name, text = "mesh_pilot_intake_errors", "Internal errors while objects were taken in"
        yield _one(name, text, "counter", self._state.world.statistics().failures)

    def _world(self) -> Iterator[Metric]:
        world = self._state.world.statistics()
        yield _one("pilot_services", "Services known", "gauge", world.services)
        yield _one("pilot_virt_services", "VirtualServices known", "gauge", world.configs.get("VirtualService", 0))
        yield _one("mesh_pilot_endpoints", "Endpoints known", "gauge", world.endpoints)
        yield _one("mesh_pilot_revision", "Published states of the world", "counter", world.revision)
        yield _one("mesh_pilot_rejected_objects", "Objects that are refused now", "gauge", world.rejected)
        configs = _metric("mesh_pilot_configs", "Objects in force, by kind", "gauge")
        for kind, count in sorted(world.configs.items()):
            configs.add_sample(configs.name, {"kind": kind}, count)
        yield configs

    def _changes(self) -> Iterator[Metric]:
        changes = self._state.changes.statistics()
        configs = _metric("pilot_k8s_cfg_events", "Objects added, updated, deleted", "counter")
        for (kind, event), count in sorted(changes.config_events.items()):
            configs.add_sample(configs.name, {"type": kind, "event": event}, count)
        yield configs
        services = _metric("pilot_k8s_reg_events", "Services added, updated, deleted by registries", "counter")
        for event, count in sorted(changes.service_events.items()):
            services.add_sample(services.name, {"type": "Services", "event": event}, count)
        yield services
        for name, text, counts_by_kind in (
            ("mesh_pilot_config_warnings", "Warnings about what is in force, by kind", changes.warnings),
            ("mesh_pilot_without_effect", "What is written and has no effect, by kind", changes.without_effect),
        ):
            warnings = _metric(name, text, "gauge")
            for kind, count in sorted(counts_by_kind.items()):
                warnings.add_sample(warnings.name, {"kind": kind}, count)
            yield warnings
        triggers = _metric("pilot_push_triggers", "Published changes, by what was in them", "counter")
        for trigger, count in sorted(changes.triggers.items()):
            triggers.add_sample(triggers.name, {"type": trigger}, count)
        yield triggers
        yield _histogram(
            "pilot_debounce_time", "Seconds from a first change to its publication", changes.debounce_seconds
        )
        reducer = self._state.reducer.statistics()
        yield _one("pilot_inbound_updates", "Events received from sources", "counter", reducer.events, type="all")
        yield _one("mesh_pilot_debounced_events", "Events that shared a publication", "counter", reducer.debounced)

    def _proxies(self) -> Iterator[Metric]:
        xds = self._state.xds.status.statistics()
        connected = _metric("pilot_xds", "Proxies connected, by their version", "gauge")
        for version, count in sorted(xds.connected_by_version.items()):
            connected.add_sample(connected.name, {"version": version}, count)
        yield connected
        agents = _metric("mesh_pilot_agents", "Agents connected beside their proxies, by their version", "gauge")
        for version, count in sorted(xds.agents_by_version.items()):
            agents.add_sample(agents.name, {"version": version}, count)
        yield agents
        yield _by_type("pilot_xds_pushes", "Responses sent", xds.pushes)
        yield _by_type("pilot_total_xds_rejects", "Responses that proxies refused", xds.rejects, always=True)
        yield _by_type("mesh_pilot_xds_acks", "Responses that proxies accepted", xds.acks)
        yield _by_type("mesh_pilot_xds_sent_bytes", "Bytes of responses sent", xds.bytes_sent)
        refused = _metric("mesh_pilot_xds_refused_streams", "Streams ended with an error, by status", "counter")
        for status, count in sorted(xds.refused_streams.items()):
            refused.add_sample(refused.name, {"status": status}, count)
        yield refused
        yield _one("mesh_pilot_xds_unserved_types", "Types not served that streams asked for", "counter", xds.unserved)
        exceeded = _metric("mesh_pilot_xds_bound_exceeded", "Streams ended as a client asked for too much", "counter")
        for bound, count in sorted(xds.exceeded_bounds.items()):
            exceeded.add_sample(exceeded.name, {"bound": bound}, count)
        yield exceeded
        yield _one("mesh_pilot_xds_delayed_requests", "Requests that waited", "counter", xds.delayed_requests)
        yield _one("mesh_pilot_xds_delayed_streams", "New streams that waited", "counter", xds.delayed_streams)
        suppressed = self._state.xds.statistics().suppressed_log_lines
        yield _one("mesh_pilot_xds_suppressed_log_lines", "Log lines not written", "counter", suppressed)
        yield _histogram(
            "pilot_proxy_convergence_time", "Seconds from a change to its last ACK", xds.convergence_seconds
        )

    def _findings(self) -> Iterator[Metric]:
        """Problems of the connected proxies."""
        yield from self._rejects()
        found = self._state.catalog.diagnostics()
        failed = _metric("mesh_pilot_envoy_filter_problems", "Patches that could not be carried out", "gauge")
        for name, count in sorted(patch_counts(found).items()):
            failed.add_sample(failed.name, {"name": name}, count)
        yield failed
        for kind, count in conflict_counts(found).items():
            yield _one(kind.value, "Services or Gateways that have no place on a listener", "gauge", count)

    def _rejects(self) -> Iterator[Metric]:
        """Proxies that refuse a type now."""
        found = {t: _metric(f"pilot_xds_{name}_reject", f"{name.upper()} refused", "gauge") for t, name in _REJECTS}
        for connection in self._state.xds.status.connections():
            for each in connection.types:
                metric = found.get(each.type_url)
                if connection.proxy and metric is not None and each.subscription.phase is Phase.NACKED:
                    metric.add_sample(metric.name, {"node": connection.proxy.id}, 1)
        yield from found.values()

    def _registrations(self) -> Iterator[Metric]:
        """Under istiod's names where it has them."""
        if self._state.registrations is None:
            return
        own = self._state.registrations.statistics()
        for name, what, count in (
            ("success", "Workloads registered", own.registered),
            ("updates", "Registered workloads that came back or changed", own.updated),
            ("unregister", "Registered workloads that disconnected", own.unregistered),
            ("deletes", "Entries of registered workloads deleted", own.deleted),
            ("errors", "Registrations refused, and writes that failed", own.errors),
        ):
            yield _one(f"auto_registration_{name}_total", what, "counter", count)
        yield _one("mesh_pilot_auto_registered_entries", "Entries of registered workloads", "gauge", own.entries)
        yield _one("mesh_pilot_unhealthy_workloads", "Workloads reported ill", "gauge", own.unhealthy)
        reports = _metric("mesh_pilot_health_reports", "Reports of workloads' health", "counter")
        for is_healthy in (False, True):
            count = own.reports.get(is_healthy, 0)
            reports.add_sample(reports.name, {"healthy": str(is_healthy).lower()}, count)
        yield reports

    def _quarantine(self) -> Iterator[Metric]:
        if self._state.keeper is None:
            return
        objects = _metric("mesh_pilot_quarantined_objects", "Objects withheld from proxies now, by kind", "gauge")
        for kind, count in sorted(quarantined_kinds(report(self._state)).items()):
            objects.add_sample(objects.name, {"kind": kind}, count)
        yield objects
        own = self._state.keeper.statistics()
        yield _one("mesh_pilot_refusals_held", "Refusals that nothing is done about now", "gauge", own.held)
        yield _one("mesh_pilot_quarantine_verdicts", "Objects withheld since the start", "counter", own.verdicts)
        yield _one("mesh_pilot_quarantine_trials", "Trials since the start", "counter", own.trials)

    def _authority(self) -> Iterator[Metric]:
        """The CA, under the names of Istio's Citadel."""
        if self._state.callers.authority is None:
            return
        own = self._state.callers.authority.statistics()
        for name, what, end in (
            ("root_cert", "the root", own.root_not_after),
            ("cert_chain", "the first certificate of the CA's chain", own.chain_not_after),
        ):
            stamp = end.timestamp()
            yield _one(f"citadel_server_{name}_expiry_timestamp", f"End of {what}, Unix time", "gauge", stamp)
            left = stamp - time.time()
            yield _one(f"citadel_server_{name}_expiry_seconds", f"Seconds until {what} ends", "gauge", left)
        phases = _metric("mesh_pilot_ca_rotation", "Phase of the root's rotation", "gauge")
        for phase in RotationPhase:
            phases.add_sample(phases.name, {"phase": phase.value}, phase is own.phase)
        yield phases
        found = rollout(self._state)
        proxies = _metric("mesh_pilot_ca_proxies", "Proxies with secrets of the mesh, by what they have", "gauge")
        having = {"any": found.proxies, "roots": found.with_roots, "certificate": found.with_certificate}
        for has, count in having.items():
            proxies.add_sample(proxies.name, {"has": has}, count)
        yield proxies
        yield _one("mesh_pilot_ca_refused_files", "1 if the CA's files cannot be used", "gauge", bool(own.problem))

    def _election(self) -> Iterator[Metric]:
        own = self._state.election.statistics()
        yield _one("mesh_pilot_leader", "1 if this replica leads", "gauge", own.leads)
        yield _one("mesh_pilot_leader_changes_total", "Changes of the leader that were seen", "counter", own.changes)

    def _signed(self) -> Iterator[Metric]:
        if self._state.callers.authority is not None:
            signed = self._state.callers.authority.statistics().signed
            yield _one("mesh_pilot_ca_signed", "Certificates signed since the start", "counter", signed)

    def _vault(self) -> Iterator[Metric]:
        own = self._state.vault.statistics() if self._state.vault is not None else None
        yield _one("mesh_pilot_vault_signed", "Certificates that Vault signed", "counter", own.signed if own else 0)
        failed = _metric("mesh_pilot_vault_errors", "Requests to Vault that failed, by reason", "counter")
        for reason, count in sorted(own.failed.items()) if own else ():
            failed.add_sample(failed.name, {"reason": reason}, count)
        yield failed

    def _sources(self) -> Iterator[Metric]:
        missing = set(self._state.world.unsynced())
        synced = _metric("mesh_pilot_source_synced", "Whether a source's picture is in", "gauge")
        items = _metric("mesh_pilot_source_items", "Objects of a source", "gauge")
        rejected = _metric("mesh_pilot_source_rejected", "What a source was given and refuses", "gauge")
        restarts = _metric("mesh_pilot_source_restarts", "How often a source died and was started again", "counter")
        stale = _metric("mesh_pilot_source_stale_seconds", "How old a picture is, while its source is silent", "gauge")
        held = _metric("mesh_pilot_source_held_objects", "Objects in force that a source has lost at once", "gauge")
        ages, pictures = self._state.ages(), self._state.reducer.intake.held()
        for supervisor in self._state.supervisors:
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

    def _kept(self) -> Iterator[Metric]:
        if self._state.recorder is None:
            return
        own, now = self._state.recorder.statistics(), trio.current_time()
        yield _one("mesh_pilot_state_bytes", "Size of the file of the state", "gauge", own.bytes)
        yield _one("mesh_pilot_state_writes", "Writes into it", "counter", own.writes)
        yield _one("mesh_pilot_state_failures", "Writes that failed", "counter", own.failures)
        failing = 0.0 if own.failing_since is None else now - own.failing_since
        yield _one("mesh_pilot_state_failing_seconds", "For how long writing has failed", "gauge", failing)
        age = 0.0 if own.last_write is None else now - own.last_write
        yield _one("mesh_pilot_state_write_age_seconds", "Time since the last write", "gauge", age)
        ages = _metric("mesh_pilot_state_picture_age_seconds", "Age of the picture that is kept of a source", "gauge")
        for source, at in own.confirmed.items():
            ages.add_sample(ages.name, {"source": source}, max(0.0, time.time() - at.timestamp()))
        yield ages

    def _trust(self) -> Iterator[Metric]:
        trust = self._state.trust
        roots = _metric("mesh_pilot_trust_roots", "Roots that vouch for a trust domain", "gauge")
        for domain, bundle in {trust.domains.own: trust.own(), **trust.foreign()}.items():
            roots.add_sample(roots.name, {"trust_domain": domain}, len(bundle.roots))
        yield roots

    def _work(self) -> Iterator[Metric]:
        memo = self._state.world.memo.statistics()
        yield _one("mesh_pilot_derived_values", "Derived values held", "gauge", memo.derived)
        calls = _metric("mesh_pilot_translator_calls", "Calls of translators", "counter")
        for function, count in sorted(memo.calls.items()):
            calls.add_sample(calls.name, {"function": function}, count)
        yield calls
        grpc = [server.statistics() for server in self._state.rpc_servers]
        yield _one("mesh_pilot_grpc_connections", "gRPC connections", "gauge", sum(s.connections_open for s in grpc))
        cut = sum(s.connections_cut for s in grpc)
        yield _one("mesh_pilot_grpc_connections_cut", "connections closed through a fault of the peer", "counter", cut)
        oversized = sum(s.oversized_headers for s in grpc)
        yield _one("mesh_pilot_grpc_oversized_headers", "calls with too large headers", "counter", oversized)
        failed = _metric("mesh_pilot_grpc_failed_handshakes", "TLS handshakes that failed, by reason", "counter")
        for reason, count in sorted(sum((Counter(s.failed_handshakes) for s in grpc), Counter()).items()):
            failed.add_sample(failed.name, {"reason": reason}, count)
        yield failed
        for name, text in (("retired", "ended for their age or their client's"), ("refused", "beyond a limit")):
            ended = _metric(f"mesh_pilot_grpc_connections_{name}", f"connections {text}", "counter")
            for reason, count in sorted(
                sum((Counter(getattr(s, f"connections_{name}")) for s in grpc), Counter()).items()
            ):
                ended.add_sample(ended.name, {"reason": reason}, count)
            yield ended
        yield _one("mesh_pilot_grpc_streams", "gRPC streams", "gauge", sum(s.streams_open for s in grpc))

    def _http(self) -> Iterator[Metric]:
        """The web and metrics ports."""
        connections = _metric("mesh_pilot_http_connections", "HTTP connections", "gauge")
        requests = _metric("mesh_pilot_http_requests", "HTTP responses, by status", "counter")
        closed = _metric("mesh_pilot_http_closed", "HTTP connections that were closed, by reason", "counter")
        failures = _metric("mesh_pilot_http_failures", "Internal errors in HTTP requests", "counter")
        for server in self._state.http_servers:
            own = server.statistics()
            labels = {"port": own.port}
            connections.add_sample(connections.name, labels, own.connections_open)
            for status, count in own.requests.items():
                requests.add_sample(requests.name, labels | {"status": str(status)}, count)
            for reason in ("timeouts", "malformed", "http2", "displaced", "refused"):
                closed.add_sample(closed.name, labels | {"reason": reason}, getattr(own, reason))
            failures.add_sample(failures.name, labels, own.failures)
        yield from (connections, requests, closed, failures)


@attrs.frozen
class _Collected:
    """The part of a registry that ``generate_latest`` needs: metrics that are collected already."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


_REJECTS = tuple((t, _TYPE_LABELS[t]) for t in (CLUSTER, ENDPOINT, LISTENER, ROUTE))


def _escaped(metric: Metric) -> Metric:
    """The same metric with printable labels."""
    samples = (
        s._replace(labels={name: printable(str(value)) for name, value in s.labels.items()}) for s in metric.samples
    )
    metric.samples = list(samples)
    return metric


def _metric(name: str, help_text: str, kind: str) -> Metric:
    return Metric(name, help_text, "unknown" if kind == "counter" else kind)


def _one(name: str, help_text: str, kind: str, value: float, /, **labels: str) -> Metric:
    metric = _metric(name, help_text, kind)
    metric.add_sample(name, labels, value)
    return metric


def _by_type(name: str, help_text: str, values: Mapping[str, int], *, always: bool = False) -> Metric:
    """A counter by xDS type; with ``always``, types without a value are 0, so that rates have a start."""
    metric = _metric(name, help_text, "counter")
    for type_url, label in _TYPE_LABELS.items():
        if always or type_url in values:
            metric.add_sample(name, {"type": label}, values.get(type_url, 0))
    return metric


def _histogram(name: str, help_text: str, durations: Durations) -> Metric:
    metric = _metric(name, help_text, "histogram")
    total = 0
    for bound, count in zip((*map(str, durations.bounds), "+Inf"), durations.counts, strict=True):
        total += count
        metric.add_sample(f"{name}_bucket", {"le": bound}, total)
    metric.add_sample(f"{name}_sum", {}, durations.sum)
    metric.add_sample(f"{name}_count", {}, total)
    return metric


def _mcp_metrics(sources: Iterable[SupervisorStatistics], served: McpServiceStatistics) -> Iterator[Metric]:
    """MCP, as sink and as server, under the names of Istio's ``pkg/mcp``."""
    acks = Metric("istio_mcp_request_acks_total", "Responses accepted", "unknown")
    nacks = Metric(
        "istio_mcp_request_nacks_total", "Responses refused, for some of their objects or as a whole", "unknown"
    )
    failures = Metric("istio_mcp_recv_failures_total", "Streams that ended with an error, by status", "unknown")
    streams = Metric("istio_mcp_reconnections", "Streams opened", "unknown")
    sizes = Metric("istio_mcp_message_sizes_bytes", "Sizes of responses", "histogram")
    connected = Metric("mesh_pilot_mcp_connected", "Whether a stream is open", "gauge")
    resources = Metric("mesh_pilot_mcp_resources", "Resources held", "gauge")
    waiting = Metric("mesh_pilot_mcp_silent_collections", "Collections asked for and not answered yet", "gauge")
    age = Metric("mesh_pilot_mcp_last_response_age_seconds", "How long ago a response came last", "gauge")
    for own in sources:
        source = own.source
        if not isinstance(source, (McpSourceStatistics, SinkServerStatistics)):
            continue
        labels = {"source": own.name}
        for metric, counts, label in (
            (acks, source.traffic.acks, "collection"),
            (nacks, source.traffic.nacks, "collection"),
            (failures, source.traffic.failures, "code"),
        ):
            for value, count in sorted(counts.items()):
                metric.add_sample(metric.name, COMPONENT | labels | {label: value}, count)
        streams.add_sample(streams.name, COMPONENT | labels, source.streams)
        connected.add_sample(connected.name, labels, source.connected)
        waiting.add_sample(waiting.name, labels, source.silent)
        for collection, count in source.collections.items():
            resources.add_sample(resources.name, labels | {"collection": collection}, count)
        if source.traffic.last_response_seconds is not None:
            age.add_sample(age.name, labels, source.traffic.last_response_seconds)
        total = 0
        for bound, count in zip((*map(str, SIZE_BOUNDS), "+Inf"), source.traffic.sizes, strict=True):
            total += count
            sizes.add_sample(f"{sizes.name}_bucket", COMPONENT | labels | {"le": bound}, total)
        sizes.add_sample(f"{sizes.name}_sum", COMPONENT | labels, source.traffic.bytes_received)
        sizes.add_sample(f"{sizes.name}_count", COMPONENT | labels, total)
    yield from (acks, nacks, failures, streams, sizes, connected, resources, waiting, age)
    clients = Metric("istio_mcp_clients_total", "Sinks that read from us now", "gauge")
    clients.add_sample(clients.name, COMPONENT, served.streams)
    sent = Metric("mesh_pilot_mcp_served", "Responses sent to sinks", "unknown")
    sent.add_sample(sent.name, {}, served.sent)
    refused = Metric("mesh_pilot_mcp_served_refused", "Responses that sinks refused", "unknown")
    refused.add_sample(refused.name, {}, served.refused)
    yield from (clients, sent, refused)
