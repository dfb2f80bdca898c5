"""The size of what a proxy is sent, with and without suggested Sidecars; and whether a call would be lost.

A suggestion is looked at by one of its proxies, as a plan does, by the code that serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from mesh_pilot.explain.plan.objects import FILES, ObjectChange
from mesh_pilot.explain.plan.picture import ConnectedProxy, PlanePicture
from mesh_pilot.explain.plan.planning import Held, Planner
from mesh_pilot.explain.suggestions.observed import Observed, Suggestion
from mesh_pilot.model.events import item_key
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE, VIRTUAL_HOST


@attrs.frozen
class ProxySize:
    """The size of what a proxy is sent."""

    listeners: int
    clusters: int
    routes: int
    """Route tables, and virtual hosts where these are separate resources."""
    bytes: int
    """All resources, encoded."""


@attrs.frozen
class SidecarCost:
    """One proxy with and without a suggestion."""

    proxy: str
    """The proxy's name."""
    before: ProxySize
    after: ProxySize
    lost: Sequence[str] = ()
    """Clusters that were used and would go: none, but for a fault of mesh-pilot."""


def costs(
    picture: PlanePicture, proxies: Sequence[ConnectedProxy], objects: Sequence[Suggestion], seen: Observed
) -> Mapping[str, SidecarCost]:
    """The effect of Sidecars if all are applied, by the name of the object; none of those without a connected proxy."""
    known = {each.proxy.name: each for each in proxies}
    chosen = {each.proxies[0]: each for each in objects if each.proxies}
    looked_at = [known[name] for name in chosen]
    changes = [ObjectChange(FILES, item_key(each.config), None, each.config) for each in objects]
    found: dict[str, SidecarCost] = {}
    for connected, before, after in Planner(picture, looked_at).sides(changes):
        proxy = connected.proxy
        workload = seen.reporters.get(proxy.id)
        used = {str(cluster) for cluster in seen.calls.get(workload, ())} if workload is not None else set()
        lost = sorted((used & before.get(CLUSTER, {}).keys()) - after.get(CLUSTER, {}).keys())
        name = str(chosen[proxy.name].config.key)
        found[name] = SidecarCost(proxy.name, _size(before), _size(after), lost)
    return found


def _size(held: Held) -> ProxySize:
    return ProxySize(
        len(held.get(LISTENER, ())),
        len(held.get(CLUSTER, ())),
        len(held.get(ROUTE, ())) + len(held.get(VIRTUAL_HOST, ())),
        sum(len(resource.body) for of in held.values() for resource in of.values()),
    )
