"""Pages about leader election: who leads, and which replicas there are."""

from __future__ import annotations

import attrs

from mesh_pilot.model.json import Json
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.replicas.election.base import Leader


def page(state: PlaneState) -> Json:
    """``/debug/leaderz``."""
    own = state.election.statistics()
    return {
        "election": own.kind,
        "lock": own.place,
        "replica": own.replica.id,
        "leads": own.leads,
        "leader": _leader(own.leader) if own.leader is not None else None,
        "changes": own.changes,
        "duties": list(own.tasks),
        "trouble": own.trouble,
        "replicas": [attrs.asdict(replica) for replica in own.replicas],
    }


def _leader(leader: Leader) -> Json:
    since = leader.since.isoformat(timespec="seconds") if leader.since is not None else None
    return {"id": leader.id, "term": leader.term, "since": since, "host": leader.host, "address": leader.address}
