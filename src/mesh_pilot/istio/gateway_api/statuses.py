"""A wanted status, merged into the one that an object has.

Times of conditions that stay are kept, and so are the conditions and entries of other controllers: an object that has
its status already is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.istio.gateway_api.values import CONTROLLER, GROUP, Json

MESH_CONTROLLER = "istio.io/mesh-controller"
"""The name under which statuses of policies are written for sidecars."""

_OURS = frozenset((CONTROLLER, MESH_CONTROLLER))
_ENTRIES = {"parents": "parentRef", "ancestors": "ancestorRef"}
"""Lists of entries by controller, with the field that names what an entry is about."""

MAX_ANCESTORS = 16
"""The most entries that a policy's status may have."""


@attrs.frozen
class FailedCondition:
    """A condition that says that something is wrong."""

    about: str
    """Text: ``listener http``, ``at Gateway web``; empty for the object as a whole."""
    field: str
    """The field of the object that it is about; may be empty."""
    type: str
    reason: str
    message: str


NO_RESOURCES = "NoResources"
"""The reason of ``Programmed`` where no proxy is there for a Gateway."""

_REPEATS = frozenset(("ListenersNotValid", "NoValidCACertificate"))
"""Reasons that only repeat what another condition says in full."""
_TOLD = frozenset(("Accepted", "ResolvedRefs", "Programmed"))


def failed_conditions(status: Json) -> Iterator[FailedCondition]:
    """The conditions of a status that say that something is wrong, each fault once."""
    for about, field, conditions in _conditions(status):
        for each in conditions:
            if each["status"] == "True" or each["type"] not in _TOLD or each["reason"] in _REPEATS:
                continue
            is_told = not about and (each["reason"].startswith("Address") or each["reason"] == NO_RESOURCES)
            if each["type"] != "Programmed" or is_told:
                yield FailedCondition(about, field, each["type"], each["reason"], each["message"])


def _conditions(status: Json) -> Iterator[tuple[str, str, Iterable[Json]]]:
    yield "", "", status.get("conditions", ())
    for index, listener in enumerate(status.get("listeners", ())):
        yield f"listener {listener['name']}", f"spec.listeners[{index}]", listener["conditions"]
    for parent in status.get("parents", ()):
        yield f"at {written_reference(parent['parentRef'])}", "spec.parentRefs", parent["conditions"]
    for ancestor in status.get("ancestors", ()):
        yield f"for {written_reference(ancestor['ancestorRef'])}", "spec.targetRefs", ancestor["conditions"]


def written_reference(ref: Json) -> str:
    """``Gateway web/http``."""
    section = f"/{ref['sectionName']}" if ref.get("sectionName") else ""
    return f"{ref.get('kind', 'Gateway')} {ref.get('name')}{section}"


def merged_status(wanted: Json, current: Json, namespace: str, generation: int, now: datetime) -> dict[str, Any]:
    """The status that an object gets: equal to ``current`` if that says all of ``wanted``.

    ``namespace``: the object's own; ``generation``: the one that ``wanted`` is about, 0 where objects have none.
    """
    merged = {**current, **wanted}
    stamp = _Stamp(generation, now)
    if "conditions" in wanted:
        merged["conditions"] = stamp.conditions(wanted["conditions"], current.get("conditions"))
    if "listeners" in wanted:
        before = {each["name"]: each for each in objects_named(current.get("listeners"), "name")}
        merged["listeners"] = [
            {**each, "conditions": stamp.conditions(each["conditions"], before.get(each["name"], {}).get("conditions"))}
            for each in wanted["listeners"]
        ]
    for field, ref in _ENTRIES.items():
        if field in wanted:
            merged[field] = stamp.entries(wanted[field], as_objects(current.get(field)), ref, namespace)
    if "ancestors" in merged:
        merged["ancestors"] = merged["ancestors"][:MAX_ANCESTORS]
    for gone in ("attachedListenerSets", "listeners"):
        if gone not in wanted:
            merged.pop(gone, None)
    return merged


class _Stamp:
    """The generation and the time of conditions that are new."""

    def __init__(self, generation: int, now: datetime) -> None:
        self._generation = {"observedGeneration": generation} if generation else {}
        self._now = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def conditions(self, wanted: Iterable[Json], current: object) -> list[Json]:
        """Conditions in the place that those of their type have, else at the end."""
        merged = {each["type"]: dict(each) for each in objects_named(current, "type")}
        for condition in wanted:
            before = merged.get(condition["type"], {})
            same = before.get("status") == condition["status"]
            time = before.get("lastTransitionTime", self._now) if same else self._now
            merged[condition["type"]] = {"lastTransitionTime": time, **condition, **self._generation}
        return [*merged.values()]

    def entries(self, wanted: Iterable[Json], current: Sequence[Json], ref: str, namespace: str) -> list[Json]:
        """Entries of ours in the place that they have, else at the end; those that are not wanted are left out."""
        rest = {_identity(each, ref, namespace): each for each in wanted}
        merged: list[Json] = []
        for entry in current:
            if not _is_ours(entry):
                merged.append(entry)
            elif (found := rest.pop(_identity(entry, ref, namespace), None)) is not None:
                conditions = self.conditions(found["conditions"], entry.get("conditions"))
                merged.append({**found, "conditions": conditions})
        return merged + [{**each, "conditions": self.conditions(each["conditions"], ())} for each in rest.values()]


def _identity(entry: Json, ref: str, namespace: str) -> tuple[object, ...]:
    """The controller of an entry and what it is about, with the defaults that may be left out filled in."""
    named = as_object(entry, ref)
    parts = (
        entry.get("controllerName"),
        named.get("group", GROUP),
        named.get("kind", "Gateway"),
        named.get("namespace") or namespace,
        named.get("name"),
        named.get("sectionName", ""),
        named.get("port", 0),
    )
    return tuple(part if isinstance(part, str | int) else repr(part) for part in parts)


def _is_ours(entry: Json) -> bool:
    name = entry.get("controllerName")
    return isinstance(name, str) and name in _OURS


def objects_named(found: object, field: str) -> list[Json]:
    """The objects of a list that have a string in a field; a status may be anything that somebody has written."""
    return [each for each in as_objects(found) if isinstance(each.get(field), str)]
