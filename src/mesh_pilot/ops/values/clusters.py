"""The clusters whose services are read: the own one, and others by kubeconfig."""

from __future__ import annotations

import attrs

from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.sources.base.contract import ClusterMember, ClusterStatus, OtherClusters, SyncStatus


@attrs.frozen
class ClusterState:
    """A cluster whose services are read, with its state."""

    id: str
    own: bool
    """True for a cluster that a flag names."""
    status: str
    origin: str
    """The file or Secret with its kubeconfig; empty for the own one."""
    server: str
    items: int
    """Services and endpoint sets that are in force of it."""
    trouble: str

    @classmethod
    def of(cls, own: ClusterStatus, items: int, *, is_own: bool) -> ClusterState:
        return cls(own.id, is_own, own.status.value, own.origin, own.server, items, own.trouble)


def clusters(state: PlaneState) -> list[ClusterState]:
    """The clusters, the own ones first; empty if none is read."""
    others: dict[str, ClusterStatus] = {}
    members: dict[str, ClusterState] = {}
    for supervisor in state.supervisors:
        own = supervisor.statistics()
        if isinstance(own.source, OtherClusters):
            others |= {each.id: each for each in own.source.clusters}
        if isinstance(supervisor.source, ClusterMember):
            trouble = getattr(own.source, "trouble", "") or own.last_error
            sync = SyncStatus.SYNCED if own.ever_synced else SyncStatus.SYNCING
            server = getattr(own.source, "server", "")
            status = ClusterStatus(supervisor.source.cluster_id, "", sync, server, trouble)
            members[status.id] = ClusterState.of(status, own.source.items, is_own=True)
    found = [each for id, each in sorted(members.items()) if id not in others]
    for id, status in sorted(others.items()):
        found.append(ClusterState.of(status, members[id].items if id in members else 0, is_own=False))
    return found
