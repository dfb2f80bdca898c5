"""Proxies that read the same sets by the same names share what is selected, and each has what it requests."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest

from mesh_pilot.engine.patched import Names
from mesh_pilot.engine.snapshots import Selection, Snapshot, SnapshotStore, snapshot_of
from mesh_pilot.envoy.catalog.joined_sets import Joins, Part
from mesh_pilot.model.resource import ENDPOINT, make_resource


@attrs.define(eq=False)
class Named:
    """A set that is read by name."""

    now: Snapshot
    is_plan: bool = False

    def snapshot(self) -> Snapshot:
        return self.now

    def ask(self, names: Names) -> Snapshot:
        return self.now

    def has_asked(self, names: Names) -> bool:
        return True


def test_a_change_is_selected_once_for_all_who_request_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    selected: list[Snapshot] = []
    select = Selection.of

    def counted(self: Selection, table: Snapshot, names: Names) -> Snapshot:
        if table is not self.table:
            selected.append(table)
        return select(self, table, names)

    monkeypatch.setattr(Selection, "of", counted)
    store = SnapshotStore()
    part = Named(snapshot_of(make_resource(name, ENDPOINT, b"old") for name in "abcd"))
    joins, names, others = Joins(store), store.names("ab"), store.names("bc")
    proxies = [joins.of((cast(Part, cast(Any, part)),)) for _ in range(20)]
    assert {proxy.select(names) for proxy in proxies} == {proxies[0].select(names)}
    part.now = store.edit(part.now, [make_resource("b", ENDPOINT, b"new")])
    assert all(proxy.select(names).entries["b"].body == b"new" for proxy in proxies)
    assert len(selected) == 2
    assert proxies[0].select(others).entries.keys() == {"b", "c"}
    assert proxies[1].select(names).entries.keys() == {"a", "b"}
    assert [proxy.latest.entries.keys() for proxy in proxies[:2]] == [{"b", "c"}, {"a", "b"}]
