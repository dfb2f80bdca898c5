"""The limits of quarantine."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class QuarantineOptions:
    """Limits: a broken client must not keep the mesh's configuration from others."""

    max_objects: int = 50
    """Objects that may be withheld from the clients of a domain."""
    max_domains: int = 50
    """Domains with verdicts or trials: each costs an overlay of the World."""
    trials_per_minute: float = 60.0
    """Trials of the clients in one scope."""
    answer_seconds: float = 10.0
    """How long a client may take to answer a trial."""
    witness_seconds: float = 0.5
    """How long a verdict waits for other clients of the build that have not answered yet."""


DEFAULT_OPTIONS = QuarantineOptions()
