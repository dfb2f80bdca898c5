"""Pages about leader election: who leads, and which replicas there are."""

from __future__ import annotations

import attrs

from mesh_pilot.model.json import Json
from mesh_pilot.ops.page.html import line, table
from mesh_pilot.ops.state import PlaneState
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


def replica_table(state: PlaneState) -> tuple[bool, str]:
    """The section of the web page: true if it shows no problem, and its HTML; empty without an election."""
    own = state.election.statistics()
    if own.kind == "none":
        return True, ""
    replicas = {replica.id: replica for replica in (own.replica, *own.replicas)}
    rows = [
        (
            replica.id + (" (this one)" if replica.id == own.replica.id else ""),
            "leads" if own.leader is not None and own.leader.id == replica.id else "follows",
            replica.host,
            replica.address,
            replica.version,
        )
        for replica in sorted(replicas.values(), key=lambda replica: replica.id)
    ]
    if own.leader is not None and own.leader.id not in replicas:
        rows.append((own.leader.id, "leads", own.leader.host, own.leader.address, ""))
    shown = table("Replicas", ("replica", "leader election", "host", "address", "version"), rows, "None.")
    if own.trouble:
        return False, shown + line(f"{own.place} cannot be reached: {own.trouble}", "bad")
    if own.leader is None:
        return False, shown + line("No replica leads.", "bad")
    return True, shown


def _leader(leader: Leader) -> Json:
    since = leader.since.isoformat(timespec="seconds") if leader.since is not None else None
    return {"id": leader.id, "term": leader.term, "since": since, "host": leader.host, "address": leader.address}
