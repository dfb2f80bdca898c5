"""A part: one task of a control plane, which can be run alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from mesh_pilot.base.containment import PartSupervisor


@attrs.frozen
class PlanePart:
    """A task from the start of a control plane to its end."""

    name: str
    run: Callable[[], Awaitable[None]]
    """Runs until cancelled, or until there is nothing left for it to do."""
    is_vital: bool = True
    """True: its failure ends the process. False: its failure costs no proxy anything; it is logged, and the part runs
    again."""


def start(parts: Iterable[PlanePart], nursery: trio.Nursery) -> None:
    """Run each part as a task of the nursery."""
    upkeep = PartSupervisor("the control plane")
    for part in parts:
        if part.is_vital:
            nursery.start_soon(part.run, name=part.name)
        else:
            nursery.start_soon(upkeep.keep, part.name, part.run, name=part.name)
