"""The picture that analyzers look at: this plane's World, its connected proxies, its statuses."""

from __future__ import annotations

from itertools import chain

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.explain.analysis.analyze import problems_by_object
from mesh_pilot.explain.analysis.input import AnalysisInput, picture_of
from mesh_pilot.explain.analysis.traffic import SeenTraffic
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.conditions import statuses_now
from mesh_pilot.ops.values.observed_traffic import traffic_of_days
from mesh_pilot.ops.values.truth import not_followed, truth_now


async def picture_now(state: PlaneState, traffic: SeenTraffic | None = None) -> AnalysisInput:
    """The picture of now. What only translators see is computed on Trio's thread, in turns with the proxies."""
    standing = tuple(chain.from_iterable(await in_turns(problems_by_object(state.world))))
    proxies = [c.proxy for c in state.xds.status.proxies() if c.proxy is not None]
    truth = await truth_now(state)
    return picture_of(
        state.world,
        proxies,
        statuses_now(state),
        standing=standing,
        kept_back=truth.kept_back(),
        not_followed=not_followed(state.facts()),
        traffic=traffic,
    )


async def seen_traffic(state: PlaneState, days: int) -> SeenTraffic | None:
    """The traffic of the last days; None where none was counted."""
    found = await traffic_of_days(state, days)
    if found is None or found.since is None:
        return None
    return SeenTraffic(found.since, found.until, frozenset(node for node, _ in found.reporters), found.edges)
