"""The limits of quarantine."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class QuarantineOptions:
    """Limits: a broken client must not keep the mesh's configuration from others."""

    max_objects: int = 50
    """Objects that may be withheld from a client."""
    max_groups: int = 50
    """Groups of clients from which the same is withheld: each costs an overlay of the World. No party (an identity, or
    an address from which unproven clients come) causes more than a quarter of them, and unproven clients together no
    more than half."""
    trials_per_minute: float = 60.0
    """Trials of a proxy, or of the proxies of an identity."""
    answer_seconds: float = 10.0
    """How long a client may take to answer a trial."""
    witness_seconds: float = 0.5
    """How long a verdict waits for other clients of the build that have not answered yet."""


DEFAULT_OPTIONS = QuarantineOptions()
