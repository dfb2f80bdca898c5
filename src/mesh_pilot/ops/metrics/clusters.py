"""Metrics of the clusters whose services are read, under istiod's names."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from mesh_pilot.ops.metrics.samples import metric, one, several
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.clusters import clusters
from mesh_pilot.sources.base.contract import OtherClusters, SyncStatus


def cluster_metrics(state: PlaneState) -> Iterator[Metric]:
    """The clusters."""
    found = clusters(state)
    counts = {"local": sum(each.own for each in found), "remote": sum(not each.own for each in found)}
    yield several("istiod_managed_clusters", "Clusters whose services are read", "gauge", "cluster_type", counts)
    states = metric("istiod_remote_cluster_sync_status", "1 for the state that a remote cluster is in", "gauge")
    for each in found:
        if not each.own:
            for status in SyncStatus:
                labels = {"cluster": each.id, "cluster_type": "remote", "status": status.value}
                states.add_sample(states.name, labels, each.status == status.value)
    yield states
    timeouts: dict[str, int] = {}
    changes: dict[str, int] = {}
    rejected = 0
    for supervisor in state.supervisors:
        own = supervisor.source.statistics()
        if isinstance(own, OtherClusters):
            timeouts, changes, rejected = {**own.timeouts}, {**own.changes}, own.rejected
    text = "First pictures of a cluster that did not come in time"
    yield several("remote_cluster_sync_timeouts_total", text, "counter", "cluster", timeouts)
    text = "Kubeconfigs of clusters that came, changed or went"
    yield several("remote_cluster_secret_events_total", text, "counter", "event", changes)
    text = "Kubeconfigs of clusters that are not used"
    yield one("mesh_pilot_cluster_kubeconfigs_rejected", text, "gauge", rejected)
