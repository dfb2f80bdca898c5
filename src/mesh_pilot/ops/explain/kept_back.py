"""Lines about the objects that bear on a request and that a proxy does not have as they are written."""

from __future__ import annotations

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.objects import object_facts
from mesh_pilot.ops.values.truth import kept_from
from mesh_pilot.safety.quarantine.verdicts import name_of


async def kept_back_lines(state: PlaneState, proxy: Proxy, host: str) -> list[str]:
    """A line for each object that is for a host, or names no hosts, and is not in force at a proxy as it is written."""
    lines = []
    for key, truth in await kept_from(state, proxy):
        facts = object_facts(state.world, ConfigKey(*key[1:])) if key[0] == "config" else None
        if facts is None or not facts.hosts or any(_is_for(each.lower(), host.lower()) for each in facts.hosts):
            place = f" ({facts.origin})" if facts is not None else ""
            lines.append(f"{name_of(key)}{place} is not in force at {proxy.name} as it is written: {truth.text}")
    return lines


def _is_for(pattern: str, host: str) -> bool:
    return pattern == host or (pattern.startswith("*") and host.endswith(pattern[1:]))
