"""What a subscription is about to send, and why some of it is in doubt."""

from __future__ import annotations

from functools import cached_property

import attrs

from mesh_pilot.model.resource import Resource


@attrs.frozen(eq=False)
class Plan:
    """What to send next. Streams that are about to send the same mostly share one (see ``shared``)."""

    puts: tuple[Resource, ...] = ()
    """New, changed or asked for again; by name."""
    drops: tuple[str, ...] = ()
    """Held by the client, or asked for, and not there."""

    @cached_property
    def touched(self) -> tuple[str, ...]:
        """All names in it."""
        return (*[resource.name for resource in self.puts], *self.drops)

    @cached_property
    def names(self) -> frozenset[str]:
        """All names in it."""
        return frozenset(self.touched)

    @cached_property
    def put_names(self) -> frozenset[str]:
        """Names that the client is given."""
        return self.names.difference(self.drops)


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
