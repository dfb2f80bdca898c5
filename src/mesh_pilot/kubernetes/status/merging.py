"""A wanted status, put into the status that an object has. Pure.

For Istio's kinds (``IstioStatus``): conditions by type, others' are left alone; ``validationMessages`` as a whole;
``observedGeneration``. Kinds of the Gateway API and Ingress: see `istio.gateway_api.statuses`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mesh_pilot.istio.gateway_api.statuses import merged_status, objects_named
from mesh_pilot.istio.kinds import KINDS, Api
from mesh_pilot.kubernetes.status.live import Json, LiveObject
from mesh_pilot.model.config import ConfigKey

TIMES = ("lastTransitionTime", "lastProbeTime")
"""Fields of a condition that say when something else of it was so."""


def new_status(key: ConfigKey, parts: Mapping[str, Json], live: LiveObject, now: datetime) -> Json:
    """The status that an object gets: equal to the one it has if that says all that is wanted."""
    kind = KINDS.get(key.kind)
    wanted: dict[str, Any] = {}
    for part in parts.values():
        conditions = [*wanted.get("conditions", ()), *part.get("conditions", ())]
        wanted |= part
        if conditions:
            wanted["conditions"] = conditions
    if kind is not None and kind.api is not Api.ISTIO:
        return merged_status(wanted, live.status, live.namespace, live.generation, now)
    return _istio_status(wanted, live, now)


def _istio_status(wanted: Json, live: LiveObject, now: datetime) -> Json:
    merged = {**live.status}
    for name, value in wanted.items():
        if name == "conditions":
            merged[name] = _conditions(value, live.status.get(name), live.generation, now)
        elif value or name in live.status:
            merged[name] = value
    if merged and live.generation and not _is_number(merged.get("observedGeneration"), live.generation):
        merged["observedGeneration"] = live.generation
    return merged


def _conditions(wanted: Sequence[Json], current: object, generation: int, now: datetime) -> list[Json]:
    """Conditions in the place that those of their type have, else at the end."""
    merged: dict[str, Json] = {each["type"]: each for each in objects_named(current, "type")}
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for condition in wanted:
        before = merged.get(condition["type"], {})
        after = {**condition, **({"observedGeneration": generation} if generation else {})}
        if {name: value for name, value in before.items() if name not in TIMES} == after:
            continue
        same = before.get("status") == condition["status"]
        times = {"lastProbeTime": time, "lastTransitionTime": before.get("lastTransitionTime", time) if same else time}
        merged[condition["type"]] = {**after, **times}
    return [*merged.values()]


def _is_number(value: object, number: int) -> bool:
    """True for the number, also as the text that protobuf's JSON has of large ones."""
    return str(value) == str(number)


def difference(before: Json, after: Json) -> Json:
    """A merge patch from one status to another."""
    changed = {name: value for name, value in after.items() if before.get(name) != value or name not in before}
    return changed | {name: None for name in before if name not in after}
