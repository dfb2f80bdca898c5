"""The limits of quarantine."""

from __future__ import annotations

from functools import partial

import attrs

from mesh_pilot.model.flags import flag

_flag = partial(flag, section="What proxies refuse")


@attrs.frozen(kw_only=True)
class QuarantineOptions:
    """Limits: a broken client must not keep the mesh's configuration from others."""

    max_objects: int = _flag(
        "--quarantine-objects",
        default=50,
        least=0,
        help="Most objects withheld from a build.",
        doc="Most objects withheld from a build; beyond it refusals are on hold.",
    )
    max_groups: int = 50
    """Groups of clients from which the same is withheld: each costs an overlay of the World. No party (an identity, or
    an address from which unproven clients come) causes more than a quarter of them, and unproven clients together no
    more than half."""
    trials_per_minute: float = _flag(
        "--quarantine-trials",
        default=60.0,
        least=1,
        help="Trials a minute, by identity or proxy.",
        doc="Trials a minute, by identity or proxy; beyond it refusals are on hold.",
    )
    answer_seconds: float = 10.0
    """The time that a client may take to answer a trial."""
    witness_seconds: float = 0.5
    """The time that a verdict waits for other clients of the build that have not answered yet."""


DEFAULT_OPTIONS = QuarantineOptions()

QUARANTINE = _flag(
    "--quarantine/--no-quarantine",
    default=True,
    help="Withhold an object that a proxy refuses from proxies of its build (docs/quarantine.md).",
)
"""The switch of quarantine."""
