"""What a source has said, by what it said it of: how it learns which events a new reading comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from mesh_pilot.model.config import Origin, Problem
from mesh_pilot.model.events import Accepted, Delete, Event, Item, Rejected, Upsert, item_key

Key = tuple[str, ...]


@attrs.define
class _Held:
    items: Mapping[Key, Item] = attrs.field(factory=dict)
    rejected: Rejected | None = None


class Picture:
    """The items and rejections of each location. State: those."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._held: dict[str, _Held] = {}
        self._owners: dict[Key, str] = {}
        """Which location an item is from: no two say the same."""

    def __repr__(self) -> str:
        return f"<Picture of {self._source}: {len(self._owners)} items, {len(self.rejections())} rejections>"

    def __contains__(self, location: str) -> bool:
        """Whether a location gives any item."""
        held = self._held.get(location)
        return held is not None and bool(held.items)

    def items(self) -> tuple[Item, ...]:
        return tuple(item for held in self._held.values() for item in held.items.values())

    def rejections(self) -> tuple[Rejected, ...]:
        return tuple(held.rejected for held in self._held.values() if held.rejected is not None)

    def locations(self) -> list[str]:
        """Where anything was read, good or bad."""
        return list(self._held)

    def put(self, location: str, items: Iterable[Item], problems: tuple[Problem, ...] = ()) -> list[Event]:
        """A location says this now, though perhaps with problems."""
        held = self._held.setdefault(location, _Held())
        after = {item_key(item): item for item in items}
        for key in [key for key in after if self._owners.get(key, location) != location]:
            reason = f"{'/'.join(key[1:])} is what {self._owners[key]} is already; this one is left out"
            problems = (*problems, Problem("", reason))
            del after[key]
        events: list[Event] = [Upsert(self._source, item) for key, item in after.items() if held.items.get(key) != item]
        gone = [key for key in reversed(list(held.items)) if key not in after]
        events += (Delete(self._source, key) for key in gone)
        for key in gone:
            del self._owners[key]
        self._owners.update(dict.fromkeys(after, location))
        held.items = after
        events += self._judge(location, held, problems)
        return events

    def refuse(self, location: str, problems: tuple[Problem, ...], line: int = 0) -> list[Event]:
        """What a location says now can't be accepted: what it said before stays."""
        return self._judge(location, self._held.setdefault(location, _Held()), problems, line)

    def drop(self, location: str) -> list[Event]:
        """A location is no more."""
        events = self.put(location, ()) if location in self._held else []
        self._held.pop(location, None)
        return events

    def _judge(self, location: str, held: _Held, problems: tuple[Problem, ...], line: int = 0) -> list[Event]:
        before = held.rejected
        held.rejected = None
        if problems:
            held.rejected = Rejected(self._source, Origin(self._source, location, line), problems)
            return [held.rejected] if held.rejected != before else []
        return [Accepted(self._source, location)] if before is not None else []
