"""A listing: rows for people, and the messages that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.explain.inspection.dump import ConfigDump, DumpedResource, DumpState
from mesh_pilot.model.redaction import redacted
from mesh_pilot.model.resource import CLUSTER, ENDPOINT

NONE = "-"
"""An empty cell."""

PLACES = 2
"""Places named in a cell; the others are counted."""

STATE, MADE_FROM = "STATE", "MADE FROM"


@attrs.frozen
class Row:
    """One line of a listing."""

    cells: tuple[str, ...]
    resource: DumpedResource
    made_from: tuple[str, ...] | None = None
    """The objects that this line came from; None: those of the whole resource."""

    @property
    def sources(self) -> tuple[str, ...]:
        return self.resource.made_from if self.made_from is None else self.made_from


@attrs.frozen
class Listing:
    """The resources of a type that a filter lets through."""

    columns: tuple[str, ...]
    """Istioctl's; ``STATE`` and ``MADE FROM`` are added where there is anything to tell."""
    rows: tuple[Row, ...]
    messages: tuple[Mapping[str, Any], ...]
    """The resources themselves, without keys; ``made_from`` names their objects and places."""

    def table(self, dump: ConfigDump) -> list[tuple[str, ...]]:
        """The lines as cells, the columns' names first."""
        states = [_state(dump, row) for row in self.rows]
        places = [_places(dump, row) for row in self.rows]
        added = [(name, column) for name, column in ((STATE, states), (MADE_FROM, places)) if any(column)]
        lines = [(*self.columns, *(name for name, _ in added))]
        for index, row in enumerate(self.rows):
            cells = (*row.cells, *(column[index] for _, column in added))
            lines.append(tuple(cell or NONE for cell in cells))
        return lines


def listing(dump: ConfigDump, columns: Sequence[str], rows: Iterable[Row]) -> Listing:
    """A listing of rows; the messages are those of the rows' resources, each once."""
    kept = tuple(rows)
    resources = {id(row.resource): row.resource for row in kept}
    return Listing(tuple(columns), kept, tuple(message_of(dump, resource) for resource in resources.values()))


def message_of(dump: ConfigDump, resource: DumpedResource) -> Mapping[str, Any]:
    """The message of a resource for people and programs: keys are blanked, the objects that it came from are named."""
    message: Mapping[str, Any] = redacted(resource.message)
    if not resource.made_from:
        return message
    return {**message, "made_from": [{"object": key, "place": dump.place(key)} for key in resource.made_from]}


def made_from(dump: ConfigDump, keys: Sequence[str]) -> str:
    """The places of objects, or their names where no place is known."""
    found = [dump.place(key) or key for key in keys]
    more = f" + {len(found) - PLACES} more" if len(found) > PLACES else ""
    return ", ".join(found[:PLACES]) + more


def _places(dump: ConfigDump, row: Row) -> str:
    """The places for a row; a cluster's service that no object declares is its registry's."""
    found = made_from(dump, row.sources)
    host = row.resource.name.rpartition("|")[2] if row.resource.type_url in (CLUSTER, ENDPOINT) else ""
    registry = dump.registries.get(host, "")
    return ", ".join(filter(None, (registry, found)))


def named(keys: Iterable[str], kind: str) -> str:
    """The objects of a kind among keys, as istioctl names them: ``reviews.shop``."""
    found = [key.split("/") for key in keys]
    return ", ".join(f"{key[2]}.{key[1]}" for key in found if len(key) == 3 and key[0] == kind)


def _state(dump: ConfigDump, row: Row) -> str:
    """The state of a resource that does not simply take traffic, or is made of older versions of objects."""
    own = dump.states.get((row.resource.type_url, row.resource.name), "")
    objects = (f"{key} {dump.kept_back[key].partition(':')[0]}" for key in row.sources if key in dump.kept_back)
    return "; ".join(filter(None, (_state_at_envoy(row.resource) or own, *objects)))


def _state_at_envoy(resource: DumpedResource) -> str:
    error = " ".join(resource.error.split())
    if resource.state in (DumpState.ACTIVE, DumpState.STATIC):
        return f"newer version refused: {error}" if error else ""
    return f"{resource.state}: {error}" if error else str(resource.state)
