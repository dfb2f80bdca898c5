"""Snapshots of two branches, such as what a quarantine trial sent and what is sent after it."""

from __future__ import annotations

from mesh_pilot.engine.snapshots import EMPTY, SnapshotStore
from tests.test_snapshots import NAMES, resource


def test_what_either_branch_has_changed_differs() -> None:
    store = SnapshotStore()
    base = store.edit(EMPTY, [resource(name) for name in NAMES])
    trial = store.edit(base, [resource(NAMES[0], "1")], [NAMES[1]])
    after = store.edit(base, [resource(NAMES[2], "2")])
    assert store.diff(trial, after) == store.diff(after, trial) == {*NAMES[:3]}
