"""The clusters whose services are read: the own one, and others by kubeconfig."""

from __future__ import annotations

import attrs

from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.sources.base.contract import ClusterMember, ClusterStatus, OtherClusters, SyncStatus


@attrs.frozen
class ShownCluster:
    """A cluster as it is now."""

    status: ClusterStatus
    is_own: bool
    """True for a cluster that a flag names."""
    items: int
    """Services and endpoint sets that are in force of it."""


def clusters(state: PlaneState) -> list[ShownCluster]:
    """The clusters, the own ones first; empty if none is read."""
    others: dict[str, ClusterStatus] = {}
    members: dict[str, ShownCluster] = {}
    for supervisor in state.supervisors:
        own = supervisor.statistics()
        if isinstance(own.source, OtherClusters):
            others |= {each.id: each for each in own.source.clusters}
        if isinstance(supervisor.source, ClusterMember):
            trouble = getattr(own.source, "trouble", "") or own.last_error
            sync = SyncStatus.SYNCED if own.ever_synced else SyncStatus.SYNCING
            server = getattr(own.source, "server", "")
            status = ClusterStatus(supervisor.source.cluster_id, "", sync, server, trouble)
            members[status.id] = ShownCluster(status, True, own.source.items)
    found = [each for id, each in sorted(members.items()) if id not in others]
    for id, status in sorted(others.items()):
        found.append(ShownCluster(status, False, members[id].items if id in members else 0))
    return found
