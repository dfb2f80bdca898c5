"""A proxy whose scope has changed keeps what cannot be made for the new one, and nothing else of the old one."""

from __future__ import annotations

from typing import Any, cast

import attrs

from mesh_pilot.engine.snapshots import Snapshot, SnapshotStore, snapshot_of
from mesh_pilot.envoy.catalog.joined_sets import JoinedSet
from mesh_pilot.envoy.catalog.kept_resources import KeptResources
from mesh_pilot.envoy.catalog.resource_sets import Missing
from mesh_pilot.model.resource import CLUSTER, Resource, make_resource


@attrs.define
class Sets:
    """What is made for the new scope."""

    latest: Snapshot
    lacks: Missing

    def snapshot(self) -> Snapshot:
        return self.latest

    def missing(self) -> Missing:
        return self.lacks

    def get(self, name: str) -> Resource | None:
        return self.latest.entries.get(name)


def cluster(name: str, body: str = "old") -> Resource:
    return make_resource(name, CLUSTER, body.encode())


def bodies(found: Snapshot) -> dict[str, Any]:
    return {name: resource.body.decode() for name, resource in found.entries.items()}


def test_only_what_cannot_be_made_is_kept_and_only_until_it_can() -> None:
    before = snapshot_of([cluster("stays"), cluster("broken"), cluster("gone")])
    now = Sets(snapshot_of([cluster("stays", "new")]), Missing(names=frozenset({"broken"})))
    kept = KeptResources(SnapshotStore(), cast(JoinedSet, now), before)
    assert bodies(kept.snapshot()) == {"stays": "new", "broken": "old"}
    assert kept.get("gone") is None
    now.lacks = Missing(lists=True)  # any name may be missing
    assert bodies(kept.snapshot()) == {"stays": "new", "broken": "old", "gone": "old"}
    now.lacks = Missing()
    assert bodies(kept.snapshot()) == {"stays": "new"}
    now.lacks = Missing(names=frozenset({"broken"}))
    assert bodies(kept.snapshot()) == {"stays": "new"}
