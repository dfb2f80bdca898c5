"""The status of objects of the Gateway API, and its conditions that say that something is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mesh_pilot.istio.gateway_api.gateway_status import without_router
from mesh_pilot.istio.gateway_api.statuses import failed_conditions
from mesh_pilot.istio.gateway_api.values import KUBERNETES_GATEWAY
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.objects import ObjectProblem
from mesh_pilot.world import World

_OF_ROUTERS = (KUBERNETES_GATEWAY, "ListenerSet")


def connected_gateways(state: PlaneState) -> frozenset[ConfigKey] | None:
    """The Gateways and ListenerSets that connected routers have. None if other workers or replicas may serve more."""
    if state.events is None or state.others is not None or state.election.statistics().kind != "none":
        return None
    served = (state.world.config.peek(key) for key in state.catalog.served_gateways())
    return frozenset(key for config in served if config is not None for key in config.made_from)


def status_now(world: World, key: ConfigKey, connected: frozenset[ConfigKey] | None) -> Mapping[str, Any] | None:
    """The status of an object; ``connected``: see ``connected_gateways``."""
    status = world.object_status(key)
    if status is None or connected is None or key.kind not in _OF_ROUTERS or key in connected:
        return status
    return without_router(status)


def statuses_now(state: PlaneState) -> dict[ConfigKey, Mapping[str, Any]]:
    """The statuses of all objects, with what is known of connected routers."""
    connected = connected_gateways(state)
    found = ((key, status_now(state.world, key, connected)) for key in state.world.object_statuses())
    return {key: status for key, status in found if status is not None}


def condition_entries(world: World, connected: frozenset[ConfigKey] | None = None) -> Iterator[ObjectProblem]:
    """The conditions that say that something is wrong, by object; ``connected``: see ``connected_gateways``."""
    for key in sorted(world.object_statuses()):
        status, config = status_now(world, key, connected), world.config.peek(key)
        for failed in failed_conditions(status or {}):
            about = f"{failed.about}: " if failed.about else ""
            yield ObjectProblem(
                where=str(config.origin) if config is not None else "",
                object=str(key),
                field=failed.field,
                reason=f"{about}{failed.message} [{failed.reason}]",
            )
