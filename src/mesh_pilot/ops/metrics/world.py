"""Metrics of the World: what there is, what changed, what is withheld, and the work that it makes.

Source of the names: Istio, ``pilot/pkg/model/push_context.go``, ``pilot/pkg/xds/monitoring.go``,
``pkg/webhooks/validation/server/monitoring.go``.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from mesh_pilot.model.service import Resolution
from mesh_pilot.ops.metrics.samples import histogram, metric, one, several
from mesh_pilot.ops.observers.changes import ChangeStatistics
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.safety.rollout.progress import RolloutPhase

_DNS = (Resolution.DNS, Resolution.DNS_ROUND_ROBIN)


def content(state: PlaneState) -> Iterator[Metric]:
    """Services, endpoints and objects."""
    own = state.world.statistics()
    yield one("pilot_services", "Services known", "gauge", own.services)
    yield one("pilot_virt_services", "VirtualServices known", "gauge", own.configs.get("VirtualService", 0))
    yield one("mesh_pilot_endpoints", "Endpoints known", "gauge", own.endpoints)
    yield one("pilot_endpoint_not_ready", "Endpoints that are not healthy", "gauge", own.not_ready)
    having = state.world.endpoints
    empty = [found.resolution for key, found in state.world.services.items() if found and key not in having]
    without = sum(1 for resolution in empty if resolution is Resolution.CLIENT_SIDE)
    yield one("pilot_eds_no_instances", "Services without endpoints", "gauge", without)
    without = sum(1 for resolution in empty if resolution in _DNS)
    yield one("pilot_dns_cluster_without_endpoints", "Services by DNS without endpoints", "gauge", without)
    yield one("mesh_pilot_revision", "Published states of the world", "counter", own.revision)
    yield one("mesh_pilot_rejected_objects", "Objects that are refused now", "gauge", own.rejected)
    yield several("mesh_pilot_configs", "Objects in force, by kind", "gauge", "kind", own.configs)


def changes(state: PlaneState) -> Iterator[Metric]:
    """Changes of the World and how they came about."""
    own = state.changes.statistics()
    configs = metric("pilot_k8s_cfg_events", "Objects added, updated, deleted", "counter")
    for (kind, event), count in sorted(own.config_events.items()):
        configs.add_sample(configs.name, {"type": kind, "event": event}, count)
    yield configs
    services = metric("pilot_k8s_reg_events", "Services added, updated, deleted by registries", "counter")
    for event, count in sorted(own.service_events.items()):
        services.add_sample(services.name, {"type": "Services", "event": event}, count)
    yield services
    if state.webhooks is None:  # these are the webhook's, where there is one
        yield from _validated(own)
    warnings = "Warnings about what is in force, by kind"
    yield several("mesh_pilot_config_warnings", warnings, "gauge", "kind", own.warnings)
    text = "What is written and has no effect, by kind"
    yield several("mesh_pilot_without_effect", text, "gauge", "kind", own.without_effect)
    yield several("pilot_push_triggers", "Published changes, by what was in them", "counter", "type", own.triggers)
    debounced = own.debounce_seconds
    yield histogram("pilot_debounce_time", "Seconds from a first change to its publication", debounced)
    applied = own.apply_seconds
    yield histogram("pilot_pushcontext_init_seconds", "Seconds to apply changes to the world", applied)
    yield several("pilot_inbound_updates", "Events of sources that took effect", "counter", "type", own.updates)
    reducer = state.reducer.statistics()
    yield one("mesh_pilot_debounced_events", "Events that shared a publication", "counter", reducer.debounced)
    waiting = reducer.waiting
    yield one("pilot_worker_queue_depth", "Events that wait to be published", "gauge", waiting, queueID="reducer")


def _validated(own: ChangeStatistics) -> Iterator[Metric]:
    """Objects that sources read."""
    passed = metric("galley_validation_passed", "Objects that were read and are good", "counter")
    for (group, version, resource), count in sorted(own.accepted.items()):
        passed.add_sample(passed.name, {"group": group, "version": version, "resource": resource}, count)
    yield passed
    failed = metric("galley_validation_failed", "Objects that were read and refused", "counter")
    for (group, version, resource), count in sorted(own.refused.items()):
        labels = {"group": group, "version": version, "resource": resource, "reason": "invalid_resource"}
        failed.add_sample(failed.name, labels, count)
    yield failed


def quarantine(state: PlaneState) -> Iterator[Metric]:
    """Withheld objects, for each worker's proxies."""
    if state.quarantine is None:
        return
    withheld = state.facts().withheld_kinds()
    text = "Objects withheld from proxies now, by kind"
    yield several("mesh_pilot_quarantined_objects", text, "gauge", "kind", withheld)
    own = state.quarantine.statistics()
    yield one("mesh_pilot_refusals_held", "Refusals that nothing is done about now", "gauge", own.held)
    yield one("mesh_pilot_quarantine_verdicts", "Objects withheld since the start", "counter", own.verdicts)
    yield one("mesh_pilot_quarantine_trials", "Trials since the start", "counter", own.trials)


def rollout(state: PlaneState) -> Iterator[Metric]:
    """The rollout of a change to a share of the proxies first."""
    if state.rollouts is None:
        return
    progress = state.rollouts.progress
    own = progress.state
    by_phase = {str(phase): int(progress.phase is phase) for phase in RolloutPhase}
    yield several("mesh_pilot_rollout_phase", "1 for the phase of the rollout", "gauge", "phase", by_phase)
    objects = len(own.changes) if own is not None else 0
    yield one("mesh_pilot_rollout_objects", "Changed objects that not all proxies have", "gauge", objects)
    yield one("mesh_pilot_rollout_canary", "Proxies chosen to have them", "gauge", len(own.canary) if own else 0)
    waits = int(progress.phase is RolloutPhase.RUNNING and bool(state.rollouts.finding.waits))
    yield one("mesh_pilot_rollout_traffic_unknown", "1 while too little traffic is known to judge", "gauge", waits)
    ends = {"complete": progress.finished, "taken back": progress.taken_back}
    yield several("mesh_pilot_rollouts", "Rollouts since the start, by their end", "counter", "result", ends)


def traces(state: PlaneState) -> Iterator[Metric]:
    """Spans of traces of changes."""
    own = state.traces.statistics() if state.traces is not None else None
    counts = {"exported": own.exported if own else 0, "lost": own.lost if own else 0}
    yield several("mesh_pilot_trace_spans", "Spans of traces, by what became of them", "counter", "result", counts)


def work(state: PlaneState) -> Iterator[Metric]:
    """The memo table."""
    memo = state.world.memo.statistics()
    yield one("mesh_pilot_derived_values", "Derived values held", "gauge", memo.derived)
    yield several("mesh_pilot_translator_calls", "Calls of translators", "counter", "function", memo.calls)
