"""Plans: which resources a proxy gets, as queries."""

from __future__ import annotations

from collections.abc import Mapping

from mesh_pilot.engine import Query, derived
from mesh_pilot.model.resource import Resource
from mesh_pilot.world.view import View

ResourceQuery = Query[Resource | None]
"""The query for one resource; None if it no longer exists."""

Plan = Mapping[str, ResourceQuery]
"""Queries by resource name. Cheap to make and to compare: a plan encodes nothing."""

PlanQuery = Query[Plan]

PlanShards = tuple[PlanQuery, ...]
"""A plan in shards with distinct names, so that a change costs only its own shard."""


@derived
def single_shard(_: View, plan: PlanQuery) -> PlanShards:
    """A plan that is not sharded."""
    return (plan,)


def merged_plan(view: View, plans: PlanShards) -> Plan:
    """The union of the shards of a plan."""
    merged: dict[str, ResourceQuery] = {}
    for plan in plans:
        merged.update(plan.get(view))
    return merged
