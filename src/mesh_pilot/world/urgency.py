"""Which changes are published without waiting for more: those of endpoints only. They are cheap, and late ones cost
requests.
"""

from __future__ import annotations

import dataclasses

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Accepted, Delete, Endpoints, Event, Rejected, Replace, Upsert
from mesh_pilot.world.world import World


def touches_only_endpoints(event: Event, world: World) -> bool:
    """Whether an event changes endpoints and nothing else, or nothing at all, of what a world holds now."""
    match event:
        case Upsert(item=Endpoints()) | Rejected() | Accepted():
            return True
        case Upsert(source=source, item=Config() as config):
            before = world.held_by(source, ("config", *config.key))
            return config.key.kind == "WorkloadEntry" or (
                isinstance(before, Config) and _has_same_frame(before, config)
            )
        case Delete(key=key) | Replace(collection=key):
            return key[:1] == ("endpoints",) or key[:2] == ("config", "WorkloadEntry")
        case _:
            return False


def _has_same_frame(before: Config, after: Config) -> bool:
    """Whether two versions of a ServiceEntry differ in their endpoints at most. Where names are resolved by DNS,
    endpoints are part of the cluster."""
    if after.key.kind != "ServiceEntry" or after.spec.resolution != api.ServiceEntryResolution.STATIC:
        return False
    if (before.created, before.labels, before.annotations) != (after.created, after.labels, after.annotations):
        return False
    fields = (field.name for field in dataclasses.fields(after.spec) if field.name != "endpoints")
    return all(getattr(before.spec, name) == getattr(after.spec, name) for name in fields)
