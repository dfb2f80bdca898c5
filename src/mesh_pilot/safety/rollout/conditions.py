"""Conditions under which a rollout continues: ``not worse``, ``errors < 1%``, both joined by ``and``, or ``acks``."""

from __future__ import annotations

import re

import attrs

NOT_WORSE = "not worse"
ACKS = "acks"

_BOUND = re.compile(r"errors\s*<\s*(\d+(?:\.\d+)?)\s*%")


@attrs.frozen
class RolloutCondition:
    """A condition on the canary's traffic; that its proxies accept what they are sent is always one."""

    not_worse: bool = False
    """It fails no more often than that of the others."""
    errors: float | None = None
    """The share of its requests that may fail is below this, from 0 to 1."""

    def __bool__(self) -> bool:
        return self.not_worse or self.errors is not None


def condition_of(text: str) -> RolloutCondition:
    """The condition that is written so. Raises ValueError."""
    parts = [" ".join(part.split()) for part in re.split(r"\band\b", text)]
    if parts == [ACKS]:
        return RolloutCondition()
    found = RolloutCondition()
    for part in parts:
        bound = _BOUND.fullmatch(part)
        if part == NOT_WORSE:
            found = attrs.evolve(found, not_worse=True)
        elif bound is not None and found.errors is None and 0 < float(bound[1]) < 100:
            found = attrs.evolve(found, errors=float(bound[1]) / 100)
        else:
            raise ValueError(
                f"{text[:100]!r} is not a condition: those are 'not worse', 'errors < 1%' (above 0, below 100), both "
                "joined by 'and', or 'acks' alone"
            )
    return found
