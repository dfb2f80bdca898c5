"""The services and endpoints that are to be merged again at the next flush."""

from __future__ import annotations

import attrs

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.copying import Copied


@attrs.define(slots=False)
class Stale(Copied):
    """All that writes touched, in their order. Mutable."""

    entries: dict[ConfigKey, None] = attrs.field(factory=dict)
    """ServiceEntries whose endpoints are to be made,"""
    services: dict[ServiceKey, None] = attrs.field(factory=dict)
    """services to be merged,"""
    endpoints: dict[ServiceKey, None] = attrs.field(factory=dict)
    """and services whose endpoints are."""
    external: bool = False
    """True if the services with external addresses changed."""
