"""The settings of guards. They are apart from ``world.guard`` because the help of commands shows them."""

from __future__ import annotations

from functools import partial

import attrs

from mesh_pilot.model.flags import flag

_flag = partial(flag, section="What sources lose")


@attrs.frozen
class GuardOptions:
    """The part of a source's picture that may go at once."""

    share: float = _flag(
        "--guard-share",
        default=0.5,
        least=0,
        most=1,
        is_below=True,
        reload=True,
        help="Share of a source's objects that may go at once.",
    )
    minimum: int = _flag(
        "--guard-minimum",
        default=3,
        least=1,
        reload=True,
        help="Objects of fewer files, keys or services may always go.",
    )
    seconds: float = 30.0
    """The time within which all that goes counts as gone at once."""
    steady_seconds: float = 120.0
    """The time for which a picture that has recovered must be steady before what is still missing goes. Agents of
    Consul register again within two minutes."""


DEFAULT_GUARD = GuardOptions()

GUARD = _flag(
    "--guard/--no-guard",
    default=True,
    help="Hold what a source loses implausibly, until it is back (docs/guards.md).",
)
"""The switch of all guards."""
