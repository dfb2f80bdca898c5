"""Flags of ``mesh-pilot discovery`` about what sources lose at once, and about orders of an operator."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mesh_pilot.world.guard import GuardOptions

FLAGS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "--guard/--no-guard",
        {"default": True, "help": "Hold what a source loses implausibly, until it is back (docs/guards.md)."},
    ),
    (
        "--guard-share",
        {
            "type": click.FloatRange(min=0, max=1, max_open=True),
            "default": 0.5,
            "help": "Share of a source's objects that may go at once.",
        },
    ),
    (
        "--guard-minimum",
        {
            "type": click.IntRange(min=1),
            "default": 3,
            "help": "Objects of fewer files, keys or services may always go.",
        },
    ),
    (
        "--admin-socket",
        {
            "type": click.Path(path_type=Path),
            "help": "Unix socket for mesh-pilot admin.  [default: admin.sock in the state folder]",
        },
    ),
)
"""Each flag with what click takes of it."""


def take_guard(options: MutableMapping[str, Any]) -> GuardOptions | None:
    """The guard's settings, taken out of the options of the command; None: nothing is held."""
    from mesh_pilot.world.guard import GuardOptions

    share, minimum = options.pop("guard_share"), options.pop("guard_minimum")
    return GuardOptions(share=share, minimum=minimum) if options.pop("guard") else None
