"""The settings of what outlives a restart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import attrs

from mesh_pilot.model.flags import FlagKind, flag

_flag = partial(flag, section="What outlives a restart")

ADMIN_SOCKET = "admin.sock"
"""The file in the state folder at which ``mesh-pilot admin`` gives orders."""


@attrs.frozen(kw_only=True)
class HistoryBounds:
    """The part of the history that is kept: what exceeds one of these is dropped, oldest first."""

    revisions: int = _flag(
        "--history-revisions", default=1000, least=0, help="Most revisions kept (docs/history.md); 0: none."
    )
    seconds: float = _flag(
        "--history-age", kind=FlagKind.DURATION, default=7 * 24 * 3600.0, help="Do not keep older revisions."
    )


DEFAULT_HISTORY = HistoryBounds()


@attrs.frozen(kw_only=True)
class StateSettings:
    """Where the state is kept, and how old it may be."""

    folder: Path
    """Made if it is missing, for its owner alone."""
    key_file: Path | None = None
    """A file with the key that private keys are encrypted with; None: they are not kept."""
    max_age: float = math.inf
    """The age in seconds beyond which a picture is not used,"""
    max_ages: Mapping[str, float] = attrs.field(factory=dict)
    """and that of certain sources, by name."""
    history: HistoryBounds = DEFAULT_HISTORY

    def max_age_of(self, source: str) -> float:
        """The age in seconds beyond which the picture of a source is not used."""
        return self.max_ages.get(source, self.max_age)
