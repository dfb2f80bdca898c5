"""What a subscription is about to send, and why some of it is in doubt."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mesh_pilot.model.resource import Resource

Mark = Callable[[str], str]
"""What a Delta client is to give back with the version of a resource, by its name."""


@attrs.frozen
class Plan:
    """What to send next."""

    puts: tuple[Resource, ...] = ()
    """New, changed or asked for again."""
    drops: tuple[str, ...] = ()
    """Held by the client, or asked for, and not there."""


@attrs.define
class Draft:
    """A plan being made."""

    puts: list[Resource] = attrs.field(factory=list)
    drops: list[str] = attrs.field(factory=list)

    def add(self, name: str, current: Resource | None) -> None:
        if current is None:
            self.drops.append(name)
        else:
            self.puts.append(current)

    def plan(self) -> Plan:
        return Plan(tuple(self.puts), tuple(self.drops))


@attrs.frozen
class Refusal:
    """Why a name is in doubt: it was in a response that the client refused."""

    group: int
    """Digest of that response's content."""
    version: str
    """The version that was in it; empty for a removal."""
