"""How things are now: the state of an object, a proxy, a service or a source, and how bad that is."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import attrs


class Gravity(StrEnum):
    """How bad something is; the worst comes last."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        return list(Gravity).index(self)


@attrs.frozen
class Assessment:
    """How something is now: well, or the reason why not."""

    state: str
    """A word: `in sync`, `withheld`, `down`, ..."""
    severity: Gravity = Gravity.OK
    why: str = ""
    """The reason in words; empty where all is well."""
    since: datetime | None = None
    """Since when, as far as that is known."""
